"""The gradients of an update, once they are summed: are they finite, and how long are they?

``FiniteGuard`` acts on the first answer, ``clip`` on the second.

A GPU computes while Python queues the next update. Asking it "are they finite?" would stop that, so
on a device the answer is a number there, which the training step reads together with the loss, one
update later. On the host the answer is worked out on demand, before the update changes weights.

Gradients that are too large together become shorter together (Pascanu et al., On the difficulty of
training recurrent neural networks, ICML 2013, algorithm 1): one factor for all, so the direction
stays. The norm is that without the loss scale. The class centers are not part of it, as in
arcface_torch: only a sample of them has a gradient in an update, and each center's is bounded by
its softmax already. Every rank computes the norm of the same sums, and in one order whatever its
number of threads, so that all get the same factor bit for bit.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from runtime.devices import is_host
from runtime.errors import ConfigError
from runtime.kernels import unlocked_kernel
from runtime.mxnet import mx
from runtime.ndarray import memory
from training.update import rules

_log = logging.getLogger(__name__)

# So many skipped updates in a row are no accident of the data.
_MOST_IN_A_ROW = 100
# A quotient by it is finite for every norm that is not zero to float32.
_SMALLEST = float(np.finfo(np.float32).tiny)


class Reduced(NamedTuple):
    """The answer of an optimizer about the gradients of one update, once they are summed."""

    numbers: tuple[Any, ...]
    """NDArrays float32 [1] on the device of the gradients; none where the host looks at them."""
    are_finite: Callable[[Sequence[float]], bool]
    """Returns True if they may be used, from the values of ``numbers``; equal on all ranks.

    To be called in the order of the updates, and possibly after later updates. A loss scale always
    says yes, because it expects some gradients to overflow, and logs the update if it was skipped:
    it is to be asked once."""


def judge(gradients: Sequence[Any]) -> Reduced:
    """Look at the gradients, which are not waited for.

    On the host the optimizer has to ask ``are_finite`` before the next backward pass overwrites
    them; the answer is remembered.
    """
    if is_host(gradients[0].context):
        look = functools.lru_cache(maxsize=None)(lambda: rules.all_finite(gradients))
        return Reduced((), lambda values: look())
    return Reduced((finite_flag(gradients),), lambda values: values[0] == 1)


def finite_flag(gradients: Sequence[Any]) -> Any:
    """1 if all gradients are finite, else 0: float32 [1] on their device; queued.

    A sum of squares that overflows float32 is no gradient to go on with either.
    """
    sums = _sums_of_squares(gradients)
    return (sums - sums == 0).min()


class FiniteGuard:
    """Stops the run at a loss or a gradient that is not finite, or has the update skipped.

    A run that has diverged would train on for days: every number is NaN by then, also in the last
    checkpoints. So every update is checked. Losses and gradients are sums over the ranks, in which
    a NaN of one rank is a NaN of all, so the ranks see the same without asking each other.

    The look waits for the device. So the numbers of an update are read when the next one is queued:
    the device has work while it is judged, and a run that has diverged ends one update later.

    Attributes:
        skips: True if updates are skipped, which their step then has to make possible.
        skipped: how many were.
    """

    def __init__(
        self,
        on_nan: str = "stop",
        last_good: Callable[[], Optional[Path]] = lambda: None,
    ) -> None:
        """``last_good`` returns the last checkpoint, for which all ranks ask together."""
        self.skips = on_nan == "skip"
        self.skipped = 0
        self._in_a_row = 0
        self._judge_submitted: Callable[[], bool] = lambda: True
        self._last_good = last_good

    def submit(self, update: int, loss: Any, reduced: Reduced) -> None:
        """Judge an update, of a loss [1], later, and the one that was submitted before it now.

        Raises:
            ConfigError: the one before may not count.
        """
        numbers = mx.nd.concat(loss, *reduced.numbers, dim=0) if reduced.numbers else loss
        self.finish()
        self._judge_submitted = functools.partial(self._judge, update, numbers, reduced)

    def finish(self) -> bool:
        """Return True if the update that was submitted last may count; waits for its numbers.

        Raises:
            ConfigError: it may not, and updates are not skipped.
        """
        judge, self._judge_submitted = self._judge_submitted, lambda: True
        return judge()

    def accept(self, update: int, loss: Any, reduced: Reduced) -> bool:
        """Return True if an update may count, judged at once; see ``submit``."""
        self.submit(update, loss, reduced)
        return self.finish()

    def _judge(self, update: int, numbers: Any, reduced: Reduced) -> bool:
        """Read the loss and the numbers of the gradients, [1 + n]."""
        value, *others = numbers.asnumpy().tolist()
        # A loss that is not finite is no overflow of float16, of which ``are_finite`` would tell.
        if math.isfinite(value) and reduced.are_finite(others):
            self._in_a_row = 0
            return True
        what = "a gradient of the backbone is not finite"
        if not math.isfinite(value):
            what = f"the loss is {value}"
        self._in_a_row += 1
        if not self.skips or self._in_a_row > _MOST_IN_A_ROW:
            raise ConfigError(self._explain(update, what))
        self.skipped += 1
        _log.warning(
            "update %d skipped: %s; %d skipped in all (--on-nan skip)",
            *(update + 1, what, self.skipped),
        )
        return False

    def _explain(self, update: int, what: str) -> str:
        last = self._last_good()
        saved = f"the last good checkpoint is {last}" if last else "there is no checkpoint yet"
        skips = f" after {self._in_a_row - 1} skipped updates" if self.skips else ""
        return f"update {update + 1}: {what}{skips}; {saved}; lower --lr"


def clip(gradients: Sequence[Any], max_norm: float) -> None:
    """Multiply gradients (NDArrays float32) so that their norm together is at most ``max_norm``.

    On the host this waits for them; on a device it is queued. Gradients that are not finite stay
    so.
    """
    if is_host(gradients[0].context):
        squares = math.fsum(_sum_of_squares(memory(one).reshape(-1)) for one in gradients)
        factor = max_norm / max(math.sqrt(squares), _SMALLEST)
        # Neither of a norm that is not finite.
        if 0 < factor < 1:
            for gradient in gradients:
                memory(gradient)[...] *= np.float32(factor)
        return
    ratio = device_factor(gradients, max_norm)
    for gradient in gradients:
        mx.nd.broadcast_mul(gradient, ratio.reshape((1,) * gradient.ndim), out=gradient)


def device_factor(gradients: Sequence[Any], max_norm: float, unscale: Any = 1.0) -> Any:
    """Return what gradients are to be multiplied with, at most 1: NDArray float32 [1]; queued.

    Args:
        gradients: NDArrays of any types on one device.
        max_norm: of the gradients times ``unscale``.
        unscale: the inverse of the loss scale, NDArray [1] or a number.
    """
    # The norm of the arrays' norms, in units of the largest: its square may exceed float32.
    norms = mx.nd.sqrt(_sums_of_squares(gradients)) * unscale
    largest = mx.nd.maximum(norms.max(), _SMALLEST)
    norm = largest * mx.nd.sqrt(mx.nd.square(mx.nd.broadcast_div(norms, largest)).sum())
    return mx.nd.minimum(max_norm / norm, 1.0)


def _sums_of_squares(arrays: Sequence[Any]) -> Any:
    """The sum of squares of each array, float32 [n], those of one type together; queued."""
    # The operator takes arrays of one type; a float16 network has parameters of two.
    by_type: dict[Any, list[Any]] = {}
    for array in arrays:
        by_type.setdefault(array.dtype, []).append(array)
    sums = [mx.nd.multi_sum_sq(*alike, num_arrays=len(alike)) for alike in by_type.values()]
    return mx.nd.concat(*sums, dim=0) if len(sums) > 1 else sums[0]


# One thread adds in the order of the elements, so that the sum is reproducible.
@unlocked_kernel
def _sum_of_squares(values):  # type: ignore[no-untyped-def]
    total = np.float64(0.0)
    for i in range(values.size):
        value = np.float64(values[i])
        total += value * value
    return total
