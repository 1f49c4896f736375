"""The memory of a step that is computed from the graph is what a step allocates."""

from __future__ import annotations

from collections import Counter
from typing import Optional

import pytest

import backbones
from backbones.graph import memory
from backbones.graph.memory import step_memory, tensor_sizes
from backbones.graph.nodes import to_json
from backbones.sizes import OUTPUTS
from runtime.mxnet import mx
from tests.support.allocations import measure

SIZE = (112, 112)
# Arrays below this are statistics of layers, which the plan leaves out, and features.
SMALL = 2**17


def total(blocks: Counter[int]) -> int:
    return sum(size * count for size, count in blocks.items())


def measured(name: str, batch_size: int, *options: str) -> Counter[int]:
    """The maps and their gradients that a step allocated, without small arrays and the images."""
    found = measure("network", name, batch_size, *options)
    found[4 * batch_size * 3 * 112 * 112] -= 1
    return Counter({size: count for size, count in found.items() if size >= SMALL and count > 0})


def planned(
    name: str, batch_size: int, *, recompute: bool = False, output: Optional[str] = None
) -> Counter[int]:
    symbol = backbones.build(name, output=output)
    maps, gradients = step_memory(symbol, batch_size, SIZE, recompute=recompute)
    return Counter({size: n for size, n in (maps + gradients).items() if size >= SMALL})


@pytest.mark.thorough
@pytest.mark.parametrize("options", [(), ("recompute",)])
def test_blocks_are_those_that_a_step_allocates(options: tuple[str, ...]) -> None:
    assert planned("r18", 2, recompute=bool(options)) == measured("r18", 2, *options)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "output"), [("r18-se", "E"), ("r18", "GAP"), ("r18", "GDC")]
)
def test_blocks_of_other_outputs_are_those_that_a_step_allocates(name: str, output: str) -> None:
    assert planned(name, 2, output=output) == measured(name, 2, output)


def test_memory_is_what_a_step_allocates() -> None:
    # MXNet plans one block for half as much.
    assert total(planned("mbf", 2)) == pytest.approx(total(measured("mbf", 2)), rel=0.01)


def test_memory_of_gnap_is_what_a_step_allocates() -> None:
    # One block more is planned for the square of the maps.
    found = total(measured("r18", 2, "GNAP"))
    assert total(planned("r18", 2, output="GNAP")) == pytest.approx(found, rel=0.003)


def test_blocks_by_hand() -> None:
    data = mx.sym.var("data")
    first = mx.sym.Convolution(
        data, num_filter=4, kernel=(3, 3), pad=(1, 1), no_bias=True, name="first"
    )
    bent = mx.sym.Activation(first, act_type="relu", name="bent")
    second = mx.sym.Convolution(
        bent, num_filter=4, kernel=(3, 3), pad=(1, 1), no_bias=True, name="second"
    )
    symbol = mx.sym.FullyConnected(second + bent, num_hidden=2, name="features")
    map_bytes = 4 * 5 * (4 * 8 * 8)
    maps, gradients = step_memory(symbol, 5, (8, 8))
    # The relu writes over the first map and is kept; the sum over the second, and is kept.
    assert maps == {map_bytes: 2}
    # That of the sum, which is handed on to its first addend; its copy for the second; and that of
    # the second through its convolution, which is added to the copy. The relu's is written over
    # the result, and the gradient of the images takes a block that is free by then.
    assert gradients == {map_bytes: 3}


def test_half_precision_takes_half() -> None:
    wide = step_memory(backbones.build("r18"), 4, SIZE)
    narrow = step_memory(backbones.build("r18", dtype="float16"), 4, SIZE)
    assert total(narrow.maps) == pytest.approx(total(wide.maps) / 2, rel=0.02)
    assert total(narrow.gradients) == pytest.approx(total(wide.gradients) / 2, rel=0.03)


def test_recomputing_needs_less_the_deeper_a_network_is() -> None:
    shares = []
    for name in ("r18", "r50", "r100"):
        symbol = backbones.build(name)
        whole, parts = (
            sum(map(total, step_memory(symbol, 4, SIZE, recompute=recompute)))
            for recompute in (False, True)
        )
        shares.append(parts / whole)
    assert 1 > shares[0] > shares[1] > shares[2]


@pytest.mark.parametrize("name", ["r50", "r50-se", "mbf", "tiny"])
@pytest.mark.parametrize("output", [None, *OUTPUTS])
def test_every_operator_has_a_rule(name: str, output: Optional[str]) -> None:
    nodes = to_json(backbones.build(name, dtype="float16", output=output))["nodes"]
    assert {node["op"] for node in nodes} - {"null"} <= memory._KNOWN


def test_an_operator_without_a_rule_is_taken_to_read_everything() -> None:
    data = mx.sym.var("data")
    maps = mx.sym.Convolution(data, num_filter=3, kernel=(1, 1), no_bias=True, name="first")
    symbol = mx.sym.FullyConnected(mx.sym.sigmoid(maps, name="bent"), num_hidden=2)
    assert step_memory(symbol, 1, (8, 8)).maps == {4 * 3 * 8 * 8: 2}


def test_sizes_of_tensors() -> None:
    sizes = tensor_sizes(backbones.build("tiny", embedding_size=8, dtype="float16"), (2, 3, *SIZE))
    assert sizes["data"] == (2 * 3 * 112 * 112, 4)
    assert sizes["conv0"] == (2 * 32 * 28 * 28, 2)
    assert sizes["conv0_weight"] == (32 * 3 * 5 * 5, 2)
    assert sizes["bn0_moving_var"] == (32, 4)
    assert sizes["fc1"].num_bytes == 2 * 8 * 4
