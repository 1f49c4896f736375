"""The graph of a checkpoint (``-symbol.json``), checked before MXNet sees it.

A graph can name any operator of MXNet, with any attributes: some call back through an address that
an attribute holds, some divide by a stride of zero, and MXNet believes the numbers of inputs and
outputs. Graphs come from strangers. So the file is read as plain JSON, and what is handed to MXNet
is made anew of it: the nodes on the way from ``data`` to the embedding, of the operators that face
networks are made of, with attributes that are in range. What lies beyond the embedding (the
classifier, a loss of somebody's own) is not looked at.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from backbones.graph.nodes import Node, first_shapes, to_json
from runtime.errors import DataError
from runtime.mxnet import mx

INPUT, OUTPUT_NODE = "data", "fc1"
_NO_PATH = (
    f"there is no path from {INPUT!r} to '{OUTPUT_NODE}_output', under which names the input and "
    "the embedding are looked for; give them these names"
)
_MAX_BYTES = 1 << 26
_MAX_NODES = 20_000
_MAX_TEXT = 256
_MAX_INPUTS = 64
_LARGEST_VERSION = 20_000
# Elements of one result for one image; more does not fit where a batch shall fit, too.
_MAX_ELEMENTS = 1 << 28

OPERATORS = frozenset(
    """
    Activation BatchNorm BlockGrad Cast Concat Convolution Dropout ElementWiseSum Flatten
    FullyConnected InstanceNorm L2Normalization LayerNorm LeakyReLU Pad Pooling Reshape SliceChannel
    SwapAxis _contrib_AdaptiveAvgPooling2D _copy add_n cast clip concat flatten hard_sigmoid
    identity null pad relu reshape sigmoid slice slice_axis split swapaxes tanh tile transpose

    abs exp log max mean min negative rsqrt sqrt square sum

    _Div _DivScalar _Maximum _MaximumScalar _Minimum _MinimumScalar _Minus _MinusScalar _Mul
    _MulScalar _Plus _PlusScalar _Power _PowerScalar _RDivScalar _RMinusScalar _div _div_scalar
    _maximum _maximum_scalar _minimum _minimum_scalar _minus _minus_scalar _mul _mul_scalar _plus
    _plus_scalar _power _power_scalar _rdiv_scalar _rminus_scalar broadcast_add broadcast_div
    broadcast_maximum broadcast_minimum broadcast_minus broadcast_mul broadcast_plus broadcast_power
    broadcast_sub elemwise_add elemwise_div elemwise_mul elemwise_sub
    """.split()
)
"""What a graph may be made of; pure functions of their inputs, all of them.

Layers and changes of shape, of which InsightFace has published networks since 2017; sums and the
like; and arithmetic, also under the names that earlier versions of MXNet wrote.
"""

_SPLITS = {"SliceChannel": "num_outputs", "split": "num_outputs"}
_MAX_SPLITS = 64
_RESHAPES = ("Reshape", "reshape")
# Their further inputs are parameters, whose shapes MXNet takes for granted.
_LAYERS = frozenset("BatchNorm Convolution FullyConnected InstanceNorm LayerNorm LeakyReLU".split())


class _Damage(Exception):
    """What is wrong with the file."""


class _UnknownForm(Exception):
    """What a sound file may have, but this reader does not know; with a remedy."""


def read_graph(path: Path) -> Any:
    """Read the graph up to the embedding.

    Returns:
        A symbol with the input ``data`` and the one output ``fc1_output``.

    Raises:
        DataError: there is no such file, it is no graph, or not one of a face network that this
            reader knows.
    """
    if not path.is_file():
        raise DataError(
            f"{path} does not exist; give the prefix of a checkpoint, e.g. models/run/model"
        )
    try:
        return mx.sym.load_json(json.dumps(_checked(_read_json(path))))
    except _Damage as damage:
        raise DataError(
            f"{path} is no MXNet graph of a face network ({damage}); copy the checkpoint again"
        ) from None
    except _UnknownForm as form:
        raise DataError(f"{path}: {form}") from None
    # A ValueError comes up where MXNet's message quotes a byte that is no UTF-8.
    except (mx.MXNetError, ValueError) as error:
        raise DataError(f"{path} is no MXNet graph ({_first_line(error)}); copy it again") from None


def infer_shapes(
    symbol: Any, image_size: tuple[int, int], path: Path
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all parameters and auxiliary states of a graph.

    Raises:
        DataError: its nodes do not fit together, or not with every size of batch, or results would
            not fit into any memory.
    """
    found, outputs = _inferred(symbol, (1, 3, *image_size), path)
    if not found or any(not shape or min(shape) < 1 for shape in [*found, *outputs]):
        raise DataError(f"{path} leaves the shapes of its parameters open; copy it again")
    if max(math.prod(shape) for shape in [*found, *outputs]) > _MAX_ELEMENTS:
        raise DataError(f"{path} has results of more than {_MAX_ELEMENTS:,} numbers for one image")
    _refuse_other_sizes(symbol, (1, 3, *image_size), path)
    of_two, results = _inferred(symbol, (2, 3, *image_size), path)
    names = symbol.list_arguments() + symbol.list_auxiliary_states()
    shapes, others = dict(zip(names, found)), dict(zip(names, of_two))
    del shapes[INPUT]
    others.pop(INPUT, None)
    if shapes != others or not results or results[-1][0] != 2:
        raise DataError(f"{path} is a graph for one size of batch alone; export it anew")
    return shapes


