"""The graph of a checkpoint (``-symbol.json``), checked before MXNet reads it.

A graph can name any operator of MXNet, with any attributes, and MXNet does not check the numbers of
inputs and outputs: a damaged or malicious file crashes the process. So the file is read as plain
JSON, and MXNet gets a new graph made from it: the nodes on the path from ``data`` to the embedding,
with the operators and attributes of ``backbones.graph.operators``. Nodes after the embedding (the
classifier, a loss) are ignored.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from backbones.graph import operators
from backbones.graph.nodes import (
    Entry,
    Node,
    Shape,
    first_shapes,
    from_json,
    infer,
    moved,
    to_json,
)
from backbones.graph.operators import DamagedGraph
from runtime.errors import DataError
from runtime.files import read_file
from runtime.mxnet import mx

INPUT, OUTPUT_NODE, LOGITS_NODE = "data", "fc1", "output"
_NO_PATH = (
    f"there is no path from {INPUT!r} to '{OUTPUT_NODE}_output', the names of the input and the "
    "embedding; give them these names"
)
_MAX_BYTES = 1 << 26
_MAX_NODES = 20_000
_LARGEST_VERSION = 20_000
# Elements of one result for one image; a batch of more does not fit into memory.
_MAX_ELEMENTS = 1 << 28


class _UnsupportedGraph(Exception):
    """The file may be sound, but this reader does not support it; the message has a remedy."""


def read_graph(path: Path, outputs: Sequence[str] = (OUTPUT_NODE,)) -> Any:
    """Read the graph from the input ``data`` to the embedding, its one output ``fc1_output``.

    Args:
        path: the file.
        outputs: names of nodes, of which the first that the graph has gives the output: a
            classifier's is ``LOGITS_NODE``.

    Raises:
        DataError: the file is missing, is no graph, or is one that this reader does not support.
    """
    if not path.is_file():
        raise DataError(
            f"{path} does not exist; give the prefix of a checkpoint, e.g. models/run/model"
        )
    try:
        return _checked(_read_json(path), outputs)
    except DamagedGraph as damage:
        raise DataError(
            f"{path} is no MXNet graph of a face network ({damage}); copy the checkpoint again"
        ) from None
    except _UnsupportedGraph as reason:
        raise DataError(f"{path}: {reason}") from None
    # MXNet's message may quote a byte that is no UTF-8, which is a ValueError.
    except (mx.MXNetError, ValueError) as error:
        raise DataError(f"{path} is no MXNet graph ({_first_line(error)}); copy it again") from None


def infer_shapes(
    symbol: Any, image_size: tuple[int, int], path: Path, channels: int = 3
) -> dict[str, Shape]:
    """Return the shapes of all parameters and auxiliary states of a graph.

    Raises:
        DataError: nodes do not fit together, or only for one batch size, or results are too large
            for any memory.
    """
    found, outputs = _inferred(symbol, (1, channels, *image_size), path)
    if not found or any(not shape or min(shape) < 1 for shape in [*found, *outputs]):
        raise DataError(f"{path} does not determine the shapes of its parameters; copy it again")
    if max(math.prod(shape) for shape in [*found, *outputs]) > _MAX_ELEMENTS:
        raise DataError(f"{path} has results of more than {_MAX_ELEMENTS:,} elements for one image")
    _check_reshapes(symbol, (1, channels, *image_size), path)
    of_two, results = _inferred(symbol, (2, channels, *image_size), path)
    names = symbol.list_arguments() + symbol.list_auxiliary_states()
    shapes, others = dict(zip(names, found)), dict(zip(names, of_two))
    del shapes[INPUT]
    others.pop(INPUT, None)
    if shapes != others or not results or results[-1][0] != 2:
        raise DataError(f"{path} is a graph for one batch size only; export it again")
    return shapes


def _check_reshapes(symbol: Any, batch_shape: Shape, path: Path) -> None:
    """Refuse a Reshape to more or fewer elements: MXNet would read beyond its input."""
    shapes, nodes = first_shapes(symbol, batch_shape), to_json(symbol)["nodes"]
    for node in nodes:
        if node["op"] in operators.RESHAPES:
            # All outputs of a node have one shape.
            source = nodes[node["inputs"][0][0]]
            given, made = (math.prod(shapes[one["name"]]) for one in (source, node))
            if given != made:
                raise DataError(
                    f"{path} is damaged: {node['name']!r} reshapes {given} elements to {made}; "
                    "copy it again"
                )


def _inferred(symbol: Any, batch_shape: Shape, path: Path) -> tuple[list[Shape], list[Shape]]:
    """Return the shapes of all inputs, and of all results with the embedding as the last."""
    try:
        arguments, outputs, auxiliary = infer(symbol.get_internals(), batch_shape)
    except (mx.MXNetError, ValueError) as error:
        _, _, height, width = batch_shape
        raise DataError(
            f"{path} does not take images of {height} x {width} pixels ({_first_line(error)})"
        ) from None
    return (arguments or []) + (auxiliary or []), outputs or []


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip()[: operators.MAX_TEXT] if lines else type(error).__name__


def _read_json(path: Path) -> Any:
    try:
        return json.loads(read_file(path, _MAX_BYTES).decode("utf-8"))
    except OSError as error:
        raise DamagedGraph(f"it cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise DamagedGraph("it is no JSON") from None


def _checked(graph: Any, outputs: Sequence[str]) -> Any:
    """Return a new symbol of the nodes that the output depends on, in the order of the file."""
    nodes = graph.get("nodes") if isinstance(graph, dict) else None
    if not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
        raise DamagedGraph("it has no list of nodes")
    if len(nodes) > _MAX_NODES:
        raise DamagedGraph(f"it has {len(nodes)} nodes, more than {_MAX_NODES}")
    kept = _ancestors(nodes, _output_index(nodes, outputs))
    indices = {old: new for new, old in enumerate(kept)}
    checked = [_checked_node(nodes, index, indices) for index in kept]
    _rename_operators(checked)
    names = [node["name"] for node in checked]
    if len(set(names)) != len(names):
        raise DamagedGraph("two of its parameters have the same name")
    if not any(node["op"] == "null" and node["name"] == INPUT for node in checked):
        raise _UnsupportedGraph(_NO_PATH)
    _check_parameters(checked)
    version = _version(graph)
    attributes = None if version is None else {"mxnet_version": ["int", version]}
    return from_json(checked, [[len(checked) - 1, 0, 0]], attributes)


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
    """Refuse a layer whose parameter is computed from the image, or a BatchNorm that shares one."""
    uses = Counter(entry[0] for node in nodes for entry in node["inputs"])
    image_dependent: set[int] = set()
    for index, node in enumerate(nodes):
        found = [entry[0] in image_dependent for entry in node["inputs"]]
        if node["op"] in operators.LAYERS and any(found[1:]):
            raise _UnsupportedGraph(
                f"{node['name']!r} takes a parameter from the image, which is refused since MXNet "
                "does not check its shape; use broadcast_mul and broadcast_add instead"
            )
        if node["op"] == "BatchNorm" and any(uses[entry[0]] > 1 for entry in node["inputs"][1:]):
            raise _UnsupportedGraph(
                f"{node['name']!r} shares a parameter, which is refused for a BatchNorm; give it "
                "its own"
            )
        if node["name"] == INPUT or any(found):
            image_dependent.add(index)


def _version(graph: dict[str, Any]) -> Optional[int]:
    """Return the version that wrote the file, by which MXNet updates it; None before 0.9."""
    attributes = graph.get("attrs")
    entry = attributes.get("mxnet_version") if isinstance(attributes, dict) else None
    if entry is None:
        return None
    version = entry[1] if isinstance(entry, list) and len(entry) == 2 else None
    if isinstance(version, int) and 0 < version <= _LARGEST_VERSION:
        return version
    raise DamagedGraph("it was written by no known version of MXNet")


def _output_index(nodes: list[Node], outputs: Sequence[str]) -> int:
    named = [node.get("name") for node in nodes if node.get("op") != "null"]
    wanted = next((name for name in outputs if name in named), OUTPUT_NODE)
    indices = [
        index
        for index, node in enumerate(nodes)
        if node.get("name") == wanted and node.get("op") != "null"
    ]
    if len(indices) != 1:
        raise _UnsupportedGraph(_NO_PATH)
    return indices[0]


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
        raise DamagedGraph(f"node {index} has no list of inputs")
    return [_input(nodes, index, entry) for entry in inputs]


def _input(nodes: list[Node], index: int, entry: Any) -> Entry:
    """Return a checked input of a node; a version that is not in the file is 0."""
    is_entry = isinstance(entry, list) and 2 <= len(entry) <= 3
    if not is_entry or not all(type(number) is int for number in entry):
        raise DamagedGraph(f"node {index} has an input of no known form")
    source, output, version = (*entry, 0)[:3]
    if not 0 <= source < index or version not in (0, 1):
        raise DamagedGraph(f"node {index} has an input that is no earlier node")
    if not 0 <= output < operators.output_count(nodes[source]):
        raise DamagedGraph(f"node {index} takes output {output} of node {source}, which has none")
    return [source, output, version]


def _checked_node(nodes: list[Node], index: int, indices: dict[int, int]) -> Node:
    node = nodes[index]
    operator, name = node.get("op"), node.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= operators.MAX_TEXT:
        raise DamagedGraph(f"node {index} has no name")
    if "$" in name:
        # MXNet joins a name and an attribute with it, and splits them there.
        raise DamagedGraph(f"the name {name!r} has a $")
    if not isinstance(operator, str):
        raise DamagedGraph(f"node {name!r} has no operator")
    if operator not in operators.OPERATORS:
        raise _UnsupportedGraph(
            f"node {name!r} is of the operator {operator!r:.80}, which this reader does not know; "
            "if that is a function of its inputs alone, add it to OPERATORS in "
            "backbones/graph/operators.py"
        )
    inputs = [moved(entry, indices) for entry in _inputs(nodes, index)]
    if operator == "null":
        if inputs:
            raise DamagedGraph(f"the variable {name!r} has inputs")
        # The attributes of a variable say how to train it, which the options of a run decide.
        return {"op": operator, "name": name, "inputs": []}
    if not inputs:
        # MXNet crashes on a BatchNorm without any.
        raise DamagedGraph(f"the operator {name!r} has no inputs")
    attributes = operators.checked_attributes(node)
    if operator.lower() == "cast":
        # MXNet has no float16 on a CPU; and the exported graph is the one in float32.
        attributes["dtype"] = "float32"
    return {"op": operator, "name": name, "attrs": attributes, "inputs": inputs}
