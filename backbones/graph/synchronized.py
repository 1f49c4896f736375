"""A training step whose BatchNorms normalize by the images of all ranks.

The graph is cut at its BatchNorms into levels, which run one after the other. The level of a node
is the largest number of BatchNorms on a way to it from the image, so its BatchNorms normalize
tensors of earlier levels. Before each level, the ranks exchange means and variances of these; in
the backward pass, after each, the two sums over the images that the gradient of a normalized number
needs (Ioffe and Szegedy, arXiv:1502.03167, section 3). So the thread of the program queues all
collectives, in the same order and under the same names on every rank, and no operator of MXNet
waits for another rank. MXNet's ``SyncBatchNorm`` is for the devices of one process.

A level is given the statistics, so its own backward pass takes them for constants. With x̂ the
normalized x, σ² = variance + ε, and sums over the n numbers that a channel has on all ranks,

    dL/dx = γ/σ · dL/dy − γ/σ · (Σ dL/dy + x̂ · Σ (x̂ · dL/dy)) / n.

The first term is what the level computes. Its gradients of β and γ are the two sums over the rank's
own images. The second term is a BatchNorm of x, too, with the same statistics.

Shapes: C channels of a BatchNorm, R ranks, all of which have equally many images. A tensor is the
image, or the output of an operator, by whose name it is called.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from typing_extensions import override

from backbones.graph.nodes import Graph, Node, from_json, moved, part_of, to_json
from backbones.graph.passes import TrainingPass
from backbones.layers import Symbol
from runtime.devices import Communicator
from runtime.mxnet import mx

NDArray = Any
Context = Any
Arrays = dict[str, NDArray]


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
    """The part of a graph between some BatchNorms and the next.

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


