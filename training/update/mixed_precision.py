"""Half precision: dynamic loss scaling, and updates of a float16 network that nothing waits for.

Gradients of a float16 network underflow below 6e-8. The loss is therefore multiplied by a large
factor before the backward pass and the gradients divided by it before the update; the factor falls
when a gradient overflows (that update is skipped) and rises when none has for a while
(Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.2). The gradients are looked
at after their reduction over the ranks, so that all ranks decide alike.

The factor, the count behind it and the decision whether an update counts are numbers on the device:
the host queues the next update without knowing them, and learns them for the log one update later.
So the new weights, momenta and float32 master copies are computed in any case and then chosen,
``where(finite, new, old)``. Doing that for each of some hundred parameters would queue thousands of
operators. Therefore what is remembered stands end to end in a few long arrays, which are updated in
parts: a part's gradients are joined, its new weights split again.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, Optional

import numpy as np

from runtime.mxnet import mx
from runtime.state import Saved
from training.config.options import OptimizerOptions
from training.update import rules
from training.update.gradients import Reduced, device_factor, finite_flag

_log = logging.getLogger(__name__)

_INITIAL = 2.0**13
_SMALLEST = 1.0
_FACTOR = 2.0
_GROWTH_INTERVAL = 2000
# Elements that are updated together; SGD needs 16 bytes for each while it does.
PART_SIZE = 2**22


class MixedPrecisionUpdates:
    """A rule for float16 parameters with float32 master copies, and some of float32 between."""

    def __init__(self, options: OptimizerOptions, trained: Sequence[Any], ctx: Any) -> None:
        """Choose the rule for parameters; weight decay is multiplied by the ``wd_mult`` of each."""
        self._options, self._parameters, self._ctx = options, trained, ctx
        self._set(0, _INITIAL, 0)

    def _set(self, *numbers: float) -> None:
        """Put the count of updates, the factor of the loss, and its count on the device.

        Factors are powers of two, and float32 holds a count exactly for 16 million updates. None is
        written into: the number of an update outlives the next one, until it is read.
        """
        on_device = [mx.nd.full((1,), number, ctx=self._ctx) for number in numbers]
        self._count, self._scale, self._good_updates = on_device

    def scaled(self, gradient: Any) -> Any:
        """Return what the backward pass starts from, given the loss or its gradient (any shape).

        Queued. The factor is the one that ``apply`` divides by, after this backward pass.
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

    def apply(self, lr: float, reduced: Reduced) -> None:
        """Update the parameters by their gradients, and the factor of the next loss; queued."""
        # 1 if this update's gradients are finite, else 0.
        finite = reduced.numbers[0]
        unscale = 1.0 / self._scale
        self._good_updates = (self._good_updates + 1) * finite
        at_interval = self._good_updates % _GROWTH_INTERVAL == 0
        higher = mx.nd.where(at_interval, self._scale * _FACTOR, self._scale)
        lower = mx.nd.maximum(self._scale / _FACTOR, _SMALLEST)
        self._scale = mx.nd.where(finite, higher, lower)
        if self._options.clip_norm is not None:
            gradients = [parameter.grad() for parameter in self._parameters]
            factor = device_factor(gradients, self._options.clip_norm, unscale)
            unscale = unscale * factor
        self._count = self._count + finite
        for group in self._groups:
            for part in group.parts:
                # One bulk for each: until a bulk has run, the memory of its results is in use.
                with mx.engine.bulk(rules.BULK_SIZE):
                    part.update(group.options, lr, self._count, finite, unscale)

    def memory(self) -> Iterator[tuple[str, list[Any]]]:
        """The NDArrays that are remembered of each parameter, which may be written into."""
        for group in self._groups:
            yield from group.memory()

    def values(self) -> dict[str, float]:
        """Return the numbers for a checkpoint; waits for them."""
        numbers = (self._count, self._scale, self._good_updates)
        count, scale, good = (number.asscalar() for number in numbers)
        return {"updates": int(count), "loss_scale": float(scale), "good_updates": int(good)}

    def load(self, saved: Saved) -> None:
        """Restore the numbers of a checkpoint."""
        counts = saved.count("updates"), saved.count("good_updates")
        self._set(counts[0], saved.number("loss_scale"), counts[1])

    @cached_property
    def _groups(self) -> list[_Group]:
        """Made when first used: master copies begin as the weights that training starts from."""
        alike: dict[tuple[Any, float], list[Any]] = {}
        for parameter in self._parameters:
            key = parameter.data().dtype, float(parameter.wd_mult)
            alike.setdefault(key, []).append(parameter)
        return [
            _Group(parameters, replace(self._options, wd=self._options.wd * wd_mult), self._ctx)
            for (_, wd_mult), parameters in alike.items()
        ]


