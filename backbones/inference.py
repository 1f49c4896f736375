"""The outputs of a network whose weights do not change, as fast as its device computes them.

Verification and validation run the network forward only, over tens of thousands of images, between
updates of which each changes the weights. On a CPU a graph is made for the weights of that moment
(``backbones.graph.onednn.folding``), whose operators keep their kernels in oneDNN's layouts, and
which sees few images at a time, so that maps are in a cache when the next layer reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

import numpy as np
from numpy.typing import NDArray

from backbones.graph.nodes import Shape
from backbones.graph.onednn.folding import fold
from backbones.layers import Symbol
from runtime.mxnet import mx

Infer = Callable[[NDArray[np.uint8]], NDArray[np.float32]]
"""From images uint8 [b, c, h, w] of any number to outputs float32 [b, n]."""

_PIXELS = 8 * 112 * 112
"""Pixels of the images of one pass. Of more, the maps of a MobileFaceNet leave a cache of 32 MB; of
fewer, the threads wait for each other more often than they compute."""


def images_of_pass(height: int, width: int) -> int:
    """Return how many images of a size a CPU computes at a time."""
    return max(1, _PIXELS // (height * width))


class HostInference:
    """A network on a CPU with the weights that it had when this was made.

    A network that mixes the images of a batch ("GNAP" takes a mean over all of them) gets the
    images of a pass as a batch.
    """

    def __init__(
        self,
        symbol: Symbol,
        weights: Mapping[str, NDArray[np.float32]],
        dtype: str = "float32",
    ) -> None:
        """Make the graph ready.

        Args:
            symbol: the float32 graph, with one output.
            weights: its parameters and auxiliary states.
            dtype: of maps and products, float32 or bfloat16.
        """
        self._symbol, self._weights, self._dtype = symbol, weights, dtype
        # MXNet plans a graph for one shape, and anew each time the shape changes.
        self._passes: dict[Shape, _Pass] = {}

    def __call__(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the outputs [b, n] for images [b, c, h, w]."""
        step = images_of_pass(*images.shape[2:])
        # Each pass is queued while those before it are computed.
        queued = [self._queue(images[i : i + step]) for i in range(0, len(images), step)]
        return np.concatenate([outputs.asnumpy() for outputs in queued])

    def _queue(self, images: NDArray[np.uint8]) -> Any:
        if images.shape not in self._passes:
            folded = fold(self._symbol, self._weights, images.shape[1:], self._dtype)
            self._passes[images.shape] = _Pass(*folded)
        return self._passes[images.shape](images)


class _Pass:
    """The folded graph, for batches of one shape."""

    def __init__(self, folded: Symbol, values: Mapping[str, Any]) -> None:
        names = folded.list_inputs()
        position = names.index("data")
        self._before, self._after = (
            [values[name] for name in part]
            for part in (names[:position], names[position + 1 :])
        )
        parameters = [index for index in range(len(names)) if index != position]
        self._operator = mx.nd.CachedOp(
            folded,
            (
                ("static_alloc", True),
                ("static_shape", True),
                ("data_indices", str([position])),
                ("param_indices", str(parameters)),
            ),
        )

    def __call__(self, images: NDArray[np.uint8]) -> Any:
        """Return the outputs, an NDArray that is being computed."""
        data = mx.nd.array(images, dtype="float32")
        return self._operator(*self._before, data, *self._after)
