"""Training passes: of a graph as it is, and two that keep few feature maps and compute them twice.

Most of a step's memory is feature maps that the backward pass needs.

A ``Recomputation`` cuts the graph into parts, one after the other. The forward pass keeps only the
inputs of the parts, and the backward pass runs each part again before it computes the gradients of
that part (Chen et al., arXiv:1604.06174). So the maps of one part exist at a time, at the price of
a second forward pass. MXNet's own switch for this, the "mirror", is one of the symbol executor,
without effect in Gluon. All results equal those of the whole graph: the second run of a part reads
the same numbers. It would update BatchNorm's running statistics a second time, so the first run
updates copies of them, which are not used.

What a step allocates for maps and their gradients is near the sum of the outputs of all operators:
MXNet frees outputs that the backward pass does not read, and adds gradients. ``training.plan``
multiplies the sizes that are counted here with what was measured; a test compares them with the
arrays of a step.

An ``Accumulation`` cuts the batch, which may be larger than the memory. The head needs the features
of the whole batch, and the backbone's gradient needs the head's answer.
So each of the equal parts runs once for its features, its feature maps making room for those of the
next part; after the head, each runs again for its backward pass, and the gradients of all parts add
up (gradient caching: Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited
Setup", 2021, section 3.2). The feature maps of one part exist at a time, at the price of a second
forward pass of all parts but the last, whose backward pass comes first.

Loss and gradient are those of the whole batch, but BatchNorm sees one part at a time, as it does
with a smaller batch. Its running statistics take every part once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from typing_extensions import override

from backbones.graph.frozen import kept_statistics
from backbones.graph.nodes import (
    Graph,
    Node,
    Shape,
    first_shapes,
    from_json,
    part_of,
    to_json,
)
from backbones.layers import Symbol
from runtime.mxnet import mx

NDArray = Any
Context = Any


class TrainingPass:
    """Forward and backward pass of a graph with one output."""

    def __init__(self, network: Callable[[Any], Any]) -> None:
        """Use a network as it is."""
        self._network = network

    def forward(self, images: Any) -> Any:
        """Return the output for images float32 [b, c, h, w], for one call of ``backward``."""
        return self._network(images)

    def backward(self, outputs: Any, gradient: Any) -> None:
        """Write the gradient of every parameter, given the last output and its gradient."""
        outputs.backward(gradient)


class Part(NamedTuple):
    """A piece of a graph: its inputs are the tensor ``source`` and parameters."""

    symbol: Symbol
    source: str


def cut(symbol: Symbol, image_size: tuple[int, int]) -> list[Part]:
    """Cut a graph where everything after the cut reads one tensor from before it.

    A part takes pieces until it would exceed the largest one that cannot be cut further: smaller
    parts would only add tensors to be kept. A graph that cannot be cut is one part. It has the
    input ``data`` and one output; the image size is height and width.
    """
    graph, shapes = to_json(symbol), first_shapes(symbol, (1, 3, *image_size))
    nodes: list[Node] = graph["nodes"]
    pieces = _pieces(nodes, graph["heads"][0][0])
    # Elements per image of the outputs of a piece's nodes.
    sizes = [sum(math.prod(shapes[nodes[index]["name"]]) for index in piece) for piece in pieces]
    ends: list[int] = []
    part_size = 0
    for piece, size in zip(pieces, sizes):
        if ends and part_size + size <= max(sizes):
            ends[-1], part_size = piece[-1], part_size + size
        else:
            ends.append(piece[-1])
            part_size = size
    data = next(index for index, node in enumerate(nodes) if node["name"] == "data")
    sources = [data, *ends[:-1]]
    return [_part(graph, source, end) for source, end in zip(sources, ends)]


def _pieces(nodes: list[Node], last: int) -> list[list[int]]:
    """Return the nodes that depend on ``data``, in pieces, each of which reads one tensor.

    No two pieces have a parameter in common: each would write the whole of its gradient.
    """
    # Of nodes that depend on data, the parameters that they use; of others, those they are made of.
    used_by: dict[int, set[int]] = {}
    made_of: dict[int, set[int]] = {}
    last_use: dict[int, int] = {}
    for index, node in enumerate(nodes[: last + 1]):
        sources = [entry[0] for entry in node["inputs"]]
        parameters = {one for source in sources for one in made_of.get(source, ())}
        maps = [source for source in sources if source in used_by]
        if node["name"] == "data" or maps:
            used_by[index] = parameters
            last_use.update(dict.fromkeys([index, *maps, *parameters], index))
        else:
            made_of[index] = parameters or {index}
    dependent = list(used_by)
    pieces: list[list[int]] = [[]]
    open_until, has_parameter, is_random = 0, False, False
    for previous, index in zip(dependent, dependent[1:]):
        pieces[-1].append(index)
        # The last use of what comes before this node, and of the parameters used so far.
        open_until = max(
            open_until, last_use[previous], *(last_use[parameter] for parameter in used_by[index])
        )
        # A first piece without parameters would need no gradient, and so no second run.
        has_parameter = has_parameter or bool(used_by[index])
        # A second run would draw other numbers; the last part runs once.
        is_random = is_random or nodes[index]["op"] == "Dropout"
        if has_parameter and open_until <= index < last and not is_random:
            pieces.append([])
    return pieces


def _part(graph: Graph, source: int, end: int) -> Part:
    """Return what computes the output of node ``end`` from that of node ``source``."""
    nodes: list[Node] = graph["nodes"]
    # The nodes from source to end, and their parameters.
    needed, waiting = {source}, [end]
    while waiting:
        index = waiting.pop()
        if index not in needed:
            needed.add(index)
            waiting += [entry[0] for entry in nodes[index]["inputs"]]
    part = from_json(part_of(graph, needed, {source}, [[end, 0, 0]]))
    return Part(part, nodes[source]["name"])


class Recomputation(TrainingPass):
    """Forward and backward pass of a graph in parts."""

    def __init__(self, parts: list[Part], parameters: Any, ctx: Context) -> None:
        """Use parts from ``cut`` and the initialized ``ParameterDict`` of the whole graph."""
        arrays = {name: parameter.data(ctx) for name, parameter in parameters.items()}
        self._first_runs = []
        for part in parts[:-1]:
            # Those that a frozen BatchNorm reads are not written, and may be loaded later.
            written = set(part.symbol.list_auxiliary_states()) - kept_statistics(part.symbol)
            copies = {name: arrays[name].copy() for name in written}
            self._first_runs.append(_bind(part, {**arrays, **copies}))
        self._second_runs = [_bind(part, arrays) for part in parts]
        # No gradient is needed before the first part with a parameter that is trained.
        trained = {name for name, one in parameters.items() if one.grad_req != "null"}
        self._first_trained = next(
            number
            for number, part in enumerate(parts)
            if not trained.isdisjoint(part.symbol.list_arguments())
        )
        # The inputs of the parts whose backward pass is still to come.
        self._kept: list[NDArray] = []

    @override
    def forward(self, images: NDArray) -> NDArray:
        self._kept = [images]
        with mx.autograd.pause(train_mode=True):
            for run in self._first_runs:
                self._kept.append(run(self._kept[-1]))
        # The last part is the first that the backward pass needs: it runs once.
        return self._record(len(self._kept) - 1)

    @override
    def backward(self, outputs: NDArray, gradient: NDArray) -> None:
        assert self._kept, "no forward pass, or its backward pass is over"
        while True:
            outputs.backward(gradient)
            inputs = self._kept.pop()
            if len(self._kept) <= self._first_trained:
                self._kept = []
                return
            gradient = inputs.grad
            outputs = self._record(len(self._kept) - 1)

    def _record(self, part: int) -> NDArray:
        """Run a part on its kept input, for its backward pass."""
        inputs = self._kept[part]
        if part > self._first_trained:
            inputs.attach_grad()
        with mx.autograd.record():
            return self._second_runs[part](inputs)


def _bind(part: Part, arrays: dict[str, NDArray]) -> Callable[[NDArray], NDArray]:
    """Return the part as a function of its input.

    Its memory is not planned ahead (``static_alloc``), as that of a network is: every part would
    hold its memory all the time.
    """
    run = mx.nd.CachedOp(part.symbol)
    names = part.symbol.list_inputs()
    return lambda inputs: run(*[inputs if name == part.source else arrays[name] for name in names])


def output_elements(symbol: Symbol, image_shape: Shape) -> int:
    """Return the number of elements per image [c, h, w] of the outputs of all operators."""
    return _sum_of_outputs(symbol, first_shapes(symbol, (1, *image_shape)))


def recomputed_elements(symbol: Symbol, image_size: tuple[int, int]) -> tuple[int, int]:
    """Return the sizes per image of a ``Recomputation``.

    The first is the number of elements of the outputs of the largest part's operators, the second
    that of the tensors between the parts, which exist during the whole step.
    """
    shapes, parts = first_shapes(symbol, (1, 3, *image_size)), cut(symbol, image_size)
    between = sum(math.prod(shapes[part.source]) for part in parts[1:])
    return max(_sum_of_outputs(part.symbol, shapes) for part in parts), between


def _sum_of_outputs(symbol: Symbol, shapes: Mapping[str, Shape]) -> int:
    nodes = to_json(symbol)["nodes"]
    return sum(math.prod(shapes[node["name"]]) for node in nodes if node["op"] != "null")


class Accumulation(TrainingPass):
    """Forward and backward pass of a batch in parts."""

    def __init__(
        self,
        parts: int,
        network: TrainingPass,
        parameters: Any,
        statistics: Sequence[NDArray],
        begin_part: Callable[[int], None],
    ) -> None:
        """Have gradients of parameters, a ``gluon.ParameterDict``, added up from now on.

        There are at least 2 parts of one length, each computed by ``network``, which changes the
        NDArrays of ``statistics``. ``begin_part`` is called with the number of a part each time
        before it runs, so that both passes draw the same random numbers.
        """
        assert parts > 1
        self._parts, self._part, self._begin_part = parts, network, begin_part
        self._trained = [one for one in parameters.values() if one.grad_req != "null"]
        for parameter in self._trained:
            parameter.grad_req = "add"
        self._statistics = statistics
        # The parts whose backward pass is still to come, and the features of the last one.
        self._kept: list[NDArray] = []
        self._last: Any = None

    @override
    def forward(self, images: NDArray) -> NDArray:
        size, rest = divmod(images.shape[0], self._parts)
        assert rest == 0, (images.shape, self._parts)
        last = self._parts - 1
        with mx.autograd.pause():
            parts = [images[number * size : (number + 1) * size] for number in range(self._parts)]
            # MXNet does not know that a backward pass on a CPU changes the statistics.
            mx.nd.waitall()
            before = [array.copy() for array in self._statistics]
            features = [self._look(number, part) for number, part in enumerate(parts[:last])]
            for array, value in zip(self._statistics, before):
                array[:] = value
        self._last = self._run(last, parts[last])
        self._kept = parts[:last]
        with mx.autograd.pause():
            return mx.nd.concat(*features, self._last.detach(), dim=0)

    @override
    def backward(self, outputs: NDArray, gradient: NDArray) -> None:
        assert self._last is not None, "no forward pass, or its backward pass is over"
        size = gradient.shape[0] // self._parts
        for parameter in self._trained:
            parameter.zero_grad()
        self._part.backward(self._last, gradient[-size:])
        mx.nd.waitall()
        self._last = None
        for number, part in enumerate(self._kept):
            self._backward(number, part, gradient[number * size : (number + 1) * size])
        self._kept = []

    def _look(self, number: int, part: NDArray) -> NDArray:
        """The features alone: without what they hold, the next part has the memory.

        Detached before the copy: MXNet's engine drops the arguments of an operation after it has
        said that it is done. A recorded array that it still has keeps the pass's memory in use, and
        the next part would plan as much again.
        """
        features = self._run(number, part).detach().copy()
        mx.nd.waitall()
        return features

    def _backward(self, number: int, part: NDArray, gradient: NDArray) -> None:
        # A function, for the same reason.
        self._part.backward(self._run(number, part), gradient)
        mx.nd.waitall()

    def _run(self, number: int, part: NDArray) -> NDArray:
        self._begin_part(number)
        with mx.autograd.record():
            return self._part.forward(part)
