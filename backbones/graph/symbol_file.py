"""The graph of a checkpoint (``-symbol.json``), checked before MXNet reads it.

A graph can name any operator of MXNet, with any attributes, and MXNet does not check the numbers of
inputs and outputs: a damaged or malicious file crashes the process. So the file is read as plain
JSON, and MXNet gets a new graph made from it: the nodes on the path from ``data`` to the embedding,
with the operators and attributes of ``backbones.graph.operators``. Nodes after the embedding (the
classifier, a loss) are ignored.

A graph of three kilobytes can ask for any memory and any time, and some operators crash MXNet. So a
graph with operators that this project's networks do not have, or one that is larger than these, is
first run in another process (``backbones.trial``), which has limits of time and memory.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backbones.graph import nodes as graph_nodes
from backbones.graph import operators
from backbones.graph.nodes import Entry, Node, Shape, first_shapes, from_json, moved, to_json
from backbones.graph.operators import GraphError
from runtime.errors import DataError
from runtime.files import read_file
from runtime.mxnet import mx
from runtime.untrusted import child

INPUT, OUTPUT_NODE, LOGITS_NODE = "data", "fc1", "output"
_NO_PATH = (
    f"there is no path from {INPUT!r} to '{OUTPUT_NODE}_output', the names of the input and the "
    "embedding; give them these names"
)
# MXNet compares the shapes of their parameters with those of other uses.
_SHARING = ("Convolution", "FullyConnected")
_MAX_BYTES = 1 << 24
_MAX_NODES = 20_000
# MXNet gets every graph as one of 1.9.1, whatever version the file names.
_VERSION = 10_901
_MAX_CHANNELS = 1 << 12
# Elements of all results for one image, and multiplications, of a graph that is not tried out. r100
# has 30 million and 12.1 billion.
_MAX_RESULTS, _MAX_PRODUCTS = 1 << 27, 1 << 38
# oneDNN's kernels for groups of channels and for pooling are not those of its products.
_COST_OF_OTHERS = 16


def read_graph(path: Path, outputs: Sequence[str] = (OUTPUT_NODE,)) -> Any:
    """Read the graph from the input ``data`` to the embedding, its one output ``fc1_output``.

    Args:
        path: the file.
        outputs: names of nodes, of which the first that the graph has gives the output: a
            classifier's is ``LOGITS_NODE``.

    Raises:
        DataError: the file is missing, is no graph, or is one that this reader does not support.
    """
    if not os.path.isfile(path):
        raise DataError(
            f"{path} does not exist; give the prefix of a checkpoint, e.g. models/run/model"
        )
    try:
        return _checked(_read_json(path), outputs)
    # MXNet's message may quote a byte that is no UTF-8, which is a ValueError.
    except (GraphError, mx.MXNetError, ValueError) as error:
        raise DataError(
            f"{path} has no graph of a face network that can be used "
            f"({child.one_line(str(error))}); copy the checkpoint again, or give another"
        ) from None


def infer_shapes(
    symbol: Any, image_size: tuple[int, int], path: Path, channels: int = 3
) -> dict[str, Shape]:
    """Return the shapes of all parameters and auxiliary states of a graph.

    Raises:
        DataError: as ``check_shapes``; or the graph needs too much time or memory, or ends MXNet.
    """
    if not 0 < channels <= _MAX_CHANNELS:
        raise DataError(f"{path} takes images of {channels:,} channels; copy its parameters again")
    batch_shape = (1, channels, *image_size)
    nodes = to_json(symbol)["nodes"]
    if all(map(operators.is_common, nodes)):
        shapes = check_shapes(symbol, batch_shape, path)
        if not _is_large(nodes, first_shapes(symbol, batch_shape)):
            return shapes
    # It may crash MXNet, or take too much time or memory.
    header = {"path": str(path), "image_shape": batch_shape[1:]}
    content = json.dumps(to_json(symbol)).encode()
    reason = child.ask("backbones.trial", header, content, child.GIGABYTE)
    if reason is not None:
        is_said = reason.startswith(str(path))
        raise DataError(reason if is_said else f"{path} is refused: {reason}")
    return check_shapes(symbol, batch_shape, path)


def check_shapes(symbol: Any, batch_shape: Shape, path: Path) -> dict[str, Shape]:
    """Return the shapes of all parameters and auxiliary states of a graph from a file.

    The batch is one image. MXNet infers the shapes without making the tensors.

    Raises:
        DataError: nodes do not fit together, or only for one batch size, or the output is not
            [b, D].
    """
    found, outputs = _inferred(symbol, batch_shape, path)
    if not found or any(not shape or min(shape) < 1 for shape in [*found, *outputs]):
        raise DataError(f"{path} does not determine the shapes of its parameters; copy it again")
    names = symbol.list_arguments() + symbol.list_auxiliary_states()
    shapes = dict(zip(names, found))
    del shapes[INPUT]
    _check_nodes(to_json(symbol)["nodes"], first_shapes(symbol, batch_shape), path)
    of_two, results = _inferred(symbol, (2, *batch_shape[1:]), path)
    others = dict(zip(names, of_two))
    others.pop(INPUT, None)
    if shapes != others or not results or results[-1][0] != 2:
        raise DataError(f"{path} is a graph for one batch size only; export it again")
    if len(results[-1]) != 2:
        raise DataError(
            f"{path} gives {list(results[-1])} for two images; its output has to be [b, D]: end it "
            "with a Flatten or a FullyConnected"
        )
    return shapes


def _is_large(nodes: list[Node], shapes: dict[str, Shape]) -> bool:
    """Return True if a graph needs much memory, or multiplications at the speed of its kernels."""
    results = products = 0
    for node in nodes:
        if node["op"] == "null":
            continue
        size, per_element = math.prod(shapes[node["name"]]), 1
        if node["op"] in ("Convolution", "FullyConnected"):
            given, kernel = (shapes[nodes[source]["name"]] for source, *_ in node["inputs"][:2])
            per_element = math.prod(kernel[1:])
            if node["op"] == "Convolution" and kernel[1] not in (1, given[1]):
                per_element *= _COST_OF_OTHERS
        elif node["op"] == "Pooling":
            per_element = math.prod(_sides(node)) * _COST_OF_OTHERS
        results += size
        products += size * per_element
    return results > _MAX_RESULTS or products > _MAX_PRODUCTS


def _check_nodes(nodes: list[Node], shapes: dict[str, Shape], path: Path) -> None:
    """Refuse shapes that MXNet does not check.

    It would read beyond the input of a Reshape to more elements, and infers no shape of a global
    pooling, whose kernel may have other dimensions than its maps.
    """
    for node in nodes:
        name, said = node["name"], ""
        # All outputs of a node have one shape.
        given = shapes[nodes[node["inputs"][0][0]]["name"]] if node["inputs"] else ()
        if node["op"].lower() == "reshape" and math.prod(given) != math.prod(shapes[name]):
            said = f"reshapes {math.prod(given)} elements to {math.prod(shapes[name])}"
        sides = _sides(node)
        if node["op"] == "Pooling" and sides and len(given) != 2 + len(sides):
            said = f"pools {len(given)} dimensions with a kernel of {len(sides)}"
        if said:
            raise DataError(f"{path} is damaged: {name!r} {said}; copy it again")


def _sides(node: Node) -> list[int]:
    return [int(side) for side in re.findall(r"\d+", operators.attributes(node).get("kernel", ""))]


def _inferred(symbol: Any, batch_shape: Shape, path: Path) -> tuple[list[Shape], list[Shape]]:
    """Return the shapes of all inputs, and of all results with the embedding as the last."""
    try:
        arguments, outputs, auxiliary = graph_nodes.infer(symbol.get_internals(), batch_shape)
    except (mx.MXNetError, ValueError) as error:
        (_, _, height, width), said = batch_shape, child.one_line(str(error))
        raise DataError(
            f"{path} does not take images of {height} x {width} pixels ({said})"
        ) from None
    return (arguments or []) + (auxiliary or []), outputs or []


def _read_json(path: Path) -> Any:
    try:
        return json.loads(read_file(path, _MAX_BYTES).decode("utf-8"))
    except OSError as error:
        raise GraphError(f"it cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise GraphError("it is no JSON") from None


def _checked(graph: Any, outputs: Sequence[str]) -> Any:
    """Return a new symbol of the nodes that the output depends on, in the order of the file."""
    nodes = graph.get("nodes") if isinstance(graph, dict) else None
    if not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
        raise GraphError("it has no list of nodes")
    if len(nodes) > _MAX_NODES:
        raise GraphError(f"it has {len(nodes)} nodes, more than {_MAX_NODES}")
    indices: dict[int, int] = {}
    checked: list[Node] = []
    for index in _ancestors(nodes, _output_index(nodes, outputs)):
        checked.append(_checked_node(nodes, index, indices, checked))
        indices[index] = len(checked) - 1
    _rename_operators(checked)
    names = [node["name"] for node in checked]
    # MXNet names the outputs of an operator so.
    of_outputs = {f"{name}_output{number}" for name in names for number in ("", "0")}
    if len({*names}) != len(names) or of_outputs.intersection(names):
        raise GraphError("two of its tensors have the same name")
    if not any(node["op"] == "null" and node["name"] == INPUT for node in checked):
        raise GraphError(_NO_PATH)
    _check_parameters(checked)
    heads, version = [[len(checked) - 1, 0, 0]], {"mxnet_version": ["int", _VERSION]}
    return from_json({"nodes": checked, "heads": heads, "attrs": version})


def _rename_operators(nodes: list[Node]) -> None:
    """Make operators' names unique: a Gluon block that is called twice writes each name twice.

    The last node, the embedding, keeps its name, and so do parameters.
    """
    taken = {node["name"] for node in nodes if node["op"] == "null"}
    counts: Counter[str] = Counter()
    for node in nodes[:-1]:
        name = node["name"]
        while node["op"] != "null" and node["name"] in taken:
            counts[name] += 1
            node["name"] = f"{name}_call{counts[name]}"
        taken.add(node["name"])


def _check_parameters(nodes: list[Node]) -> None:
    """Refuse a layer whose parameter is computed, or shared where MXNet does not check its shape.

    A parameter of another shape than the layer's would be read beyond its end.
    """
    uses = Counter(entry[0] for node in nodes for entry in node["inputs"])
    for node in nodes:
        if node["op"] not in operators.LAYERS:
            continue
        parameters = [entry[0] for entry in node["inputs"][1:]]
        if any(nodes[one]["op"] != "null" or nodes[one]["name"] == INPUT for one in parameters):
            raise GraphError(
                f"{node['name']!r} takes a parameter from the image or another operator, which is "
                "refused since MXNet does not check its shape; use broadcast_mul and "
                "broadcast_add instead"
            )
        if node["op"] not in _SHARING and any(uses[one] > 1 for one in parameters):
            raise GraphError(
                f"{node['name']!r} shares a parameter, which is refused for a {node['op']}; give "
                "it its own"
            )


def _output_index(nodes: list[Node], outputs: Sequence[str]) -> int:
    """Return the one operator with the first of these names that operators have."""
    for name in outputs:
        found = [
            index
            for index, node in enumerate(nodes)
            if node.get("name") == name and node.get("op") != "null"
        ]
        if found[1:]:
            break
        if found:
            return found[0]
    raise GraphError(_NO_PATH)


def _ancestors(nodes: list[Node], last: int) -> list[int]:
    """Return the indices of a node and of all that it depends on, in order."""
    wanted = {last}
    for index in range(last, -1, -1):
        if index in wanted:
            wanted.update(entry[0] for entry in _inputs(nodes, index))
    return sorted(wanted)


def _inputs(nodes: list[Node], index: int) -> list[Entry]:
    inputs = nodes[index].get("inputs")
    if not isinstance(inputs, list) or len(inputs) > operators.MAX_INPUTS:
        raise GraphError(f"node {index} has no list of inputs")
    return [_input(index, entry) for entry in inputs]


def _input(index: int, entry: Any) -> Entry:
    """Return a checked input of a node; a version that is not in the file is 0."""
    is_entry = isinstance(entry, list) and 2 <= len(entry) <= 3
    if not is_entry or not all(type(number) is int for number in entry):
        raise GraphError(f"node {index} has an input of no known form")
    source, output, version = (*entry, 0)[:3]
    if not 0 <= source < index or version not in (0, 1):
        raise GraphError(f"node {index} has an input that is no earlier node")
    return [source, output, version]


def _checked_node(
    nodes: list[Node], index: int, indices: dict[int, int], before: list[Node]
) -> Node:
    """Return a node as MXNet gets it, after those ``before`` it."""
    node = nodes[index]
    operator, name = node.get("op"), node.get("name")
    if not (isinstance(name, str) and 0 < len(name) <= operators.MAX_TEXT and name.isprintable()):
        raise GraphError(f"node {index} has no name")
    if "$" in name:
        # MXNet joins a name and an attribute with it, and splits them there.
        raise GraphError(f"the name {name!r} has a $")
    if not isinstance(operator, str):
        raise GraphError(f"node {name!r} has no operator")
    if operator not in operators.OPERATORS:
        raise GraphError(
            f"node {name!r} is of the operator {operator!r:.80}, which this reader does not know; "
            "if that is a function of its inputs alone, add it to OPERATORS in "
            "backbones/graph/operators.py"
        )
    inputs = [moved(entry, indices) for entry in _inputs(nodes, index)]
    for source, output, _ in inputs:
        if not 0 <= output < operators.output_count(before[source]):
            raise GraphError(f"{name!r} takes an output that {before[source]['name']!r} lacks")
    if operator == "null":
        if inputs:
            raise GraphError(f"the variable {name!r} has inputs")
        # The attributes of a variable say how to train it, which the options of a run decide.
        return {"op": operator, "name": name, "inputs": []}
    attributes = operators.checked_attributes(node)
    # MXNet crashes on a BatchNorm without inputs.
    count = operators.input_count(operator, attributes)
    if len(inputs) != count:
        raise GraphError(f"the operator {name!r} has {len(inputs)} inputs instead of {count}")
    if operator.lower() == "cast":
        # MXNet has no float16 on a CPU; and the exported graph is the one in float32.
        attributes["dtype"] = "float32"
    return {"op": operator, "name": name, "attrs": attributes, "inputs": inputs}
