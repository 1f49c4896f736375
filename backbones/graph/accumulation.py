"""Training passes: of a graph as it is, and of a batch that is larger than the memory, in parts.

The head needs the features of the whole batch, and the backbone's gradient needs the head's answer.
So each of the equal parts runs once for its features, its feature maps making room for those of the
next part; after the head, each runs again for its backward pass, and the gradients of all parts add
up (gradient caching: Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited
Setup", 2021, section 3.2). The feature maps of one part exist at a time, at the price of a second
forward pass of all parts but the last, whose backward pass comes first.

Loss and gradient are those of the whole batch, but BatchNorm sees one part at a time, as it does
with a smaller batch. Its running statistics take every part once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from typing_extensions import override

from runtime.mxnet import mx

NDArray = Any


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