class _Group:
    """Parameters of one type and weight decay, end to end."""

    def __init__(self, parameters: Sequence[Any], options: OptimizerOptions, ctx: Any) -> None:
        self._parameters, self.options = parameters, options
        weights = [parameter.data().reshape((-1,)) for parameter in parameters]
        gradients = [parameter.grad().reshape((-1,)) for parameter in parameters]
        self._offsets = [0, *itertools.accumulate(weight.size for weight in weights)]
        size = self._offsets[-1]
        self._states = [mx.nd.zeros((size,), ctx=ctx) for _ in range(rules.num_states(options))]
        is_half = weights[0].dtype == np.float16
        self._master = mx.nd.zeros((size,), ctx=ctx) if is_half else None
        self.parts = []
        for start in range(0, size, PART_SIZE):
            stop = min(start + PART_SIZE, size)
            # A part begins and ends within arrays.
            pieces = [
                (index, slice(max(start - begin, 0), min(stop, end) - begin))
                for index, (begin, end) in enumerate(zip(self._offsets, self._offsets[1:]))
                if start < end and begin < stop
            ]
            part = _Part(
                [_row(weights[index], piece) for index, piece in pieces],
                [_row(gradients[index], piece) for index, piece in pieces],
                [_row(state, slice(start, stop)) for state in self._states],
                _row(self._master, slice(start, stop)) if is_half else None,
            )
            if is_half:
                mx.nd.cast(mx.nd.concat(*part.weights, dim=1), dtype="float32", out=part.master)
            self.parts.append(part)

    def memory(self) -> Iterator[tuple[str, list[Any]]]:
        """Yield the states of each parameter, and its master copy if there is one."""
        arrays = self._states if self._master is None else [*self._states, self._master]
        for parameter, start, stop in zip(self._parameters, self._offsets, self._offsets[1:]):
            yield parameter.name, [array[start:stop].reshape(parameter.shape) for array in arrays]


class _Part(NamedTuple):
    """Views [1, n] of what is updated together."""

    weights: list[Any]
    gradients: list[Any]
    states: list[Any]
    master: Optional[Any]
    """The float32 copy of the weights, where these are float16."""

    def update(
        self, options: OptimizerOptions, lr: float, count: Any, finite: Any, unscale: Any
    ) -> None:
        """Update weights, states and master copy if ``finite`` is 1, and not if it is 0.

        ``finite``, the ``count`` of updates and ``unscale``, a factor for the gradients, are
        NDArrays [1] on the device.
        """
        old = mx.nd.concat(*self.weights, dim=1) if self.master is None else self.master
        gradient = mx.nd.cast(mx.nd.concat(*self.gradients, dim=1), dtype="float32")
        # Without clipping by a power of two, so that nothing is rounded.
        mx.nd.broadcast_mul(gradient, unscale, out=gradient)
        states = [mx.nd.identity(state) for state in self.states]
        new = rules.step(options, old, gradient, states, lr, count)
        for state, candidate in zip(self.states, states):
            mx.nd.where(finite, candidate, state, out=state)
        chosen = mx.nd.where(finite, new, old, out=self.master)
        weights = chosen if self.master is None else mx.nd.cast(chosen, dtype="float16")
        starts = [0, *itertools.accumulate(weight.size for weight in self.weights[:-1])]
        mx.nd._internal._split_v2(
            weights, indices=starts, axis=1, squeeze_axis=False, out=self.weights
        )


def _row(array: Any, piece: slice) -> Any:
    """A view [1, n] of a piece of an array [m]."""
    return array[piece].reshape((1, -1))
