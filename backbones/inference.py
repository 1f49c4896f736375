"""The outputs of a network whose weights do not change, as fast as its device computes them.

Verification and validation run the network forward only, over tens of thousands of images, between
updates of which each changes the weights. On a CPU a graph is made for the weights of that moment
(``backbones.graph.onednn.folding``), whose operators keep their kernels in oneDNN's layouts, and
which sees few images at a time, so that maps are in a cache when the next layer reads them. Where
MXNet computes several operators at a time (``runtime.environment.prepare_lanes``), several such
graphs take turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import cycle
from typing import Any, Callable

import numpy as np
from numpy.typing import NDArray

from backbones.graph.nodes import Shape
from backbones.graph.onednn.folding import fold
from backbones.layers import Symbol
from runtime.environment import lanes
from runtime.mxnet import mx

Infer = Callable[[NDArray[np.uint8]], NDArray[np.float32]]
"""From images uint8 [b, c, h, w] of any number to outputs float32 [b, n]."""

_PIXELS = 8 * 112 * 112
_PIXELS_OF_LANE = 4 * 112 * 112
"""Pixels of the images of one pass, alone or beside others. Of more, the maps of a MobileFaceNet
leave a cache of 32 MB; of fewer, the threads of an operator wait for each other more often than
they compute, or those of lanes for MXNet's engine."""


class HostInference:
    """A network on a CPU with the weights that it had when this was made.

    A network that mixes the images of a batch ("GNAP" takes a mean over all of them) gets the
    images of a pass as a batch.
    """

    def __init__(
        self, symbol: Symbol, weights: Mapping[str, NDArray[np.float32]], dtype: str = "float32"
    ) -> None:
        """Use a float32 graph with one output, its parameters and auxiliary states.

        ``dtype``, float32 or bfloat16, is that of maps and products.
        """
        self._symbol, self._weights, self._dtype = symbol, weights, dtype
        self._lanes = lanes()
        # MXNet plans a graph for one shape, and anew each time the shape changes.
        self._passes: dict[Shape, Iterator[Callable[[NDArray[np.uint8]], Any]]] = {}

    def __call__(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the outputs [b, n] for images [b, c, h, w]."""
        height, width = images.shape[2:]
        pixels = _PIXELS if self._lanes == 1 else _PIXELS_OF_LANE
        step = max(1, pixels // (height * width))
        # Each pass is queued while those before it are computed.
        queued = [self._queue(images[i : i + step]) for i in range(0, len(images), step)]
        return np.concatenate([outputs.asnumpy() for outputs in queued])

    def _queue(self, images: NDArray[np.uint8]) -> Any:
        if images.shape not in self._passes:
            folded = fold(self._symbol, self._weights, images.shape[1:], self._dtype)
            # Each has the memory of its maps, and so works on one batch after the other.
            self._passes[images.shape] = cycle([_bind(*folded) for _ in range(self._lanes)])
        return next(self._passes[images.shape])(images)


def _bind(folded: Symbol, values: Mapping[str, Any]) -> Callable[[NDArray[np.uint8]], Any]:
    """Return the folded graph as a function of batches of one shape, which queues its work."""
    names = folded.list_inputs()
    position = names.index("data")
    parameters = [index for index in range(len(names)) if index != position]
    operator = mx.nd.CachedOp(
        folded,
        (
            ("static_alloc", True),
            ("static_shape", True),
            ("data_indices", str([position])),
            ("param_indices", str(parameters)),
        ),
    )

    def run(images: NDArray[np.uint8]) -> Any:
        inputs = {**values, "data": mx.nd.array(images, dtype="float32")}
        return operator(*(inputs[name] for name in names))

    return run
