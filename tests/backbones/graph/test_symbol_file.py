import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from backbones import trial
from backbones.graph.symbol_file import infer_shapes, read_graph
from backbones.inference import HostInference
from backbones.network import Network
from runtime.errors import DataError
from runtime.mxnet import mx
from runtime.untrusted import child
from tests.backbones.passes import DATA, act, conv, norm

SHARED = mx.sym.var("w")
FLAT = mx.sym.reshape(DATA, shape=(0, -1), name="flat")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model-symbol.json"


def save(path: Path, maps: Any, hidden: int = 8) -> Path:
    mx.sym.FullyConnected(maps, num_hidden=hidden, name="fc1").save(str(path))
    return path


def shapes_of(path: Path, maps: Any, side: int = 4, channels: int = 3, **settings: int) -> Any:
    save(path, maps, **settings)
    assert path.stat().st_size < 20_000
    return infer_shapes(read_graph(path), (side, side), path, channels)


def changed(path: Path, change: Callable[[Any], object]) -> Path:
    graph = json.loads(path.read_text())
    change(graph)
    path.write_text(json.dumps(graph))
    return path


def wide(**attributes: Any) -> Any:
    return conv(DATA, "wide", 2, 1, **attributes)


@pytest.mark.parametrize("name", ["BatchNorm", "LeakyReLU", "InstanceNorm", "LayerNorm"])
def test_parameters_whose_shape_mxnet_does_not_check_are_refused(path: Path, name: str) -> None:
    def layer(maps: Any, gamma: Any) -> Any:
        more = {"act_type": "prelu"} if name == "LeakyReLU" else {}
        return getattr(mx.sym, name)(maps, name="layer", gamma=gamma, **more)

    maps = wide(weight=SHARED, num_filter=4, no_bias=True)
    for graph, message in (
        (layer(maps, DATA), "takes a parameter from the image"),
        (layer(maps, mx.sym.Flatten(SHARED)), "takes a parameter .* or another"),
        (layer(maps, SHARED), "shares a parameter"),
        (mx.sym.broadcast_mul(layer(DATA + 1, SHARED), SHARED), "shares a parameter"),
    ):
        with pytest.raises(DataError, match=f"'layer' {message}"):
            read_graph(save(path, graph))


def of_node(index: int, **values: object) -> Callable[[Any], object]:
    """Nodes: data, flat, fc1_weight, fc1_bias, fc1."""
    return lambda graph: graph["nodes"][index].update(values)


SAME_NAMES = "flat_output", "flat_output0", "fc1_weight"
TWO = {"num_outputs": "2"}


def split(count: object) -> Callable[[Any], object]:
    return of_node(1, op="split", attrs={"num_outputs": count})


def concat(axis: str) -> Callable[[Any], object]:
    return of_node(1, op="Concat", attrs={"num_args": "1", "dim": axis})


def inputs(*first: object) -> Callable[[Any], object]:
    return of_node(4, inputs=[*first, [2, 0, 0], [3, 0, 0]])


