"""Steps of the training loop that are functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typing_extensions import override

from training.loop import Step


class FunctionStep(Step):
    """Calls a function at each update, and another one when the loop wants to know all."""

    def __init__(
        self, function: Callable[..., Any], finish: Callable[[], None] = lambda: None
    ) -> None:
        self._function, self._finish = function, finish

    @override
    def __call__(self, batch: Any, update: int, lr: float) -> Any:
        return self._function(batch, update, lr)

    @override
    def finish(self) -> None:
        self._finish()
