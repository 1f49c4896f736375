"""The look at the gradients of an update: are they finite? Decided where the gradients are.

A GPU computes while Python queues the next update. Asking it "are they finite?" would stop that, so
on a device the answer is a number there, which the training step reads together with the loss, one
update later. On the host the answer is worked out on demand, before the update changes weights.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

from runtime.mxnet import mx
from runtime.ndarray import is_on_host
from training.update import host_sgd


class Reduced(NamedTuple):
    """The answer of an optimizer about the gradients of one update, once they are summed."""

    numbers: tuple[Any, ...]
    """NDArrays float32 [1] on the device of the gradients; none where the host looks at them."""
    are_finite: Callable[[Sequence[float]], bool]
    """Returns True if they may be used, from the values of ``numbers``; equal on all ranks.

    To be called at most once, in the order of the updates, and possibly after later updates. A
    loss scale always says yes, because it expects some gradients to overflow, and logs the
    updates that it has skipped."""


def judge(gradients: Sequence[Any]) -> Reduced:
    """Look at the gradients, which are not waited for.

    On the host the optimizer has to ask ``are_finite`` before the next backward pass overwrites
    them; the answer is remembered.
    """
    if all(map(is_on_host, gradients)):
        look = functools.lru_cache(maxsize=None)(lambda: host_sgd.all_finite(gradients))
        return Reduced((), lambda values: look())
    return Reduced((finite_flag(gradients),), lambda values: values[0] == 1)


def finite_flag(gradients: Sequence[Any]) -> Any:
    """1 if all gradients are finite, else 0: float32 [1] on their device; queued.

    A sum of squares that overflows float32 is no gradient to go on with either.
    """
    sums = sums_of_squares(gradients)
    return (sums - sums == 0).min()


def sums_of_squares(arrays: Sequence[Any]) -> Any:
    """The sum of squares of each array, float32 [n], those of one type together; queued."""
    # The operator takes arrays of one type; a float16 network has parameters of two.
    by_type: dict[Any, list[Any]] = {}
    for array in arrays:
        by_type.setdefault(array.dtype, []).append(array)
    sums = [mx.nd.multi_sum_sq(*alike, num_arrays=len(alike)) for alike in by_type.values()]
    return mx.nd.concat(*sums, dim=0) if len(sums) > 1 else sums[0]