@pytest.mark.parametrize(("change", "message"), [
    (lambda graph: graph.clear(), "it has no list of nodes"),
    (lambda graph: graph.update(nodes=[1]), "it has no list of nodes"),
    (lambda graph: graph.update(nodes=graph["nodes"] * 5000), "it has 25000 nodes, more than"),
    (of_node(4, inputs=3), "node 4 has no list of inputs"),
    (of_node(4, inputs=[[1]]), "node 4 has an input of no known form"),
    *((inputs(entry), "no earlier node") for entry in ([-1, 0, 0], [4, 0, 0], [1, 0, 2])),
    *((inputs([1, i, 0]), "'fc1' takes an output that 'flat' lacks") for i in (1, -1)),
    (inputs([1, 0, 0], [1, 0, 0]), "the operator 'fc1' has 4 inputs instead of 3"),
    # Inferring the shapes of a BatchNorm without inputs crashes MXNet.
    (of_node(2, op="BatchNorm", attrs={}), "the operator 'fc1_weight' has 0 inputs"),
    (of_node(2, inputs=[[0, 0, 0]]), "the variable 'fc1_weight' has inputs"),
    # Attributes that MXNet does not read of this operator.
    (of_node(1, op="relu", attrs={"no_bias": "1"}, inputs=[]), "'flat' has 0 inputs instead of 1"),
    (
        lambda graph: [one(graph) for one in (of_node(1, op="relu", attrs=TWO), inputs([1, 1, 0]))],
        "'fc1' takes an output that 'flat' lacks",
    ),
    (of_node(1, op=3), "node 'flat' has no operator"),
    (of_node(1, attrs=3), "the attributes of node 'flat' are no table"),
    (of_node(1, attrs={"shape": 3}), "node 'flat' has an attribute that is no text"),
    # MXNet would split the name; a terminal would obey it.
    (of_node(1, name="fl$at"), r"has a \$"),
    *((of_node(1, name=name), "node 1 has no name") for name in ("", "a\x1b[2J", "\ud800")),
    # The shape of one would be taken for that of the other, which hides a damaged Reshape.
    *((of_node(3, name=name), "have the same name") for name in SAME_NAMES),
    # Two outputs have the name of the embedding.
    (of_node(1, name="fc1"), "there is no path from 'data' to 'fc1_output'"),
    *((split(count), "has num_outputs = ") for count in ("", "0", "65")),
    *((split(count), "has an attribute that is no text") for count in ("9" * 5000, 2)),
    *((concat(axis), f"'flat' has dim = '{axis}'") for axis in ("-3", "6")),
])
def test_damaged_graphs_are_refused_in_one_line(path, change, message) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read_graph(changed(save(path, FLAT), change))
    assert str(path) in str(caught.value) and str(caught.value).isprintable()


@pytest.mark.parametrize(("shape", "message"), [
    ("(1, -1)", "for one batch size only"),
    ("(0, 8)", "is damaged: 'flat' reshapes 48 elements to 8"),
    # MXNet divides by a product of sizes that is 0, or writes beyond the end of a shape; of the
    # last one it ends the process that infers it, which is another one.
    *((one, "model-symbol.json") for one in ("(-5, -7)", "(-1, -1)", "(0, -4, 0, -1)")),
    *((one, "model-symbol.json") for one in ("(-2, -1)", "(0, 0)", "(65536, 65536, -1)")),
])
def test_reshapes_that_would_end_the_process(path, shape, message, monkeypatch) -> None:
    if not shape.startswith("(65536"):
        monkeypatch.setattr("runtime.untrusted.child.ask", lambda *_: None)
    changed(save(path, FLAT), of_node(1, attrs={"shape": shape}))
    with pytest.raises(DataError, match=message) as caught:
        infer_shapes(read_graph(path), (4, 4), path)
    assert "\n" not in str(caught.value)


def test_graphs_that_are_read_and_those_that_are_tried_out(path: Path, monkeypatch) -> None:
    ask = Mock(return_value=None)
    monkeypatch.setattr("runtime.untrusted.child.ask", ask)
    shapes = {"fc1_weight": (8, 48), "fc1_bias": (8,)}
    assert shapes_of(path, mx.sym.Concat(DATA, name="one")) == shapes
    assert shapes_of(path, wide(kernel=(3, 3)))["fc1_weight"] == (8, 8)
    ask.assert_not_called()
    assert shapes_of(path, FLAT) == shapes
    assert ask.call_args.args[0] == "backbones.trial"
    assert shapes_of(path, mx.sym.mean(DATA, axis=1), channels=4096)
    read_graph(save(path, wide(pad=(1024, 0))))
    one_row = mx.sym.min(DATA, axis=2)
    window = {"kernel": (2, 2), "pad": (0, 1), "global_pool": True, "name": "pool"}
    for maps, channels, message in (
        (wide(pad=(1025, 0)), 3, "has pad = '.1025, 0.'"),
        (wide(kernel=(9, 9)), 3, r"does not take images of 4 x 4 pixels \(.*wide"),
        (mx.sym.Pooling(one_row, **window), 3, "'pool' pools 3 dimensions with a kernel of 2"),
        *((DATA, count, "takes images of .* channels") for count in (0, 4097)),
    ):
        with pytest.raises(DataError, match=message):
            shapes_of(path, maps, channels=channels)
    ask.return_value = "it ends the process that tries it out (SIGFPE)"
    with pytest.raises(DataError, match=r"model-symbol.json is refused: it ends .* \(SIGFPE\)"):
        shapes_of(path, FLAT)