def cut(symbol: Symbol) -> Iterator[Level]:
    """Yield the levels of a graph with the input ``data``, each after those that it reads from.

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
        trained.append(any(depends) if depends else node["name"] != "data")
    operators = {index for index, node in enumerate(nodes) if node["op"] != "null"}
    between = {entry[0] for entry in graph["heads"]}
    for index in operators:
        between.update(one for one in sources[index] if numbers[one] < numbers[index])

    def named(indices: Iterable[int]) -> list[str]:
        return [nodes[index]["name"] for index in indices]

    for number in range(max(numbers) + 1):
        own = {index for index in operators if numbers[index] == number}
        inputs = {source for index in own for source in sources[index]} - own
        read, written = sorted(inputs & operators), sorted(own & between)
        # The first is empty if the image itself is normalized.
        if own:
            part = part_of(graph, own | inputs, {*read}, [[index, 0, 0] for index in written])
            yield Level(
                from_json(part),
                norms=[norms[index] for index in sorted(own & norms.keys())],
                read=named(index for index in read if trained[index]),
                written=named(written),
                trained=named(index for index in written if trained[index]),
            )


def _with_given_statistics(graph: Graph) -> tuple[Graph, dict[int, Norm]]:
    """Return a graph whose BatchNorms read statistics of their own, and these by their indices."""
    nodes: list[Node] = []
    norms: dict[int, Norm] = {}
    indices: dict[int, int] = {}
    for index, node in enumerate(graph["nodes"]):
        node = {**node, "inputs": [moved(entry, indices) for entry in node["inputs"]]}
        attributes = node.get("attrs", {})
        if node["op"] == "BatchNorm" and attributes.get("use_global_stats") != "True":
            has_fixed_gamma = attributes.get("fix_gamma", "True") == "True"
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


class SynchronizedPass(TrainingPass):
    """Forward and backward pass of a graph, level by level."""

    def __init__(self, symbol: Symbol, parameters: Any, ranks: Communicator, ctx: Context) -> None:
        """Cut a graph with one output, and bind its levels to their arrays.

        ``parameters`` is its initialized ``ParameterDict``.
        """
        arrays = {name: parameter.data(ctx) for name, parameter in parameters.items()}
        levels = list(cut(symbol))
        self._levels = [
            _BoundLevel(level, f"sync_bn.{number}", arrays) for number, level in enumerate(levels)
        ]
        self._ranks = ranks
        (self._output,) = levels[-1].written
        # The outputs of the levels whose backward pass is still to come.
        self._tensors: Arrays = {}

    @override
    def forward(self, images: NDArray) -> NDArray:
        self._tensors = {"data": images}
        with mx.autograd.pause(train_mode=True):
            for level in self._levels:
                level.exchange_statistics(self._tensors, self._ranks)
                level.forward(self._tensors)
        return self._tensors[self._output]

    @override
    def backward(self, outputs: NDArray, gradient: NDArray) -> None:
        assert self._tensors, "no forward pass, or its backward pass is over"
        gradients = {self._output: gradient}
        with mx.autograd.pause():
            for level in reversed(self._levels):
                own = level.backward(self._tensors, gradients)
                level.exchange_sums(self._tensors, own, self._ranks)
                for name, addend in own.items():
                    # Not in place: it may be the gradient of another tensor, too.
                    gradients[name] = gradients[name] + addend if name in gradients else addend
        self._tensors = {}


class _BoundLevel:
    """A level with its arrays."""

    def __init__(self, level: Level, name: str, arrays: Arrays) -> None:
        """Bind it to parameters and states of the whole graph; ``name``: of its collectives."""
        self._name = name
        # Its memory is not planned ahead (``static_alloc``): every level would hold the gradients
        # of its maps all the time.
        self._run = mx.nd.CachedOp(level.symbol)
        self._inputs = level.symbol.list_inputs()
        self._norms = [_BoundNorm(norm, arrays) for norm in level.norms]
        self._arrays = dict(arrays)
        for norm in self._norms:
            self._arrays.update(norm.given)
        self._level = level
        # What it has read in the forward pass, as inputs of its own graph.
        self._own: Arrays = {}

    def exchange_statistics(self, tensors: Arrays, ranks: Communicator) -> None:
        """Compute the statistics of what is normalized, over the images of all ranks."""
        if not self._norms:
            return
        own = mx.nd.concat(*(norm.own_statistics(tensors) for norm in self._norms), dim=1)
        rows = ranks.allgather(own, f"{self._name}.statistics")
        for norm, part in _parts(self._norms, rows, axis=1):
            norm.combine(part)

    def forward(self, tensors: Arrays) -> None:
        """Run the level on what earlier ones have computed, and add its outputs."""
        # The same memory, but not the result of an earlier level.
        self._own = {name: tensors[name].detach() for name in self._level.read}
        for array in self._own.values():
            mx.autograd.mark_variables([array], [_unallocated(array)])
        inputs = {**self._arrays, **tensors, **self._own}
        with mx.autograd.record():
            found = self._run(*(inputs[name] for name in self._inputs))
        outputs = found if isinstance(found, list) else [found]
        tensors.update(zip(self._level.written, outputs))

    def backward(self, tensors: Arrays, gradients: Arrays) -> Arrays:
        """Return the gradients of what the level has read, for constant statistics.

        Its outputs and their gradients are taken out of the arguments: they are not needed again.
        """
        outputs = [tensors.pop(name) for name in self._level.trained]
        if outputs:
            mx.autograd.backward(outputs, [gradients.pop(name) for name in self._level.trained])
        # Not what was marked: where a gradient is that of an output, MXNet puts this in its place.
        found = {name: array.grad for name, array in self._own.items()}
        self._own = {}
        return found

    def exchange_sums(self, tensors: Arrays, gradients: Arrays, ranks: Communicator) -> None:
        """Complete the gradients of what was normalized, by sums over the images of all ranks."""
        norms = [norm for norm in self._norms if norm.source in gradients]
        if not norms:
            return
        sums = mx.nd.concat(*(one for norm in norms for one in norm.own_sums(gradients)), dim=0)
        ranks.allreduce(sums, f"{self._name}.sums")
        for norm, part in _parts(norms, sums, axis=0):
            norm.complete(tensors, gradients, part, ranks.size)


class _BoundNorm:
    """A BatchNorm with its statistics; ``given`` are inputs that only its level has."""

    def __init__(self, norm: Norm, arrays: Arrays) -> None:
        """Args: the BatchNorm, and the parameters and auxiliary states of the whole graph."""
        self._norm, self.source = norm, norm.source
        self._running = [arrays[name] for name in norm.running]
        (self.channels,) = self._running[0].shape
        # Mean, variance, and 1 / sqrt(variance + epsilon), of all ranks.
        self._statistics = [self._running[0].zeros_like() for _ in range(3)]
        self._one, self._zero = self._running[0].ones_like(), self._running[0].zeros_like()
        self.given = dict(zip(norm.statistics, self._statistics))
        if norm.has_fixed_gamma:
            self.given[norm.gamma] = self._one.copy()
            self.given[norm.gamma].attach_grad()
        self._arrays = {**arrays, **self.given}

    def own_statistics(self, tensors: Arrays) -> NDArray:
        """Return the mean and variance of each channel over this rank's images, [1, 2 C]."""
        # A GPU writes running statistics into the last two; they are of no use before ``combine``.
        arrays = tensors[self.source], self._one, self._zero, *self._statistics[:2]
        epsilon = self._norm.epsilon
        _, mean, inverse = mx.nd.BatchNorm(
            *arrays, fix_gamma=False, eps=epsilon, output_mean_var=True
        )
        return mx.nd.concat(mean, inverse**-2 - epsilon, dim=0).reshape((1, -1))

    def combine(self, rows: NDArray) -> None:
        """Set the statistics, and update the running ones, by those of all ranks, [R, 2 C].

        The variance of numbers in groups of one size is the mean of the groups' variances and the
        variance of their means (Chan, Golub and LeVeque, 1979), without the difference of two large
        numbers.
        """
        norm, (means, variances) = self._norm, mx.nd.split(rows, 2, axis=1)
        mean = means.mean(axis=0)
        deviations = mx.nd.broadcast_sub(means, mean.expand_dims(axis=0))
        variance = mx.nd.mean(variances + deviations * deviations, axis=0)
        updated = [
            old * norm.momentum + new * (1 - norm.momentum)
            for old, new in zip(self._running, (mean, variance))
        ]
        found = mean, variance, (variance + norm.epsilon) ** -0.5, *updated
        for array, value in zip((*self._statistics, *self._running), found):
            array[:] = value

    def own_sums(self, gradients: Arrays) -> list[NDArray]:
        """Return the gradients of gamma and beta by this rank's images, each [C]."""
        names = self._norm.gamma, self._norm.beta
        return [gradients[key] if key in gradients else self._arrays[key].grad for key in names]

    def complete(self, tensors: Arrays, gradients: Arrays, sums: NDArray, ranks: int) -> None:
        """Add to the gradient of what was normalized the term of its statistics.

        ``sums`` are ``own_sums`` over all R ranks, [2 C].
        """
        x, name = tensors[self.source], self._norm.gamma
        gamma = tensors[name] if name in tensors else self._arrays[name]
        mean, variance, inverse = self._statistics
        means = sums / (ranks * (x.size // self.channels))
        parameters = [gamma * inverse * -part for part in mx.nd.split(means, 2, axis=0)]
        term = mx.nd.BatchNorm(
            *(x, *parameters, mean, variance),
            fix_gamma=False,
            use_global_stats=True,
            eps=self._norm.epsilon,
        )
        gradients[self.source] = gradients[self.source] + term


def _parts(
    norms: Sequence[_BoundNorm], array: NDArray, axis: int
) -> Iterator[tuple[_BoundNorm, NDArray]]:
    """Yield each BatchNorm with its part of an array that has 2 C numbers of each."""
    begin = 0
    for norm in norms:
        end = begin + 2 * norm.channels
        yield norm, array.slice_axis(axis=axis, begin=begin, end=end)
        begin = end


def _unallocated(like: NDArray) -> NDArray:
    """Return an array that gets its memory when it is written; ``mx.nd.empty`` has it at once."""
    handle = mx.nd.ndarray._new_alloc_handle(like.shape, like.context, True, like.dtype)
    return mx.nd.NDArray(handle)