def _refuse_other_sizes(symbol: Any, batch_shape: tuple[int, ...], path: Path) -> None:
    """Refuse a Reshape to more or fewer numbers: MXNet would read beyond its input."""
    shapes, nodes = first_shapes(symbol, batch_shape), to_json(symbol)["nodes"]
    for node in nodes:
        if node["op"] in _RESHAPES:
            # All outputs of a node have one shape, see _SPLITS.
            source = nodes[node["inputs"][0][0]]
            given, made = (math.prod(shapes[one["name"]]) for one in (source, node))
            if given != made:
                raise DataError(
                    f"{path} is damaged: {node['name']!r} makes {made} numbers of {given}; copy it "
                    "again"
                )


def _inferred(
    symbol: Any, batch_shape: tuple[int, ...], path: Path
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """The shapes of all inputs, and of all results with the embedding as the last."""
    try:
        arguments, outputs, auxiliary = symbol.get_internals().infer_shape(**{INPUT: batch_shape})
    except (mx.MXNetError, ValueError) as error:
        _, _, height, width = batch_shape
        raise DataError(
            f"{path} does not take images of {height} x {width} pixels ({_first_line(error)})"
        ) from None
    return (arguments or []) + (auxiliary or []), outputs or []


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip()[:_MAX_TEXT] if lines else type(error).__name__


def _read_json(path: Path) -> Any:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise _Damage(f"it has more than {_MAX_BYTES:,} bytes")
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise _Damage(f"it cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise _Damage("it is no JSON") from None


def _checked(graph: Any) -> dict[str, Any]:
    """Return a new graph of what leads to the embedding, in the order of the file."""
    nodes = graph.get("nodes") if isinstance(graph, dict) else None
    if not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
        raise _Damage("it has no list of nodes")
    if len(nodes) > _MAX_NODES:
        raise _Damage(f"it has {len(nodes)} nodes, more than {_MAX_NODES}")
    kept = _ancestors(nodes, _place_of_output(nodes))
    numbers = {place: number for number, place in enumerate(kept)}
    checked = [_checked_node(nodes, place, numbers) for place in kept]
    _tell_operators_apart(checked)
    names = [node["name"] for node in checked]
    if len(set(names)) != len(names):
        raise _Damage("two of its parameters have the same name")
    variables = [number for number, node in enumerate(checked) if node["op"] == "null"]
    if INPUT not in (names[number] for number in variables):
        raise _UnknownForm(_NO_PATH)
    _check_parameters(checked)
    new = {"nodes": checked, "arg_nodes": variables, "heads": [[len(checked) - 1, 0, 0]]}
    version = _version(graph)
    return new if version is None else {**new, "attrs": {"mxnet_version": ["int", version]}}


def _tell_operators_apart(nodes: list[Node]) -> None:
    """Give operators names of their own: a Gluon block that is called twice leaves each name twice.

    The last node, the embedding, keeps its name, and so do parameters.
    """
    taken = {node["name"] for node in nodes if node["op"] == "null"}
    numbers: Counter[str] = Counter()
    for node in nodes[:-1]:
        name = node["name"]
        if node["op"] == "null":
            continue
        while node["name"] in taken:
            numbers[name] += 1
            node["name"] = f"{name}_call{numbers[name]}"
        taken.add(node["name"])


def _check_parameters(nodes: list[Node]) -> None:
    """Refuse a layer whose parameter is made of the image, or a BatchNorm that shares one."""
    uses = Counter(entry[0] for node in nodes for entry in node["inputs"])
    made_of_images: set[int] = set()
    for number, node in enumerate(nodes):
        found = [entry[0] in made_of_images for entry in node["inputs"]]
        if node["op"] in _LAYERS and any(found[1:]):
            raise _UnknownForm(
                f"{node['name']!r} takes a parameter from the image, which is refused since MXNet "
                "believes its shape; compute it by broadcast_mul and broadcast_add instead"
            )
        if node["op"] == "BatchNorm" and any(uses[entry[0]] > 1 for entry in node["inputs"][1:]):
            raise _UnknownForm(
                f"{node['name']!r} shares a parameter, which no BatchNorm may here; give it its own"
            )
        if node["name"] == INPUT or any(found):
            made_of_images.add(number)


def _version(graph: dict[str, Any]) -> int | None:
    """The version that wrote the file, by which MXNet mends old graphs; None before 0.9."""
    attributes = graph.get("attrs")
    entry = attributes.get("mxnet_version") if isinstance(attributes, dict) else None
    if entry is None:
        return None
    if isinstance(entry, list) and len(entry) == 2 and isinstance(entry[1], int):
        if 0 < entry[1] <= _LARGEST_VERSION:
            return entry[1]
    raise _Damage("it was written by no known version of MXNet")


def _place_of_output(nodes: list[Node]) -> int:
    places = [
        place
        for place, node in enumerate(nodes)
        if node.get("name") == OUTPUT_NODE and node.get("op") != "null"
    ]
    if len(places) != 1:
        raise _UnknownForm(_NO_PATH)
    return places[0]


def _ancestors(nodes: list[Node], last: int) -> list[int]:
    """Return the places of a node and all that it is computed of; inputs come before their use."""
    wanted = {last}
    for place in range(last, -1, -1):
        if place in wanted:
            wanted.update(source for source, _, _ in _inputs(nodes, place))
    return sorted(wanted)


def _inputs(nodes: list[Node], place: int) -> list[tuple[int, int, int]]:
    inputs = nodes[place].get("inputs")
    if not isinstance(inputs, list) or len(inputs) > _MAX_INPUTS:
        raise _Damage(f"node {place} has no list of inputs")
    return [_input(nodes, place, entry) for entry in inputs]


def _input(nodes: list[Node], place: int, entry: Any) -> tuple[int, int, int]:
    """Return which node an input comes from, which of its outputs it is, and its version."""
    if not (isinstance(entry, list) and 2 <= len(entry) <= 3):
        raise _Damage(f"node {place} has an input of no known form")
    source, output, version = (*entry, 0)[:3]
    if not all(type(number) is int for number in (source, output, version)):
        raise _Damage(f"node {place} has an input of no known form")
    if not 0 <= source < place or version not in (0, 1):
        raise _Damage(f"node {place} has an input that comes from nowhere")
    if not 0 <= output < _outputs(nodes[source]):
        raise _Damage(f"node {place} takes output {output} of node {source}, which has none")
    return source, output, version


def _outputs(node: Node) -> int:
    attribute = _SPLITS.get(str(node.get("op")))
    return 1 if attribute is None else _whole(_attributes(node).get(attribute), 1, _MAX_SPLITS)


def _checked_node(nodes: list[Node], place: int, numbers: dict[int, int]) -> Node:
    node = nodes[place]
    operator, name = node.get("op"), node.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_TEXT:
        raise _Damage(f"node {place} has no name")
    if "$" in name:
        # MXNet puts it between a name and an attribute, and takes them apart there.
        raise _Damage(f"the name {name!r} has a $")
    if not isinstance(operator, str):
        raise _Damage(f"node {name!r} has no operator")
    if operator not in OPERATORS:
        raise _UnknownForm(
            f"node {name!r} is of the operator {operator!r:.80}, which this reader does not know; "
            "if that is a function of its inputs alone, add it to OPERATORS in "
            "backbones/graph/symbol_file.py"
        )
    inputs = [
        [numbers[source], output, version] for source, output, version in _inputs(nodes, place)
    ]
    if operator == "null":
        if inputs:
            raise _Damage(f"the variable {name!r} has inputs")
        # What the attributes of a variable say is how to train it, which is not the file's to say.
        return {"op": operator, "name": name, "inputs": []}
    attributes = _attributes(node)
    for key, value in attributes.items():
        _check_attribute(name, key, value)
    if operator.lower() == "cast":
        # MXNet has no float16 on a CPU; and what is exported is the graph in float32.
        attributes["dtype"] = "float32"
    return {"op": operator, "name": name, "attrs": attributes, "inputs": inputs}


def _attributes(node: Node) -> dict[str, str]:
    """Return a node's attributes, which older versions keep in two places."""
    merged: dict[str, str] = {}
    for place in ("param", "attr", "attrs"):
        found = node.get(place, {})
        if not isinstance(found, dict):
            raise _Damage(f"the attributes of node {node.get('name')!r:.80} are none")
        for key, value in found.items():
            if not (isinstance(value, str) and len(key) <= _MAX_TEXT >= len(value)):
                raise _Damage(f"node {node.get('name')!r:.80} has an attribute that is no text")
            if not key.startswith("__"):
                merged[key] = value
    return merged


def _whole(value: Any, least: int, most: int) -> int:
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        if least <= int(value) <= most:
            return int(value)
    raise _Damage(f"{value!r:.80} is no number from {least} to {most}")


def _numbers(least: int, most: int, count: int = 3) -> Callable[[str], bool]:
    """Return a test for a number, or a tuple or list of up to ``count``, within bounds."""
    number = r"\d{1,7}L?"
    # As in 3, (3, 3) or, from Python 2, [3L, 3L]; an empty tuple is MXNet's word for the default.
    form = re.compile(
        rf"{number}|[(\[] *(?:{number}(?:, *{number}){{0,{count - 1}}},? *)?[)\]]", re.ASCII
    )

    def holds(value: str) -> bool:
        found = re.findall(r"\d+", value)
        return bool(form.fullmatch(value)) and all(least <= int(x) <= most for x in found)

    return holds


def _one_of(*words: str) -> Callable[[str], bool]:
    """Return a test for a word."""
    return frozenset(words).__contains__


# Places in a tensor of at most six dimensions; None stands for an end.
_PLACE = r"(?:None|-?\d{1,7}L?)"
_PLACES = re.compile(
    rf"{_PLACE}|[(\[] *(?:{_PLACE}(?:, *{_PLACE}){{0,5}},? *)?[)\]]", re.ASCII
).fullmatch


def _places(value: str) -> bool:
    return bool(_PLACES(value))


def _steps(value: str) -> bool:
    """Whether no step is 0, by which MXNet divides."""
    return _places(value) and all(map(int, re.findall(r"\d+", value)))


_ATTRIBUTES = {
    "kernel": _numbers(1, 1024),
    "stride": _numbers(1, 1024),
    "dilate": _numbers(1, 1024),
    "pad": _numbers(0, 1024),
    "pad_width": _numbers(0, 1024, 10),
    # Of Pad, Dropout and L2Normalization. A Pad that reflects may read beyond its input.
    "mode": _one_of("constant", "edge", "training", "always", "instance", "channel", "spatial"),
    "output_size": _numbers(1, 1024, 2),
    "reps": _numbers(1, 1 << 17, 6),
    "dtype": _one_of("float16", "float32"),
    "begin": _places,
    "end": _places,
    "step": _steps,
    "num_filter": _numbers(1, 1 << 17),
    "num_hidden": _numbers(1, 1 << 17),
    "num_group": _numbers(1, 1 << 17),
    "num_args": _numbers(1, _MAX_INPUTS),
    "num_outputs": _numbers(1, _MAX_SPLITS),
}
"""Where MXNet divides by a number, reads at it, or makes memory of it, what it may be."""


def _check_attribute(node: str, key: str, value: str) -> None:
    holds = _ATTRIBUTES.get(key)
    if holds is not None and not holds(value):
        raise _Damage(f"node {node!r} has {key} = {value!r:.80}")
