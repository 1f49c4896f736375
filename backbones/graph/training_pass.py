"""A way to train a graph: as it is; in derived classes, in parts or together with other ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


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
