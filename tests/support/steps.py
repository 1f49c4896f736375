"""Steps of the training loop that are functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from training.loop import Step


class FunctionStep(Step):
    """Calls a function at each update, and another one when the loop wants to know all."""

    def __init__(
        self, function: Callable[..., Any], finish: Callable[[], None] = lambda: None
    ) -> None:
        self._function = function
        setattr(self, "finish", finish)  # noqa: B010 (a method is not to be assigned)

    def __call__(self, batch: Any, update: int, lr: float) -> Any:
        return self._function(batch, update, lr)
