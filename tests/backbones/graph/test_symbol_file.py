"""Graphs of checkpoints: read_graph refuses damaged ones, infer_shapes those for one batch size."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backbones.graph.symbol_file import infer_shapes, read_graph
from runtime.errors import DataError
from runtime.mxnet import mx


def write(folder: Path, shape: tuple[int, ...]) -> Path:
    flat = mx.sym.reshape(mx.sym.var("data"), shape=shape, name="flat")
    path = folder / "model-symbol.json"
    mx.sym.FullyConnected(flat, num_hidden=8, name="fc1").save(str(path))
    return path


def test_shapes_of_the_parameters(tmp_path: Path) -> None:
    path = write(tmp_path, (0, -1))
    shapes = infer_shapes(read_graph(path), (4, 4), path)
    assert shapes == {"fc1_weight": (8, 48), "fc1_bias": (8,)}


def test_a_graph_for_one_batch_size_only_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, (1, -1))
    with pytest.raises(DataError, match="for one batch size only"):
        infer_shapes(read_graph(path), (4, 4), path)


def test_a_reshape_to_fewer_elements_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, (0, 8))
    with pytest.raises(DataError, match="is damaged: 'flat' reshapes 48 elements to 8"):
        infer_shapes(read_graph(path), (4, 4), path)


@pytest.mark.parametrize("layer", ["BatchNorm", "LeakyReLU"])
def test_a_layer_whose_parameter_is_the_image_is_refused(tmp_path: Path, layer: str) -> None:
    data = mx.sym.var("data")
    if layer == "BatchNorm":
        maps = mx.sym.BatchNorm(data, gamma=data * 2, name="layer")
    else:
        maps = mx.sym.LeakyReLU(data, gamma=data, act_type="prelu", name="layer")
    path = tmp_path / "model-symbol.json"
    mx.sym.FullyConnected(maps, num_hidden=8, name="fc1").save(str(path))
    with pytest.raises(DataError, match="'layer' takes a parameter from the image"):
        read_graph(path)


def test_a_batch_norm_that_shares_a_parameter_is_refused(tmp_path: Path) -> None:
    shared = mx.sym.var("shared")
    maps = mx.sym.BatchNorm(mx.sym.var("data"), gamma=shared, beta=shared, name="layer")
    path = tmp_path / "model-symbol.json"
    mx.sym.FullyConnected(maps, num_hidden=8, name="fc1").save(str(path))
    with pytest.raises(DataError, match="'layer' shares a parameter"):
        read_graph(path)


def test_the_parameter_of_another_layer_is_no_parameter_of_a_batch_norm(tmp_path: Path) -> None:
    shared = mx.sym.var("shared")
    maps = mx.sym.BatchNorm(mx.sym.var("data"), name="first") + 1
    maps = mx.sym.broadcast_mul(mx.sym.BatchNorm(maps, gamma=shared, name="second"), shared)
    path = tmp_path / "model-symbol.json"
    mx.sym.FullyConnected(maps, num_hidden=8, name="fc1").save(str(path))
    with pytest.raises(DataError, match="'second' shares a parameter"):
        read_graph(path)


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    graph = json.loads(path.read_text())
    change(graph)
    path.write_text(json.dumps(graph))
    return path


@pytest.mark.parametrize("version", [0, 999_999, "1"])
def test_an_unknown_version_is_refused(tmp_path: Path, version: object) -> None:
    attributes = {"mxnet_version": ["int", version]}
    path = changed(write(tmp_path, (0, -1)), lambda graph: graph.update(attrs=attributes))
    with pytest.raises(DataError, match="no known version of MXNet"):
        read_graph(path)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ([-1, 0, 0], "an input that is no earlier node"),
        ([4, 0, 0], "an input that is no earlier node"),
        ([1, 0, 2], "an input that is no earlier node"),
        ([1, 1, 0], "takes output 1 of node 1, which has none"),
        ([1, -1, 0], "takes output -1 of node 1, which has none"),
    ],
)
def test_inputs_come_from_earlier_nodes(tmp_path: Path, entry: list[int], message: str) -> None:
    # Node 4 is fc1, and node 1 is the Reshape before it.
    path = write(tmp_path, (0, -1))
    path = changed(path, lambda graph: graph["nodes"][4]["inputs"].__setitem__(0, entry))
    with pytest.raises(DataError, match=message):
        read_graph(path)


def test_an_operator_without_inputs_is_refused(tmp_path: Path) -> None:
    """Inferring the shapes of a BatchNorm without inputs crashes MXNet."""
    path = write(tmp_path, (0, -1))
    change = {"op": "BatchNorm", "attrs": {}}
    # Node 2 is the weight of fc1.
    path = changed(path, lambda graph: graph["nodes"][2].update(change))
    with pytest.raises(DataError, match="the operator 'fc1_weight' has no inputs"):
        read_graph(path)


def test_the_error_quotes_mxnets_message_on_shapes(tmp_path: Path) -> None:
    data = mx.sym.var("data")
    path = tmp_path / "model-symbol.json"
    maps = mx.sym.Convolution(data, kernel=(9, 9), num_filter=2, name="wide")
    mx.sym.FullyConnected(maps, num_hidden=8, name="fc1").save(str(path))
    with pytest.raises(DataError, match=r"does not take images of 4 x 4 pixels \(.*wide"):
        infer_shapes(read_graph(path), (4, 4), path)


@pytest.mark.parametrize(("pad", "is_read"), [(1024, True), (1025, False)])
def test_the_largest_number_of_an_attribute_is_read(
    tmp_path: Path, pad: int, is_read: bool
) -> None:
    path = tmp_path / "model-symbol.json"
    maps = mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), pad=(pad, 0), num_filter=2)
    mx.sym.FullyConnected(maps, num_hidden=8, name="fc1").save(str(path))
    if is_read:
        read_graph(path)
    else:
        with pytest.raises(DataError, match=f"has pad = '.{pad}, 0.'"):
            read_graph(path)


def test_a_concatenation_of_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model-symbol.json"
    maps = mx.sym.Concat(mx.sym.var("data"), name="one")
    mx.sym.FullyConnected(maps, num_hidden=8, name="fc1").save(str(path))
    assert infer_shapes(read_graph(path), (4, 4), path)["fc1_weight"] == (8, 48)


def test_a_name_that_mxnet_would_split_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, (0, -1))
    path.write_text(path.read_text().replace('"flat"', '"fl$at"'))
    with pytest.raises(DataError, match=r"has a \$"):
        read_graph(path)


@pytest.mark.parametrize("layer", ["BatchNorm", "LeakyReLU", "InstanceNorm", "LayerNorm"])
@pytest.mark.parametrize("kind", ["computed", "shared"])
def test_a_parameter_whose_shape_mxnet_does_not_check_is_refused(
    tmp_path: Path, layer: str, kind: str
) -> None:
    data, weight = mx.sym.var("data"), mx.sym.var("w")
    maps = mx.sym.Convolution(data, weight, kernel=(1, 1), num_filter=4, no_bias=True, name="c")
    gamma = mx.sym.Flatten(weight) if kind == "computed" else weight
    more = {"act_type": "prelu"} if layer == "LeakyReLU" else {}
    maps = getattr(mx.sym, layer)(maps, gamma=gamma, name="layer", **more)
    path = tmp_path / "model-symbol.json"
    mx.sym.FullyConnected(maps, num_hidden=8, name="fc1").save(str(path))
    message = "takes a parameter from the image or another" if kind == "computed" else "shares"
    with pytest.raises(DataError, match=f"'layer' {message}"):
        read_graph(path)


def reshaped(folder: Path, shape: str) -> Path:
    path = write(folder, (0, -1))
    return changed(path, lambda graph: graph["nodes"][1]["attrs"].update(shape=shape))


@pytest.mark.parametrize(
    "shape", ["(-5, -7)", "(-1, -1)", "(0, -4, 0, -1)", "(-2, -1)", "(65536, 65536, -1)", "(0, 0)"]
)
def test_a_reshape_that_would_end_the_process_is_one_line(tmp_path: Path, shape: str) -> None:
    """MXNet divides by a product of sizes that is 0, or writes beyond the end of a shape."""
    path = reshaped(tmp_path, shape)
    with pytest.raises(DataError) as caught:
        infer_shapes(read_graph(path), (4, 4), path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("count", "message"), [(0, "no inputs instead of 3"), (1, "1 inputs instead of 3"), (4, "4 in")]
)
def test_wrong_numbers_of_inputs_are_refused(tmp_path: Path, count: int, message: str) -> None:
    path = changed(
        write(tmp_path, (0, -1)),
        lambda graph: graph["nodes"][4].update(inputs=[[1, 0, 0]] * count),
    )
    with pytest.raises(DataError, match=f"the operator 'fc1' has {message}"):
        read_graph(path)


def test_a_graph_of_mxnet_0_8_has_no_statistics_among_its_inputs(tmp_path: Path) -> None:
    path = tmp_path / "model-symbol.json"
    maps = mx.sym.BatchNorm(mx.sym.var("data"), name="norm")
    mx.sym.FullyConnected(maps, num_hidden=8, name="fc1").save(str(path))

    def as_before(graph: dict[str, Any]) -> None:
        del graph["attrs"]
        (norm,) = [node for node in graph["nodes"] if node["op"] == "BatchNorm"]
        del norm["inputs"][3:]

    path = changed(path, as_before)
    shapes = infer_shapes(read_graph(path), (4, 4), path)
    assert shapes["norm_moving_mean"] == shapes["norm_gamma"] == (3,)
    changed(path, lambda graph: graph.update(attrs={"mxnet_version": ["int", 10901]}))
    with pytest.raises(DataError, match="'norm' has 3 inputs instead of 5"):
        read_graph(path)


def test_only_graphs_unlike_our_own_are_tried_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def ask(module: str, header: dict[str, Any], content: bytes, memory: int) -> str:
        asked.append(module)
        return "it ends the process that tries it out (SIGFPE)"

    monkeypatch.setattr("runtime.untrusted.child.ask", ask)
    path = tmp_path / "model-symbol.json"
    maps = mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=2)
    mx.sym.FullyConnected(maps, num_hidden=8, name="fc1").save(str(path))
    assert infer_shapes(read_graph(path), (4, 4), path)["fc1_weight"] == (8, 8)
    assert asked == []
    path = write(tmp_path, (0, -1))
    with pytest.raises(DataError, match=r"model-symbol.json is refused: it ends .* \(SIGFPE\)"):
        infer_shapes(read_graph(path), (4, 4), path)
    assert asked == ["backbones.trial"]


@pytest.mark.parametrize("name", ["", "a\x1b[2J", "a\nb", "\ud800"])
def test_a_name_that_a_terminal_would_obey_is_refused(tmp_path: Path, name: str) -> None:
    path = changed(write(tmp_path, (0, -1)), lambda graph: graph["nodes"][1].update(name=name))
    with pytest.raises(DataError, match="node 1 has no name") as caught:
        read_graph(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["flat_output", "flat_output0", "fc1_weight"])
def test_a_parameter_with_the_name_of_another_tensor_is_refused(tmp_path: Path, name: str) -> None:
    """The shape of one would be taken for that of the other, which hides a damaged Reshape."""
    # Node 3 is the bias of fc1.
    path = changed(write(tmp_path, (0, -1)), lambda graph: graph["nodes"][3].update(name=name))
    with pytest.raises(DataError, match="two of its tensors have the same name"):
        read_graph(path)


def test_attributes_are_not_read_anew_for_each_use(tmp_path: Path) -> None:
    """1,280 entries by 100,000 attributes took minutes."""
    attributes = {"num_outputs": "64", **{f"a{number}": "1" for number in range(100_000)}}
    entries = [[1, output, 0] for output in range(64)]
    counted = {"op": "Concat", "inputs": entries, "attrs": {"num_args": "64"}}
    last = {"op": "add_n", "name": "fc1", "attrs": {"num_args": "20"}}
    nodes = [
        {"op": "null", "name": "data", "inputs": []},
        {"op": "SliceChannel", "name": "s", "inputs": [[0, 0, 0]], "attrs": attributes},
        *({**counted, "name": f"c{number}"} for number in range(20)),
        {**last, "inputs": [[2 + number, 0, 0] for number in range(20)]},
    ]
    path = tmp_path / "model-symbol.json"
    path.write_text(json.dumps({"nodes": nodes}))
    began = time.monotonic()
    with pytest.raises(DataError, match="node 's' has the attribute 'a0', which this reader"):
        read_graph(path)
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("count", ["", "0", "65", "9" * 5000, 2])
def test_a_number_of_outputs_out_of_range_is_refused(tmp_path: Path, count: object) -> None:
    path = changed(
        write(tmp_path, (0, -1)),
        lambda graph: graph["nodes"][1].update(op="split", attrs={"num_outputs": count}),
    )
    with pytest.raises(DataError, match="is no number from 1 to 64"):
        read_graph(path)
