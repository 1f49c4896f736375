"""A graph cut at its BatchNorms, for statistics that are computed outside of it.

The level of a node is the largest number of BatchNorms on a way to it from the image. All nodes of
a level can be computed once the statistics of its BatchNorms are known, and these are statistics of
tensors of earlier levels. So a pass over the levels, one after the other, can stop before each of
them and compute statistics of its own, over the images of all ranks for example.
"""

from __future__ import annotations

from typing import NamedTuple

from backbones.graph.nodes import Entry, Graph, Node, from_json, to_json
from backbones.layers import Symbol

DATA = "data"
_TRUE = ("True", "1")
# The statistics that a level's BatchNorm is given.
_GIVEN = ("given_mean", "given_variance")


class Tensor(NamedTuple):
    """The image, or what one level computes and a later one reads."""

    name: str
    has_gradient: bool
    """Whether it depends on a parameter."""


class Norm(NamedTuple):
    """A BatchNorm of a level, by the names of the level's inputs.

    Attributes:
        source: the tensor that it normalizes.
        gamma, beta: parameters, or tensors that are computed of parameters; no other layer reads
            them.
        statistics: the mean and the variance that it is given, auxiliary inputs.
        running: the auxiliary states of the whole graph, no inputs.
        has_fixed_gamma: whether ``gamma`` is an input of the level alone, and has to be one.
    """

    source: Tensor
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
        inputs: what it reads, the image and outputs of earlier levels.
        outputs: what later levels read of it, and what the whole graph returns.
    """

    symbol: Symbol
    norms: list[Norm]
    inputs: list[Tensor]
    outputs: list[Tensor]


def cut(symbol: Symbol) -> list[Level]:
    """Return the levels of a graph with the input ``data``, each after those that it reads from.

    What is computed of parameters alone is in the first level. Layers share no parameter, as in all
    networks of the registries: a level writes the whole of the gradients of its own.
    """
    graph = to_json(symbol)
    nodes: list[Node] = graph["nodes"]
    numbers, trained = _numbers(nodes), _trained(nodes)
    builders = [
        _LevelBuilder(nodes, numbers, trained, number) for number in range(max(numbers) + 1)
    ]
    for index, node in enumerate(nodes):
        if node["op"] != "null":
            builders[numbers[index]].add(index)
    entries: list[Entry] = [*graph["heads"], *(entry for one in builders for entry in one.read)]
    for index, output, *_ in entries:
        if nodes[index]["op"] != "null":
            builders[numbers[index]].give(index, output)
    # The first is empty if the image itself is normalized.
    filled = [builder for builder in builders if builder.has_operators]
    return [builder.build(graph) for builder in filled]


def _numbers(nodes: list[Node]) -> list[int]:
    """Return the level of each node; variables, which belong to any, have 0."""
    numbers: list[int] = []
    for node in nodes:
        before = max((numbers[entry[0]] for entry in node["inputs"]), default=0)
        numbers.append(before + _uses_batch(node))
    return numbers


def _trained(nodes: list[Node]) -> list[bool]:
    """Return for each node whether it depends on a parameter."""
    trained: list[bool] = []
    for node in nodes:
        inputs = [trained[entry[0]] for entry in node["inputs"]]
        trained.append(any(inputs) if inputs else node["name"] != DATA)
    return trained


def _uses_batch(node: Node) -> bool:
    """Whether this is a BatchNorm with the statistics of its batch."""
    return node["op"] == "BatchNorm" and _attribute(node, "use_global_stats") not in _TRUE


def _attribute(node: Node, name: str, default: str = "") -> str:
    return str(node.get("attrs", {}).get(name, default))


class _LevelBuilder:
    """The graph of one level; operators are added after those that they read.

    Attributes:
        read: the entries of earlier levels that have been read.
    """

    def __init__(
        self, nodes: list[Node], numbers: list[int], trained: list[bool], number: int
    ) -> None:
        """Args: the whole graph, the level of each node, if it is trained; which level to build."""
        self.read: list[Entry] = []
        self._nodes, self._numbers, self._trained = nodes, numbers, trained
        self._number = number
        self._own: list[Node] = []
        # Where operators are here, by their index in the whole graph; variables, by their name.
        self._operators: dict[int, int] = {}
        self._variables: dict[str, int] = {}
        self._norms: list[Norm] = []
        self._inputs: dict[str, Tensor] = {}
        self._outputs: dict[Tensor, Entry] = {}

    @property
    def has_operators(self) -> bool:
        """Whether anything has been added."""
        return bool(self._operators)

    def add(self, index: int) -> None:
        """Append an operator of the whole graph."""
        node = self._nodes[index]
        if _uses_batch(node):
            added = self._with_given_statistics(node)
        else:
            added = {**node, "inputs": [self._entry(entry) for entry in node["inputs"]]}
        self._own.append(added)
        self._operators[index] = len(self._own) - 1

    def give(self, index: int, output: int) -> None:
        """Make an output of an operator one of the level."""
        self._outputs[self._tensor(index, output)] = [self._operators[index], output, 0]

    def build(self, graph: Graph) -> Level:
        """Return the level of a whole graph, to which everything has been added."""
        heads = list(self._outputs.values())
        symbol = from_json({**graph, "nodes": self._own, "heads": heads})
        return Level(symbol, self._norms, list(self._inputs.values()), list(self._outputs))

    def _with_given_statistics(self, node: Node) -> Node:
        """Return a BatchNorm that reads its statistics, and remember what it reads."""
        name, (source, gamma, beta, *running) = node["name"], node["inputs"]
        attributes = {"use_global_stats": "True", "fix_gamma": "False"}
        has_fixed_gamma = _attribute(node, "fix_gamma", "True") in _TRUE
        inputs = [
            self._entry(source),
            self._variable({"op": "null", "name": f"{name}_one"})
            if has_fixed_gamma
            else self._entry(gamma),
            self._entry(beta),
            *(self._variable({"op": "null", "name": f"{name}_{part}"}) for part in _GIVEN),
        ]
        normalized, *parameters = (self._own[entry[0]]["name"] for entry in inputs)
        self._norms.append(
            Norm(
                self._inputs[normalized],
                gamma=parameters[0],
                beta=parameters[1],
                statistics=parameters[2:],
                running=[self._nodes[entry[0]]["name"] for entry in running],
                has_fixed_gamma=has_fixed_gamma,
                epsilon=float(_attribute(node, "eps", "1e-3")),
                momentum=float(_attribute(node, "momentum", "0.9")),
            )
        )
        return {**node, "attrs": {**node.get("attrs", {}), **attributes}, "inputs": inputs}

    def _entry(self, entry: Entry) -> Entry:
        """Return where an entry of the whole graph is here, after adding it if it is an input."""
        index, output, *_ = entry
        node = self._nodes[index]
        if node["op"] == "null" and node["name"] != DATA:
            return self._variable(node)
        if node["op"] != "null" and self._numbers[index] == self._number:
            return [self._operators[index], output, 0]
        self.read.append(entry)
        tensor = self._tensor(index, output)
        self._inputs[tensor.name] = tensor
        return self._variable({"op": "null", "name": tensor.name})

    def _variable(self, node: Node) -> Entry:
        if node["name"] not in self._variables:
            self._own.append({**node, "inputs": []})
            self._variables[node["name"]] = len(self._own) - 1
        return [self._variables[node["name"]], 0, 0]

    def _tensor(self, index: int, output: int) -> Tensor:
        name = self._nodes[index]["name"]
        return Tensor(name if name == DATA else f"{name}:{output}", self._trained[index])
