"""Half precision without lost gradients: dynamic loss scaling.

Gradients of a float16 network underflow below 6e-8. The loss is therefore multiplied by a large
factor before the backward pass and the gradients divided by it before the update; the factor falls
when a gradient overflows (that update is skipped) and rises when none has for a while
(Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.2). The gradients are looked
at after their reduction over the ranks, so that all ranks decide alike.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from typing_extensions import override

from runtime.mxnet import mx
from runtime.ndarray import is_on_host
from runtime.state import Saved, State, Stateful
from training.update import host_sgd

_log = logging.getLogger(__name__)

_INITIAL = 2.0**13
_SMALLEST = 1.0
_FACTOR = 2.0
_GROWTH_INTERVAL = 2000


class LossScale(Stateful):
    """The factor between the loss and what the backward pass starts from."""

    def __init__(self, *, dynamic: bool) -> None:
        """Args: dynamic: for float16; without it the factor stays 1."""
        self._dynamic = dynamic
        self._good_updates = 0
        self.value = _INITIAL if dynamic else 1.0

    def scaled(self, gradient: Any) -> Any:
        """What the backward pass starts from, times the factor."""
        return gradient * self.value if self._dynamic else gradient

    def judge(self, gradients: Sequence[Any]) -> Callable[[], bool]:
        """Whether the gradients are finite, or ``accept`` is going to look at them."""
        return (lambda: True) if self._dynamic else _all_finite(gradients)

    def accept(self, gradients: Sequence[Any], update: int) -> bool:
        """Whether the gradients (NDArrays, reduced over the ranks) may be used; adapts the factor.

        The gradients have the factor from before the call: take ``value`` first.

        Only the dynamic scale looks at them, because the look waits for the device.
        """
        if not self._dynamic:
            return True
        if not _all_finite(gradients)():
            self.value = max(self.value / _FACTOR, _SMALLEST)
            self._good_updates = 0
            _log.warning(
                "update %d skipped: a float16 gradient overflowed; loss scale now %g",
                *(update, self.value),
            )
            return False
        self._good_updates += 1
        if self._good_updates % _GROWTH_INTERVAL == 0:
            self.value *= _FACTOR
        return True

    @override
    def export_state(self, update: int) -> State:
        return State(values={"loss_scale": self.value, "good_updates": self._good_updates})

    @override
    def load_state(self, saved: Saved) -> None:
        value, good_updates = saved.number("loss_scale"), saved.count("good_updates")
        if self._dynamic:
            self.value, self._good_updates = value, good_updates


def _all_finite(gradients: Sequence[Any]) -> Callable[[], bool]:
    """Whether the gradients are finite. The returned function waits for the device.

    A sum of squares that overflows float32 is no gradient to go on with either.
    """
    if all(map(is_on_host, gradients)):
        return lambda: host_sgd.all_finite(gradients)
    # The operator takes arrays of one type; a float16 network has parameters of two.
    by_type: dict[Any, list[Any]] = {}
    for gradient in gradients:
        by_type.setdefault(gradient.dtype, []).append(gradient)
    sums = mx.nd.concat(
        *(mx.nd.multi_sum_sq(*alike, num_arrays=len(alike)) for alike in by_type.values()), dim=0
    )
    finite = (sums - sums == 0).min()
    return lambda: bool(finite.asscalar())
