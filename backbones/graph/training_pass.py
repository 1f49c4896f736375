"""Another way to train a graph than to run the whole of it and to differentiate that."""

from __future__ import annotations

from typing import Any, Protocol


class TrainingPass(Protocol):
    """Forward and backward pass of a graph with one output."""

    def forward(self, images: Any) -> Any:
        """Return the output for images float32 [b, c, h, w], for one call of ``backward``."""

    def backward(self, outputs: Any, gradient: Any) -> None:
        """Write the gradient of every parameter, given the last output and its gradient."""
