"""Updates of a float16 network that no operation waits for.

Whether an update counts is a number on the device: gradients may have overflowed under the loss
scale. So the new weights, momenta and float32 master copies are computed in any case and then
chosen, ``where(finite, new, old)``. Doing that for each of some hundred parameters would queue
thousands of operators. Therefore what is remembered stands end to end in a few long arrays, which
are updated in parts: a part's gradients are joined, its new weights split again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Optional

import numpy as np
from typing_extensions import override

from runtime.mxnet import mx
from training.config.schedule import OptimizerOptions
from training.update import rules
from training.update.clipping import device_factor
from training.update.loss_scale import LossScale
from training.update.parameter_updates import BULK_SIZE, ParameterUpdates
from training.update.reduced import Reduced
from training.update.rules import Rates

# Elements that are updated together; SGD needs 16 bytes for each while it does.
PART_SIZE = 2**22


class MixedPrecisionUpdates(ParameterUpdates):
    """A rule for float16 parameters with float32 master copies, and some of float32 between."""

    def __init__(
        self, options: OptimizerOptions, parameters: Any, loss_scale: LossScale, ctx: Any
    ) -> None:
        """Choose the rule.

        Args:
            options: which; weight decay is multiplied by each parameter's ``wd_mult``.
            parameters: a ``gluon.ParameterDict``; those with ``grad_req`` "null" are left alone.
            loss_scale: that of the gradients.
            ctx: where they are.
        """
        self._options, self._loss_scale, self._ctx = options, loss_scale, ctx
        self._parameters = [
            parameter for parameter in parameters.values() if parameter.grad_req != "null"
        ]
        self.count = 0

    @property
    def count(self) -> int:
        """See ``ParameterUpdates``."""
        return int(self._count.asscalar())

    @count.setter
    def count(self, updates: int) -> None:
        self._count = mx.nd.full((1,), updates, ctx=self._ctx)

    @override
    def apply(self, lr: float, reduced: Reduced) -> None:
        finite = reduced.numbers[0]
        unscale = self._loss_scale.adapt(finite)
        if self._options.clip_norm is not None:
            gradients = [parameter.grad() for parameter in self._parameters]
            factor = device_factor(gradients, self._options.clip_norm, unscale)
            unscale = unscale * factor
        self._count = self._count + finite
        for group in self._groups:
            rates = Rates(lr, self._options.wd * group.wd_mult, self._count)
            for part in group.parts:
                # One bulk for each: until a bulk has run, the memory of its results is in use.
                with mx.engine.bulk(BULK_SIZE):
                    part.update(self._options, rates, finite, unscale)

    @override
    def memory(self) -> Iterator[tuple[str, list[Any]]]:
        for group in self._groups:
            yield from group.memory()

    @cached_property
    def _groups(self) -> list[_Group]:
        """Made when first used: master copies begin as the weights that training starts from."""
        alike: dict[tuple[Any, float], list[Any]] = {}
        for parameter in self._parameters:
            key = parameter.data().dtype, float(parameter.wd_mult)
            alike.setdefault(key, []).append(parameter)
        states = rules.num_states(self._options)
        return [_Group(parameters, states, self._ctx) for parameters in alike.values()]


class _Group:
    """Parameters of one type and weight decay, end to end."""

    def __init__(self, parameters: Sequence[Any], num_states: int, ctx: Any) -> None:
        self.wd_mult = float(parameters[0].wd_mult)
        self._parameters = parameters
        weights = [parameter.data().reshape((-1,)) for parameter in parameters]
        gradients = [parameter.grad().reshape((-1,)) for parameter in parameters]
        self._sizes = [weight.size for weight in weights]
        self._states = [mx.nd.zeros((sum(self._sizes),), ctx=ctx) for _ in range(num_states)]
        is_half = weights[0].dtype == np.float16
        self._master = mx.nd.zeros((sum(self._sizes),), ctx=ctx) if is_half else None
        self.parts, start = [], 0
        for pieces in _cut(self._sizes, PART_SIZE):
            stop = start + sum(piece.stop - piece.start for _, piece in pieces)
            part = _Part(
                [_row(weights[index], piece) for index, piece in pieces],
                [_row(gradients[index], piece) for index, piece in pieces],
                [_row(state, slice(start, stop)) for state in self._states],
                _row(self._master, slice(start, stop)) if is_half else None,
            )
            if is_half:
                mx.nd.cast(mx.nd.concat(*part.weights, dim=1), dtype="float32", out=part.master)
            self.parts.append(part)
            start = stop

    def memory(self) -> Iterator[tuple[str, list[Any]]]:
        """Yield the states of each parameter, and its master copy if there is one."""
        arrays = self._states if self._master is None else [*self._states, self._master]
        start = 0
        for parameter, size in zip(self._parameters, self._sizes):
            stop = start + size
            yield parameter.name, [array[start:stop].reshape(parameter.shape) for array in arrays]
            start = stop


class _Part(NamedTuple):
    """Views [1, n] of what is updated together."""

    weights: list[Any]
    gradients: list[Any]
    states: list[Any]
    master: Optional[Any]
    """The float32 copy of the weights, where these are float16."""

    def update(self, options: OptimizerOptions, rates: Rates, finite: Any, unscale: Any) -> None:
        """Update weights, states and master copy, unless the gradients are not finite.

        Args:
            options: of the rule.
            rates: of this update.
            finite: 1 if it counts, else 0; NDArray [1] on the device, as the next.
            unscale: what its gradients are multiplied with.
        """
        old = mx.nd.concat(*self.weights, dim=1) if self.master is None else self.master
        gradient = mx.nd.cast(mx.nd.concat(*self.gradients, dim=1), dtype="float32")
        # Without clipping by a power of two, so that nothing is rounded.
        mx.nd.broadcast_mul(gradient, unscale, out=gradient)
        states = [mx.nd.identity(state) for state in self.states]
        new = rules.step(options, old, gradient, states, rates)
        for state, candidate in zip(self.states, states):
            mx.nd.where(finite, candidate, state, out=state)
        chosen = mx.nd.where(finite, new, old, out=self.master)
        weights = chosen if self.master is None else mx.nd.cast(chosen, dtype="float16")
        starts = [0, *itertools.accumulate(weight.size for weight in self.weights[:-1])]
        mx.nd._internal._split_v2(
            weights, indices=starts, axis=1, squeeze_axis=False, out=self.weights
        )


def _cut(sizes: Sequence[int], most: int) -> Iterator[list[tuple[int, slice]]]:
    """Cut arrays that stand end to end into parts of ``most`` elements, the last of fewer.

    Yields:
        Of each part, the pieces of arrays: which one, and from where to where.
    """
    part: list[tuple[int, slice]] = []
    room = most
    for index, size in enumerate(sizes):
        start = 0
        while start < size:
            stop = min(size, start + room)
            part.append((index, slice(start, stop)))
            room -= stop - start
            start = stop
            if not room:
                yield part
                part, room = [], most
    if part:
        yield part


def _row(array: Any, piece: slice) -> Any:
    """A view [1, n] of a piece of an array [m]."""
    return array[piece].reshape((1, -1))
