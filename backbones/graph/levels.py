"""A graph cut at its BatchNorms, for statistics that are computed outside of it.

The level of a node is the largest number of BatchNorms on a way to it from the image. All nodes of
a level can be computed once the statistics of its BatchNorms are known, and these are statistics of
tensors of earlier levels. So a pass over the levels, one after the other, can stop before each of
them and compute statistics of its own, over the images of all ranks for example.

A tensor is the image, or the output of an operator, by whose name it is called.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from backbones.graph.nodes import Graph, Node, from_json, moved, part_of, to_json
from backbones.layers import Symbol

DATA = "data"
_TRUE = ("True", "1")


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

    What is computed of parameters alone is in the first level. As in all networks of the
    registries, operators have one output and layers share no parameter: a level writes the whole of
    the gradients of its own.
    """
    graph, norms = _with_given_statistics(to_json(symbol))
    nodes: list[Node] = graph["nodes"]
    sources = [[entry[0] for entry in node["inputs"]] for node in nodes]
    numbers: list[int] = []
    trained: list[bool] = []
    for index, node in enumerate(nodes):
        assert not any(entry[1] for entry in node["inputs"]), node
        before = max((numbers[source] for source in sources[index]), default=0)
        numbers.append(before + (index in norms))
        depends = [trained[source] for source in sources[index]]
        trained.append(any(depends) if depends else node["name"] != DATA)
    operators = {index for index, node in enumerate(nodes) if node["op"] != "null"}
    between = {entry[0] for entry in graph["heads"]}
    for index in operators:
        between.update(one for one in sources[index] if numbers[one] < numbers[index])

    def named(indices: Iterable[int]) -> list[str]:
        return [nodes[index]["name"] for index in indices]

    levels = []
    for number in range(max(numbers) + 1):
        own = {index for index in operators if numbers[index] == number}
        inputs = {source for index in own for source in sources[index]} - own
        read, written = sorted(inputs & operators), sorted(own & between)
        # The first is empty if the image itself is normalized.
        if own:
            part = part_of(graph, own | inputs, {*read}, [[index, 0, 0] for index in written])
            level = Level(
                from_json(part),
                norms=[norms[index] for index in sorted(own & norms.keys())],
                read=named(index for index in read if trained[index]),
                written=named(written),
                trained=named(index for index in written if trained[index]),
            )
            levels.append(level)
    return levels


def _with_given_statistics(graph: Graph) -> tuple[Graph, dict[int, Norm]]:
    """Return a graph whose BatchNorms read statistics of their own, and these by their indices."""
    nodes: list[Node] = []
    norms: dict[int, Norm] = {}
    indices: dict[int, int] = {}
    for index, node in enumerate(graph["nodes"]):
        node = {**node, "inputs": [moved(entry, indices) for entry in node["inputs"]]}
        attributes = node.get("attrs", {})
        if node["op"] == "BatchNorm" and attributes.get("use_global_stats") not in _TRUE:
            has_fixed_gamma = attributes.get("fix_gamma", "True") in _TRUE
            given = ["one"] * has_fixed_gamma + ["given_mean", "given_variance"]
            variables = [[len(nodes) + number, 0, 0] for number in range(len(given))]
            names = [f"{node['name']}_{part}" for part in given]
            nodes += [{"op": "null", "name": name, "inputs": []} for name in names]
            source, gamma, beta, *running = node["inputs"]
            if has_fixed_gamma:
                gamma = variables.pop(0)
            inputs = [source, gamma, beta, *variables]
            fixed = {"use_global_stats": "True", "fix_gamma": "False"}
            node = {**node, "attrs": {**attributes, **fixed}, "inputs": inputs}
            read = [nodes[entry[0]]["name"] for entry in (*inputs, *running)]
            norms[len(nodes)] = Norm(
                source=read[0],
                gamma=read[1],
                beta=read[2],
                statistics=read[3:5],
                running=read[5:],
                has_fixed_gamma=has_fixed_gamma,
                epsilon=float(attributes.get("eps", "1e-3")),
                momentum=float(attributes.get("momentum", "0.9")),
            )
        indices[index] = len(nodes)
        nodes.append(node)
    return {**graph, "nodes": nodes, "heads": [moved(e, indices) for e in graph["heads"]]}, norms
