"""A training step that keeps little of its forward pass and computes the rest a second time.

What a step holds is mostly feature maps that wait for the backward pass. Here the graph is cut into
parts, one after the other; the forward pass keeps what goes from part to part, and the backward
pass runs every part again before it goes through it (Chen et al., arXiv:1604.06174). So no more
than one part's maps exist at a time, at the price of a second forward pass. MXNet's own switch for
this, the "mirror", is one of the symbol executor and does nothing in Gluon.

Every result is that of the whole graph: the second run of a part sees the same numbers. A running
statistic of BatchNorm would be updated twice, though, so the first run has others, which nobody
reads.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from backbones.graph.nodes import Node, first_shapes
from backbones.layers import Symbol
from runtime.mxnet import mx

NDArray = Any
Context = Any


class Part(NamedTuple):
    """A piece of a graph, from one tensor to another."""

    symbol: Symbol
    """The operators; its free variables are ``source`` and parameters."""
    source: str
    """The name of its input."""


def cut(symbol: Symbol, image_size: tuple[int, int]) -> list[Part]:
    """Cut a graph where a single tensor leads from its beginning to its end.

    A part ends where it would grow beyond the largest piece that has no such place inside: smaller
    parts would only make more tensors to be kept.

    Args:
        symbol: a graph with the input ``data`` and one output.
        image_size: height and width of the images.

    Returns:
        The parts, first to last; one part if the graph cannot be cut.
    """
    graph = json.loads(symbol.tojson())
    nodes: list[Node] = graph["nodes"]
    last = graph["heads"][0][0]
    shapes = first_shapes(symbol, (1, 3, *image_size))
    # Numbers per image that each node puts out.
    sizes = [math.prod(shapes[node["name"]]) for node in nodes]
    pieces = _pieces(nodes, last)
    weights = [sum(sizes[number] for number in piece) for piece in pieces]
    ends: list[int] = []
    held = 0
    for piece, weight in zip(pieces, weights):
        if ends and held + weight <= max(weights):
            ends[-1], held = piece[-1], held + weight
        else:
            ends.append(piece[-1])
            held = weight
    data = next(number for number, node in enumerate(nodes) if node["name"] == "data")
    sources = [data, *ends[:-1]]
    return [_part(graph, source, end) for source, end in zip(sources, ends)]


def _pieces(nodes: list[Node], last: int) -> list[list[int]]:
    """Return the nodes that depend on ``data``, in pieces that one tensor each connects.

    No two pieces have a parameter in common: each would write the whole of its gradient.
    """
    # The parameters that a node uses which depends on data, and those that any other is made of.
    used_by: dict[int, set[int]] = {}
    made_of: dict[int, set[int]] = {}
    last_use: dict[int, int] = {}
    for number, node in enumerate(nodes[: last + 1]):
        sources = [entry[0] for entry in node["inputs"]]
        parameters = {one for source in sources for one in made_of.get(source, ())}
        maps = [source for source in sources if source in used_by]
        if node["name"] == "data" or maps:
            used_by[number] = parameters
            last_use.update(dict.fromkeys([number, *maps, *parameters], number))
        else:
            made_of[number] = parameters or {number}
    dependent = list(used_by)
    pieces: list[list[int]] = [[]]
    open_until, trained = 0, False
    for place, number in enumerate(dependent[1:], start=1):
        pieces[-1].append(number)
        # Nothing older than this node is used after it, its output alone leads on; and no parameter
        # that has been used is used again.
        open_until = max(
            open_until,
            last_use[dependent[place - 1]],
            *(last_use[parameter] for parameter in used_by[number]),
        )
        # Without a parameter, a beginning has no gradient to be run again for.
        trained = trained or bool(used_by[number])
        if trained and open_until <= number < last:
            pieces.append([])
    return pieces


def _part(graph: dict[str, Any], source: int, end: int) -> Part:
    """Return what computes the output of node ``end`` from that of node ``source``."""
    nodes: list[Node] = graph["nodes"]
    moved: dict[int, int] = {}
    own: list[Node] = []
    for number in _needed(nodes, source, end):
        node = nodes[number]
        if number == source:
            node = {"op": "null", "name": node["name"], "inputs": []}
        inputs = [[moved[entry[0]], *entry[1:]] for entry in node["inputs"]]
        moved[number] = len(own)
        own.append({**node, "inputs": inputs})
    variables = [number for number, node in enumerate(own) if node["op"] == "null"]
    text = {
        "nodes": own,
        "arg_nodes": variables,
        "heads": [[moved[end], 0, 0]],
        "attrs": graph["attrs"],
    }
    return Part(mx.sym.load_json(json.dumps(text)), nodes[source]["name"])


def _needed(nodes: list[Node], source: int, end: int) -> list[int]:
    """Return the nodes on the way from ``source`` to ``end`` and their parameters, in order."""
    found, waiting = {source}, [end]
    while waiting:
        number = waiting.pop()
        if number not in found:
            found.add(number)
            waiting += [entry[0] for entry in nodes[number]["inputs"]]
    return sorted(found)


class Recomputation:
    """The training passes of a graph in parts."""

    def __init__(self, parts: list[Part], parameters: Any, ctx: Context) -> None:
        """Prepare the parts.

        Args:
            parts: from ``cut``.
            parameters: the ``gluon.ParameterDict`` of the whole graph, initialized.
            ctx: the device.
        """
        arrays = {name: parameter.data(ctx) for name, parameter in parameters.items()}
        self._first_runs = [_bind(part, {**arrays, **_unread(part, arrays)}) for part in parts[:-1]]
        self._second_runs = [_bind(part, arrays) for part in parts]
        self._kept: list[NDArray] = []

    def forward(self, images: NDArray) -> NDArray:
        """Return the features of images float32 [b, 3, h, w]; ``backward`` belongs to them."""
        self._kept = [images]
        with mx.autograd.pause(train_mode=True):
            for run in self._first_runs:
                self._kept.append(run(self._kept[-1]))
        # The last part is the first that the backward pass needs: it runs once.
        return self._record(len(self._kept) - 1)

    def backward(self, features: NDArray, gradient: NDArray) -> None:
        """Write the gradient of every parameter, given that of the features [b, D]."""
        assert self._kept, "no forward pass, or its backward pass is over"
        outputs = features
        while True:
            outputs.backward(gradient)
            inputs = self._kept.pop()
            if not self._kept:
                return
            gradient = inputs.grad
            outputs = self._record(len(self._kept) - 1)

    def _record(self, number: int) -> NDArray:
        """Run a part on what was kept, so that its backward pass can follow."""
        inputs = self._kept[number]
        if number:
            inputs.attach_grad()
        with mx.autograd.record():
            return self._second_runs[number](inputs)


def _bind(part: Part, arrays: dict[str, NDArray]) -> Callable[[NDArray], NDArray]:
    """Return the part as a function of its input.

    Its memory is not planned once and for all (``static_alloc``), as that of a network is: every
    part would hold its own all the time.
    """
    run = mx.nd.CachedOp(part.symbol)
    names = part.symbol.list_inputs()
    return lambda inputs: run(*[inputs if name == part.source else arrays[name] for name in names])


def _unread(part: Part, arrays: dict[str, NDArray]) -> dict[str, NDArray]:
    """Return running statistics for a run that must not count."""
    return {name: arrays[name].copy() for name in part.symbol.list_auxiliary_states()}
