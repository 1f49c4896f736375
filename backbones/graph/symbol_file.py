"""The graph of a checkpoint (``-symbol.json``), checked before MXNet reads it.

A graph can name any operator of MXNet, with any attributes, and MXNet does not check the numbers of
inputs and outputs: a damaged or malicious file crashes the process. So the file is read as plain
JSON, and MXNet gets a new graph made from it: the nodes on the path from ``data`` to the embedding,
with the operators and attributes of ``backbones.graph.operators``. Nodes after the embedding (the
classifier, a loss) are ignored. A graph with operators that this project's networks do not have is
first run in another process (``backbones.trial``).
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from backbones.graph import limits, operators
from backbones.graph.limits import INPUT
from backbones.graph.nodes import Entry, Node, Shape, from_json, moved, to_json
from backbones.graph.operators import GraphError
from runtime.errors import DataError
from runtime.files import read_file
from runtime.mxnet import mx
from runtime.untrusted import child

OUTPUT_NODE, LOGITS_NODE = "fc1", "output"
_NO_PATH = (
    f"there is no path from {INPUT!r} to '{OUTPUT_NODE}_output', the names of the input and the "
    "embedding; give them these names"
)
# MXNet compares the shapes of their parameters with those of other uses.
_SHARING = ("Convolution", "FullyConnected")
_MAX_BYTES = 1 << 24
_MAX_NODES = 20_000
_LARGEST_VERSION = 20_000
# The last version of MXNet that left the statistics of a BatchNorm out of its inputs.
_WITHOUT_STATISTICS = 800
_MAX_CHANNELS = 1 << 12


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
        DataError: nodes do not fit together, or only for one batch size, the output is not [b, D],
            or results are too large for any memory.
    """
    if not 0 < channels <= _MAX_CHANNELS:
        raise DataError(f"{path} takes images of {channels:,} channels; copy its parameters again")
    batch_shape = (1, channels, *image_size)
    if not all(map(operators.is_common, to_json(symbol)["nodes"])):
        # It may crash MXNet, or take too much time or memory.
        header = {"path": str(path), "image_shape": batch_shape[1:]}
        content = json.dumps(to_json(symbol)).encode()
        reason = child.ask("backbones.trial", header, content, child.GIGABYTE)
        if reason is not None:
            is_said = reason.startswith(str(path))
            raise DataError(reason if is_said else f"{path} is refused: {reason}")
    return limits.infer(symbol, batch_shape, path)


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
    kept = _ancestors(nodes, _output_index(nodes, outputs))
    indices = {old: new for new, old in enumerate(kept)}
    version = _version(graph)
    checked = [_checked_node(nodes, index, indices, version or 0) for index in kept]
    _rename_operators(checked)
    names = [node["name"] for node in checked]
    # MXNet names the outputs of an operator so.
    of_outputs = {f"{name}_output{number}" for name in names for number in ("", "0")}
    if len({*names}) != len(names) or of_outputs.intersection(names):
        raise GraphError("two of its tensors have the same name")
    if not any(node["op"] == "null" and node["name"] == INPUT for node in checked):
        raise GraphError(_NO_PATH)
    _check_parameters(checked)
    known = {} if version is None else {"attrs": {"mxnet_version": ["int", version]}}
    return from_json({"nodes": checked, "heads": [[len(checked) - 1, 0, 0]], **known})


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


def _version(graph: dict[str, Any]) -> Optional[int]:
    """Return the version that wrote the file, by which MXNet updates it; None before 0.9."""
    attributes = graph.get("attrs")
    entry = attributes.get("mxnet_version") if isinstance(attributes, dict) else None
    if entry is None:
        return None
    version = entry[1] if isinstance(entry, list) and len(entry) == 2 else None
    if isinstance(version, int) and 0 < version <= _LARGEST_VERSION:
        return version
    raise GraphError("it was written by no known version of MXNet")


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
    return [_input(nodes, index, entry) for entry in inputs]


def _input(nodes: list[Node], index: int, entry: Any) -> Entry:
    """Return a checked input of a node; a version that is not in the file is 0."""
    is_entry = isinstance(entry, list) and 2 <= len(entry) <= 3
    if not is_entry or not all(type(number) is int for number in entry):
        raise GraphError(f"node {index} has an input of no known form")
    source, output, version = (*entry, 0)[:3]
    if not 0 <= source < index or version not in (0, 1):
        raise GraphError(f"node {index} has an input that is no earlier node")
    if not 0 <= output < operators.output_count(nodes[source]):
        raise GraphError(f"node {index} takes output {output} of node {source}, which has none")
    return [source, output, version]


def _checked_node(nodes: list[Node], index: int, indices: dict[int, int], version: int) -> Node:
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
    if operator == "null":
        if inputs:
            raise GraphError(f"the variable {name!r} has inputs")
        # The attributes of a variable say how to train it, which the options of a run decide.
        return {"op": operator, "name": name, "inputs": []}
    attributes = operators.checked_attributes(node)
    # MXNet crashes on a BatchNorm without inputs.
    counts = {operators.input_count(operator, attributes)}
    if operator == "BatchNorm" and version <= _WITHOUT_STATISTICS:
        counts.add(3)
    if len(inputs) not in counts:
        raise GraphError(
            f"the operator {name!r} has {len(inputs) or 'no'} inputs instead of {max(counts)}"
        )
    if operator.lower() == "cast":
        # MXNet has no float16 on a CPU; and the exported graph is the one in float32.
        attributes["dtype"] = "float32"
    return {"op": operator, "name": name, "attrs": attributes, "inputs": inputs}
