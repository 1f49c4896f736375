"""Which convolutions over short rows are divided, and that their parts add up to the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backbones.graph.nodes import first_shapes, from_json, to_json
from backbones.graph.onednn.constants import Reduced
from backbones.graph.onednn.short_rows import divide
from runtime.mxnet import mx


def convolution(x: Any, name: str, channels: int = 300, **settings: Any) -> Any:
    attributes = {"kernel": (3, 3), "pad": (1, 1), **settings}
    return mx.sym.Convolution(x, num_filter=channels, name=name, **attributes)


def relu(x: Any) -> Any:
    return mx.sym.Activation(x, act_type="relu")


def weights(symbol: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    generator = np.random.default_rng(1)
    shapes, _, _ = symbol.infer_shape(data=shape)
    sizes = dict(zip(symbol.list_arguments(), shapes))
    return {name: mx.nd.array(generator.normal(size=size)) for name, size in sizes.items()}


DATA = mx.sym.var("data")
# Of 300 channels; a convolution of it is divided.
C0 = convolution(DATA, "c0")
C1 = convolution(C0, "c1")
WIDE = convolution(DATA, "c0", 600)

GRAPHS = {
    "two parts": (relu(C1), {"c0": 3, "c1_from0": 150, "c1_from150": 150}),
    "three parts": (convolution(WIDE, "c1", 8), {f"c1_from{i}": 200 for i in (0, 200, 400)}),
    "unequal parts": (
        convolution(convolution(DATA, "c0", 301), "c1", 8),
        {"c1_from0": 151, "c1_from151": 150},
    ),
    "without a bias": (convolution(C0, "c1", no_bias=True), {"c1_from0": 150, "c1_from150": 150}),
    "of another step": (convolution(C0, "c1", stride=(2, 2)), {"c1_from0": 150}),
    "added to another": (relu(C1 + C0), {"c1_from0": 150, "c1_from150": 150}),
    "two that are added": (C1 + convolution(C0, "c2"), {"c1_from0": 150, "c2_from150": 150}),
    "added to itself": (C1 + C1, {"c1_from0": 150, "c1_from150": 150}),
    "one behind the other": (convolution(relu(C1), "c2"), {"c1_from0": 150, "c2_from150": 150}),
    "an output": (mx.sym.Group([C1, relu(C1)]), {"c1_from0": 150, "c1_from150": 150}),
    "of 256 channels": (convolution(convolution(DATA, "c0", 256), "c1"), {"c1": 256}),
    "of one pixel": (convolution(C0, "c1", kernel=(1, 1), pad=(0, 0)), {"c1": 300}),
    "of one dimension": (
        convolution(mx.sym.Reshape(C0, shape=(0, 0, -1)), "c1", kernel=(3,), pad=(1,)),
        {"c1": 300},
    ),
    "of groups": (convolution(WIDE, "c1", 600, num_group=2), {"c1": 300}),
}


def divided(symbol: Any, values: dict[str, Any], shape: tuple[int, ...]) -> tuple[Any, Any]:
    graph = to_json(symbol)
    found = divide(
        Reduced(graph["nodes"], graph["heads"], values), first_shapes(symbol, (1, *shape[1:]))
    )
    return from_json(found.nodes, found.heads, graph["attrs"]), found.values


def run(symbol: Any, values: dict[str, Any]) -> list[np.ndarray]:
    outputs = mx.nd.CachedOp(symbol)(*(values[name] for name in symbol.list_inputs()))
    return [output.asnumpy() for output in (outputs if isinstance(outputs, list) else [outputs])]


def channels(symbol: Any, values: dict[str, Any]) -> dict[str, int]:
    """The input channels of the kernel of each convolution, by its name."""
    nodes = to_json(symbol)["nodes"]
    kernels = {n["name"]: nodes[n["inputs"][1][0]] for n in nodes if n["op"] == "Convolution"}
    return {name: values[kernel["name"]].shape[1] for name, kernel in kernels.items()}


@pytest.mark.parametrize("name", GRAPHS)
def test_parts_add_up_to_the_whole(name: str) -> None:
    symbol, expected = GRAPHS[name]
    shape = (2, 3, 5, 4)
    given = weights(symbol, shape)
    found, values = divided(symbol, given, shape)
    assert expected.items() <= channels(found, values).items()
    is_divided = any("_from" in name for name in expected)
    assert ("c1_weight" in found.list_inputs()) != is_divided
    for one, other in zip(run(found, values), run(symbol, given), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * np.abs(other).max())


def test_parts_are_added_to_the_other_input_of_the_sum_after_them() -> None:
    """So every sum is one that oneDNN computes with a convolution."""
    shape = (2, 3, 5, 4)
    nodes = to_json(divided(C1 + C0, weights(C1 + C0, shape), shape)[0])["nodes"]
    sums = [node for node in nodes if node["op"] == "elemwise_add"]
    firsts = [nodes[node["inputs"][0][0]] for node in sums]
    assert [node["op"] for node in firsts] == ["Convolution"] * 2
    assert all("_from" in node["name"] for node in firsts)


@pytest.mark.parametrize(
    ("symbol", "size", "is_divided"),
    [
        (C1, (4, 5), False),
        (C1, (3, 1), True),
        # Rows of the output count: oneDNN multiplies these.
        (convolution(C0, "c1", stride=(2, 2)), (8, 8), True),
    ],
)
def test_what_counts_is_the_length_of_rows(
    symbol: Any, size: tuple[int, int], is_divided: bool
) -> None:
    shape = (1, 3, *size)
    _, values = divided(symbol, weights(symbol, shape), shape)
    assert ("c1_from0_weight" in values) == is_divided
