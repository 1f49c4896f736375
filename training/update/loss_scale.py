"""Half precision without lost gradients: dynamic loss scaling.

Gradients of a float16 network underflow below 6e-8. The loss is therefore multiplied by a large
factor before the backward pass and the gradients divided by it before the update; the factor falls
when a gradient overflows (that update is skipped) and rises when none has for a while
(Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.2). The gradients are looked
at after their reduction over the ranks, so that all ranks decide alike.

The factor and the count behind it are numbers on the device, and so is the decision: the host
queues the next update without knowing it, and learns it for the log one update later.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from runtime.mxnet import mx
from runtime.state import Saved, State, Stateful
from training.update.reduced import Reduced, finite_flag

_log = logging.getLogger(__name__)

_INITIAL = 2.0**13
_SMALLEST = 1.0
_FACTOR = 2.0
_GROWTH_INTERVAL = 2000


class LossScale(Stateful):
    """The factor between the loss and what the backward pass starts from."""

    def __init__(self, ctx: Any) -> None:
        """Args: ctx: the device of the gradients."""
        self._ctx = ctx
        # Powers of two, and a count that float32 holds exactly for 16 million updates in a row.
        # Never written into: the number of an update outlives the next one, until it is read.
        self._scale, self._good_updates = self._number(_INITIAL), self._number(0)

    def scaled(self, gradient: Any) -> Any:
        """Return what the backward pass starts from, given the loss or its gradient (any shape).

        Queued. The factor is the one that ``adapt`` divides by, after this backward pass.
        """
        return gradient * self._scale

    def judge(self, gradients: Sequence[Any], update: int) -> Reduced:
        """Look at the gradients (NDArrays, reduced over the ranks); queued."""

        def note(values: Sequence[float]) -> bool:
            finite, scale = values
            if not finite:
                _log.warning(
                    "update %d skipped: a float16 gradient overflowed; loss scale now %g",
                    *(update + 1, max(scale / _FACTOR, _SMALLEST)),
                )
            return True

        return Reduced((finite_flag(gradients), self._scale), note)

    def adapt(self, finite: Any) -> Any:
        """Choose the factor of the next update; queued.

        Args:
            finite: 1 if this update's gradients are finite, else 0 (NDArray [1]).

        Returns:
            What these gradients have to be multiplied with (NDArray [1]).
        """
        inverse = 1.0 / self._scale
        self._good_updates = (self._good_updates + 1) * finite
        at_interval = self._good_updates % _GROWTH_INTERVAL == 0
        higher = mx.nd.where(at_interval, self._scale * _FACTOR, self._scale)
        lower = mx.nd.maximum(self._scale / _FACTOR, _SMALLEST)
        self._scale = mx.nd.where(finite, higher, lower)
        return inverse

    @override
    def export_state(self, update: int) -> State:
        scale, good_updates = self._scale.asscalar(), self._good_updates.asscalar()
        return State(values={"loss_scale": float(scale), "good_updates": int(good_updates)})

    @override
    def load_state(self, saved: Saved) -> None:
        self._scale = self._number(saved.number("loss_scale"))
        self._good_updates = self._number(saved.count("good_updates"))

    def _number(self, value: float) -> Any:
        return mx.nd.full((1,), value, ctx=self._ctx)