def test_a_sound_graph_is_run_and_one_that_ends_mxnet_is_a_reason(path: Path) -> None:
    x = act(norm(conv(DATA, "conv", 4, pad=(0, 0), no_bias=True)), "prelu")
    sound = mx.sym.Reshape(mx.sym.L2Normalization(x, mode="channel"), shape=(0, -1))
    reason = "it ends the process that tries it out (SIGFPE)"
    for maps, expected in ((sound, None), (mx.sym.Reshape(DATA, shape=(-4, 0, -1)), reason)):
        header = {"path": path.name, "image_shape": (3, 8, 8)}
        content = save(path, maps).read_bytes()
        assert child.ask("backbones.trial", header, content, child.GIGABYTE) == expected


@pytest.mark.parametrize("channels", [3, 1])
def test_a_trial_computes_every_form_that_a_run_may_compute(channels, monkeypatch) -> None:
    x = mx.sym.Flatten(act(conv(DATA, "conv", 4), "prelu"))
    header = {"path": "a", "image_shape": (channels, 6, 6)}
    computed: list[Any] = []
    monkeypatch.setattr(Network, "extract", lambda own, images: computed.append(own) or images)
    monkeypatch.setattr(HostInference, "__call__", lambda own, images: computed.append(images))
    trial.run_once(header, x.tojson().encode())
    *networks, images = computed
    assert len(networks) == 2 and images.shape == (2, channels, 6, 6)
    assert len({str(network._trained.tojson()) for network in networks}) == 2


def test_attributes_are_not_read_anew_for_each_use(path: Path) -> None:
    """1,280 entries by 100,000 attributes took minutes."""
    parts = [*mx.sym.SliceChannel(DATA, num_outputs=64, name="s")]
    save(path, mx.sym.add_n(*(mx.sym.Concat(*parts) for _ in range(20))))
    attributes = {"num_outputs": "64", **{f"a{number}": "1" for number in range(100_000)}}
    changed(path, of_node(1, attrs=attributes))
    began = time.monotonic()
    with pytest.raises(DataError, match="node 's' has the attribute 'a0', which this reader"):
        read_graph(path)
    assert time.monotonic() - began < 2


def test_large_graphs_are_tried_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Mock(return_value="it needs more than 1024 MiB of memory")
    monkeypatch.setattr("runtime.untrusted.child.ask", ask)
    maps = mx.sym.Pooling(DATA, kernel=(2, 2), stride=(2, 2), pool_type="avg")
    mean = mx.sym.mean(maps, axis=1, keepdims=True)
    # Each is 6,422,528 elements.
    chain = x = conv(DATA, "x", 512, 1, no_bias=True)
    for _ in range(19):
        chain = mx.sym.relu(chain)
    assert shapes_of(path, mx.sym.mean(chain, axis=1), 112)
    # A weight that many layers share is small.
    shared = {"weight": mx.sym.var("shared")}

    def layer(x: Any, name: str, **settings: Any) -> Any:
        return conv(x, name, 8192, 1, no_bias=True, **settings)

    x = layer(mx.sym.Pooling(DATA, kernel=(4, 4), stride=(4, 4), pool_type="max"), "first")
    for number in range(4):
        x = layer(x, f"c{number}", **shared)
    once = layer(x, "c4", **shared)
    assert shapes_of(path, mx.sym.mean(once, axis=1), 112)
    ask.assert_not_called()
    # Multiplications of groups of channels, and of pooling, count as 16.
    pooled = mx.sym.Pooling(x, kernel=(15, 15), pad=(7, 7), pool_type="max")
    for _ in range(3):
        pooled = mx.sym.Pooling(pooled, kernel=(15, 15), pad=(7, 7), pool_type="max")
    for many in (
        mx.sym.tile(mean, reps=(1, 50_000, 1, 1)),
        mx.sym.relu(mx.sym.relu(chain)),
        layer(once, "c5", **shared),
        layer(x, "grouped", num_group=8),
        pooled,
    ):
        with pytest.raises(DataError, match="model-symbol.json is refused: it needs more than"):
            shapes_of(path, mx.sym.mean(many, axis=1), 112)


def test_a_trial_ends_what_takes_too_much(path: Path) -> None:
    tiled = mx.sym.mean(mx.sym.tile(DATA, reps=(1, 50_000, 1, 1)), axis=1)
    with pytest.raises(DataError, match="model-symbol.json is refused: it needs more than 1024"):
        shapes_of(path, tiled, 112)
