"""A graph cut at its BatchNorms, for statistics that are computed outside of it.

The level of a node is the largest number of BatchNorms on a way to it from the image. All nodes of
a level can be computed once the statistics of its BatchNorms are known, and these are statistics of
tensors of earlier levels. So a pass over the levels, one after the other, can stop before each of
them and compute statistics of its own, over the images of all ranks for example.

A tensor is the image, or an output of an operator: ``name:number``.
"""

from __future__ import annotations

from typing import NamedTuple

from backbones.graph.nodes import Entry, Graph, Node, from_json, to_json
from backbones.layers import Symbol

DATA = "data"
_TRUE = ("True", "1")
# The statistics that a level's BatchNorm is given.
_GIVEN = ("given_mean", "given_variance")


_Output = tuple[int, int]


class Norm(NamedTuple):
    """A BatchNorm of a level, by the names of the level's inputs.

    Attributes:
        source: the tensor that it normalizes.
        gamma, beta: parameters, or tensors that are computed of parameters; no other layer reads
            them.
        statistics: the mean and the variance that it is given, auxiliary inputs.
        running: the auxiliary states of the whole graph, no inputs.
        has_fixed_gamma: True if ``gamma`` is an input of the level alone, and has to be one.
    """

    source: str
    gamma: str
    beta: str
    statistics: list[str]
    running: list[str]
    has_fixed_gamma: bool
    epsilon: float
    momentum: float


class Level(NamedTuple):
    """What is between some BatchNorms and the next.

    Attributes:
        symbol: the graph of the level, which begins with its BatchNorms.
        norms: these; none in the first level, unless they normalize the image.
        read: outputs of earlier levels that depend on a parameter; and it may read others.
        written: what later levels read of it, and what the whole graph returns.
        trained: those of ``written`` that depend on a parameter.
    """

    symbol: Symbol
    norms: list[Norm]
    read: list[str]
    written: list[str]
    trained: list[str]


def cut(symbol: Symbol) -> list[Level]:
    """Return the levels of a graph with the input ``data``, each after those that it reads from.

    What is computed of parameters alone is in the first level. Layers share no parameter, as in all
    networks of the registries: a level writes the whole of the gradients of its own.
    """
    graph = to_json(symbol)
    nodes: list[Node] = graph["nodes"]
    numbers: list[int] = []
    for node in nodes:
        before = max((numbers[entry[0]] for entry in node["inputs"]), default=0)
        numbers.append(before + _uses_batch(node))
    builders = [_LevelBuilder(nodes) for _ in range(max(numbers) + 1)]
    for index, node in enumerate(nodes):
        if node["op"] != "null":
            builders[numbers[index]].add(index)
    results = [(index, output) for index, output, *_ in graph["heads"]]
    for index, output in dict.fromkeys(
        [*results, *(one for level in builders for one in level.read)]
    ):
        if nodes[index]["op"] != "null":
            builders[numbers[index]].written.append((index, output))
    # The first is empty if the image itself is normalized.
    return [builder.build(graph) for builder in builders if builder.nodes]


def _trained(nodes: list[Node]) -> list[bool]:
    """Return for each node True if it depends on a parameter."""
    trained: list[bool] = []
    for node in nodes:
        inputs = [trained[entry[0]] for entry in node["inputs"]]
        trained.append(any(inputs) if inputs else node["name"] != DATA)
    return trained


def _uses_batch(node: Node) -> bool:
    """Return True for a BatchNorm with the statistics of its batch."""
    return node["op"] == "BatchNorm" and _attribute(node, "use_global_stats") not in _TRUE


def _attribute(node: Node, name: str, default: str = "") -> str:
    return str(node.get("attrs", {}).get(name, default))


class _LevelBuilder:
    """The graph of one level; operators are added after those that they read.

    Attributes:
        nodes: of the level.
        read: the tensors of earlier levels that it reads: node of the whole graph, and output.
        written: its own tensors that others read.
    """

    def __init__(self, whole: list[Node]) -> None:
        """Args: the nodes of the whole graph."""
        self.nodes: list[Node] = []
        self.read: list[_Output] = []
        self.written: list[_Output] = []
        self._whole = whole
        self._norms: list[Norm] = []
        # From the whole graph's operators and outputs to the nodes of this level.
        self._operators: dict[int, int] = {}
        self._inputs: dict[_Output, Entry] = {}

    def add(self, index: int) -> None:
        """Append an operator of the whole graph."""
        node = self._whole[index]
        if _uses_batch(node):
            node = self._with_given_statistics(node)
        else:
            node = {**node, "inputs": [self._entry(entry) for entry in node["inputs"]]}
        self._operators[index] = self._append(node)[0]

    def build(self, graph: Graph) -> Level:
        """Return the level of a whole graph, to which everything has been added."""
        heads = [[self._operators[index], output, 0] for index, output in self.written]
        symbol = from_json({**graph, "nodes": self.nodes, "heads": heads})
        trained = _trained(self._whole)
        read, changed = (
            [one for one in some if trained[one[0]]] for some in (self.read, self.written)
        )
        names = ([self._name(one) for one in some] for some in (read, self.written, changed))
        return Level(symbol, self._norms, *names)

    def _with_given_statistics(self, node: Node) -> Node:
        """Return a BatchNorm that reads its statistics, and remember what it reads."""
        name, (source, gamma, beta, *running) = node["name"], node["inputs"]
        has_fixed_gamma = _attribute(node, "fix_gamma", "True") in _TRUE
        inputs = [
            self._entry(source),
            self._variable(f"{name}_one") if has_fixed_gamma else self._entry(gamma),
            self._entry(beta),
            *(self._variable(f"{name}_{part}") for part in _GIVEN),
        ]
        names = [self.nodes[entry[0]]["name"] for entry in inputs]
        self._norms.append(
            Norm(
                source=names[0],
                gamma=names[1],
                beta=names[2],
                statistics=names[3:],
                running=[self._whole[entry[0]]["name"] for entry in running],
                has_fixed_gamma=has_fixed_gamma,
                epsilon=float(_attribute(node, "eps", "1e-3")),
                momentum=float(_attribute(node, "momentum", "0.9")),
            )
        )
        attributes = {"use_global_stats": "True", "fix_gamma": "False"}
        return {**node, "attrs": {**node.get("attrs", {}), **attributes}, "inputs": inputs}

    def _entry(self, entry: Entry) -> Entry:
        """Return where an entry of the whole graph is here, after adding it if it is an input."""
        index, output, *_ = entry
        if index in self._operators:
            return [self._operators[index], output, 0]
        node, key = self._whole[index], (index, output)
        if key not in self._inputs:
            if node["op"] != "null" or node["name"] == DATA:
                self.read.append(key)
                node = {"op": "null", "name": self._name(key)}
            self._inputs[key] = self._append({**node, "inputs": []})
        return self._inputs[key]

    def _name(self, tensor: _Output) -> str:
        index, output = tensor
        name: str = self._whole[index]["name"]
        return name if name == DATA else f"{name}:{output}"

    def _variable(self, name: str) -> Entry:
        return self._append({"op": "null", "name": name, "inputs": []})

    def _append(self, node: Node) -> Entry:
        self.nodes.append(node)
        return [len(self.nodes) - 1, 0, 0]
