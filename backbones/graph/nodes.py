"""MXNet's graphs as JSON, for the modules that check, rewrite and cut them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Container, Iterable
from typing import Any

from backbones.layers import Symbol
from runtime.mxnet import mx

Node = dict[str, Any]
"""``op`` ("null" for a variable), ``name``, ``attrs``, and ``inputs``, a list of entries."""
Entry = list[int]
"""An output of a node: [index of the node, number of the output, version]."""
Graph = dict[str, Any]
"""``nodes``, each after its inputs, ``heads`` (the outputs' entries), and maybe ``attrs``."""
Shape = tuple[int, ...]


class Rewriter:
    """A new graph that is made of a given one, node by node; each stands after its inputs.

    Attributes:
        given: the nodes of the given graph.
        nodes: those of the new graph that are there already.
        indices: the index in the new graph of the output of each given node.
    """

    def __init__(self, symbol: Symbol, batch_shape: Shape) -> None:
        """Use a graph of images; the result is for any number of them."""
        self._graph, self._shapes = to_json(symbol), first_shapes(symbol, batch_shape)
        self.given: list[Node] = self._graph["nodes"]
        self.nodes: list[Node] = []
        self.indices: dict[int, int] = {}

    def rewrite(self) -> Symbol:
        """Return the new graph; nodes that have an index already are not made again."""
        for index in range(len(self.given)):
            if index not in self.indices:
                self.indices[index] = self.make(index)
        heads = [self.head(entry) for entry in self._graph["heads"]]
        return from_json({**self._graph, "nodes": self.nodes, "heads": heads})

    def make(self, index: int) -> int:
        """Append what stands for a given node, by default the node; returns its index."""
        return self.add({**self.given[index], "inputs": self.inputs(index)})

    def head(self, entry: Entry) -> Entry:
        """Return what stands for an output of the given graph."""
        return moved(entry, self.indices)

    def inputs(self, index: int) -> list[Entry]:
        """Return the inputs of a given node, in the new graph."""
        return [moved(entry, self.indices) for entry in self.given[index]["inputs"]]

    def shape(self, index: int) -> Shape:
        """Return the shape of the first output of a given node."""
        return self._shapes[self.given[index]["name"]]

    def input_shape(self, index: int, number: int = 0) -> Shape:
        """Return the shape of what a given node has as an input, by default as the first."""
        return self.shape(self.given[index]["inputs"][number][0])

    def is_prelu_on_maps(self, index: int) -> bool:
        """Return True for a PReLU whose input is the first output of a node, feature maps."""
        node = self.given[index]
        if node["op"] != "LeakyReLU" or node.get("attrs", {}).get("act_type") != "prelu":
            return False
        return node["inputs"][0][1] == 0 and len(self.input_shape(index)) == 4

    def add(self, node: Node) -> int:
        """Append a node; returns its index."""
        self.nodes.append(node)
        return len(self.nodes) - 1

    def operator(self, op: str, name: str, inputs: list[Entry], **attributes: Any) -> Entry:
        """Append an operator; returns its output."""
        texts = {key: str(value) for key, value in attributes.items()}
        return [self.add({"op": op, "name": name, "attrs": texts, "inputs": inputs}), 0, 0]

    def add_shaped(self, index: int) -> int:
        """Append a given parameter with its shape, which MXNet cannot infer from its product."""
        node = self.given[index]
        known = {"__shape__": str(self.shape(index))}
        return self.add({**node, "attrs": {**node.get("attrs", {}), **known}})

    def scale(self, name: str, x: Entry, factors: Entry, channels: int) -> Entry:
        """Append maps times a factor for each channel, a kernel [channels, 1, 1, 1]."""
        sizes = {"num_filter": channels, "num_group": channels, "no_bias": True}
        return self.operator("Convolution", name, [x, factors], kernel=(1, 1), **sizes)


def to_json(symbol: Symbol) -> Graph:
    """Return a graph as JSON."""
    # By default MXNet leaves out the casts to bfloat16.
    graph: Graph = json.loads(symbol.tojson(remove_amp_cast=False))
    return graph


def from_json(graph: Graph) -> Symbol:
    """Return the symbol of a graph, of which ``to_json`` may have made more than is read here."""
    variables = [index for index, node in enumerate(graph["nodes"]) if node["op"] == "null"]
    read = {key: graph[key] for key in ("nodes", "heads", "attrs") if key in graph}
    return mx.sym.load_json(json.dumps({**read, "arg_nodes": variables}))


def part_of(
    graph: Graph, kept: Iterable[int], variables: Container[int], heads: Iterable[Entry]
) -> Graph:
    """Return the graph of the nodes with some indices, of which some become variables.

    A variable has the name of the node whose first output it stands for.
    """
    nodes: list[Node] = []
    indices: dict[int, int] = {}
    for index in sorted(kept):
        node = graph["nodes"][index]
        indices[index] = len(nodes)
        if index in variables:
            nodes.append({"op": "null", "name": node["name"], "inputs": []})
        else:
            inputs = [moved(entry, indices) for entry in node["inputs"]]
            nodes.append({**node, "inputs": inputs})
    return {**graph, "nodes": nodes, "heads": [moved(entry, indices) for entry in heads]}


def moved(entry: Entry, indices: dict[int, int]) -> Entry:
    """Return an entry with the new index of its node."""
    return [indices[entry[0]], *entry[1:]]


def infer(symbol: Symbol, batch_shape: Shape) -> tuple[Any, Any, Any]:
    """Return the shapes of arguments, outputs and auxiliary states; None that are not determined.

    Raises:
        MXNetError: the nodes do not fit together, of which MXNet would also print four lines.
    """
    with contextlib.redirect_stdout(None):
        arguments, outputs, auxiliary = symbol.infer_shape(data=batch_shape)
    return arguments, outputs, auxiliary


def first_shapes(symbol: Symbol, batch_shape: Shape) -> dict[str, Shape]:
    """Return the shape of each variable and of the first output of each operator, by node.

    The shape of the input ``data``, ``batch_shape``, has to determine all others.
    """
    internals = symbol.get_internals()
    _, shapes, _ = internals.infer_shape(data=batch_shape)
    found = dict(zip(internals.list_outputs(), shapes))
    names = [node["name"] for node in to_json(symbol)["nodes"]]
    keys = {name: (name, f"{name}_output", f"{name}_output0") for name in names}
    return {name: next(found[key] for key in keys[name] if key in found) for name in names}


def only_consumers(graph: Graph, *, any_input: bool = False) -> dict[int, int]:
    """Return the operator that alone uses a node, by the index of the node.

    It has the first output of the node as its first input, or as any; so nodes whose outputs are
    used otherwise, or are outputs of the graph, are left out.
    """
    found: dict[int, list[int]] = {}
    for source, *_ in graph["heads"]:
        found.setdefault(source, []).append(-1)
    for index, node in enumerate(graph["nodes"]):
        for position, (source, output, *_) in enumerate(node["inputs"]):
            is_known = output == 0 and (position == 0 or any_input)
            found.setdefault(source, []).append(index if is_known else -1)
    return {source: uses[0] for source, uses in found.items() if len(uses) == 1 and uses[0] >= 0}
