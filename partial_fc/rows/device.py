"""Rows in a device's memory, with MXNet operators; cut into tensors below 2^31 elements.

Nothing in a step waits for the device: what it needs to know of a sample travels in one copy that
the engine queues, and each pass is operators that it queues. They are chosen by what their kernels
for GPUs (sources of MXNet 1.9.1) read and write, and results overwrite what is no longer needed.

Shapes: see ``partial_fc.rows.interface``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from partial_fc.optimizers import RowOptimizer
from partial_fc.rows.interface import (
    LEFT_OUT,
    LOWEST,
    NEVER,
    SMALLEST_NORM,
    Array,
    Logits,
    Negatives,
    Placed,
    Rows,
)
from partial_fc.shard import Int64Array, Sample
from runtime.devices import Uploads
from runtime.mxnet import mx
from runtime.ndarray import copy_to_host, invoke

# MXNet's kernels for GPUs count elements with 32 bits, in strides of up to 65535 blocks of 256
# threads; the count passes the end by up to one stride and has to stay below 2^31.
_MAX_ELEMENTS = 2**31 - 2**24
# The rules for negatives need temporary arrays. They are made for parts of the logits of at most so
# many bytes, large enough that a usual step has one part.
PART_BYTES = 2**27
# The numbers of a sample are padded to a multiple: few sizes of page-locked memory.
_PADDING = 4096


class _Block(NamedTuple):
    """The sampled rows of one tensor.

    Attributes:
        number: of the tensor.
        part: which of the sampled rows they are.
        inside: NDArray int32, which rows of the tensor.
    """

    number: int
    part: slice
    inside: Any


# Between ``gather`` and ``update``: the blocks of the sampled rows, None for all rows of the only
# tensor; these rows, copies or the tensor itself; their unit vectors, which MXNet's autograd has
# recorded; and the array for their gradient, where autograd leaves the one by the rows.
_Gathered = tuple[Optional[list[_Block]], Any, Any, Any]


class DeviceRows(Rows):
    """Blocks of rows in MXNet's arrays."""

    def __init__(
        self,
        centers_CD: Array,
        optimizer: RowOptimizer,
        context: Any,
        max_elements: int = _MAX_ELEMENTS,
    ) -> None:
        """Copies ``centers_CD`` (float32 [C, D]) to the device."""
        self._optimizer = optimizer
        self._upload = Uploads(context)
        self._num_rows, width = centers_CD.shape
        self._height = max(1, max_elements // width)
        starts = range(0, len(centers_CD), self._height)
        blocks = (centers_CD[start : start + self._height] for start in starts)
        centers = [mx.nd.array(block, ctx=context) for block in blocks]
        self._arrays = {"centers": centers}
        for name, state in optimizer.states.items():
            self._arrays[name] = [
                mx.nd.zeros(state.shape(*block.shape), ctx=context, dtype=state.dtype)
                for block in centers
            ]
        # The pieces of a row that ``_put`` writes.
        self._piece = math.gcd(width, 4)
        self._pieces = mx.nd.arange(width // self._piece, ctx=context, dtype="int32")
        self._copies: dict[str, NDArray[Any]] = {}

    @property
    @override
    def row_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: blocks[0].shape[1:] for name, blocks in self._arrays.items()}

    @override
    def place(self, sample: Sample) -> Placed:
        rows, batch = sample.rows, sample.targets.size
        # One number finds a target in the logits, which as a tensor have fewer than 2^31.
        entries_B = np.arange(batch) * rows.size + sample.targets
        numbers = np.concatenate([entries_B, sample.local, rows % self._height])
        padded = np.zeros(-(-numbers.size // _PADDING) * _PADDING, dtype=np.int32)
        padded[: numbers.size] = numbers
        # One copy; its parts are views.
        copied = self._upload(padded)
        local_B = mx.nd.cast(copied[batch : 2 * batch], dtype="float32")
        is_all = rows.size == self._num_rows <= self._height
        blocks = None if is_all else list(self._cut(rows, copied[2 * batch : numbers.size]))
        return Placed(blocks, copied[:batch], local_B)

    def _cut(self, rows: Int64Array, inside_S: Any) -> Iterator[_Block]:
        """The blocks that have some of the sorted rows."""
        bounds = self._height * np.arange(len(self._arrays["centers"]) + 1)
        bounds = np.searchsorted(rows, bounds)
        for number in map(int, np.flatnonzero(np.diff(bounds))):
            part = slice(int(bounds[number]), int(bounds[number + 1]))
            yield _Block(number, part, inside_S[part])

    @override
    def gather(self, placed: Placed, part: slice, units_KD: Any, gradient_KD: Any) -> _Gathered:
        assert part.start == 0, part
        units_SD, gradient_SD = units_KD, gradient_KD
        centers_SD = self._arrays["centers"][0]
        if placed.rows is not None:
            # A thread for each element: neighboring threads read and write neighboring elements.
            taken = [
                mx.nd.take(self._arrays["centers"][block.number], block.inside)
                for block in placed.rows
            ]
            centers_SD = taken[0] if len(taken) == 1 else mx.nd.concat(*taken, dim=0)
        # Other handles of the same memory: autograd ties its records to them.
        variable_SD, units_SD = centers_SD.detach(), units_SD.detach()
        mx.autograd.mark_variables([variable_SD], [gradient_SD])
        with mx.autograd.record():
            # Reads the rows twice and writes once; its backward reads units and gradient twice and
            # writes the tangent in place of the gradient. The formula of ``project`` as operators
            # of its own passes over rows eleven times, and keeps three arrays of this size.
            mx.nd.L2Normalization(variable_SD, eps=SMALLEST_NORM**2, out=units_SD)
        return placed.rows, centers_SD, units_SD, gradient_SD

    @override
    def update(self, gathered: _Gathered, lr: float) -> None:
        blocks, centers_SD, units_SD, tangent_SD = gathered
        units_SD.backward(tangent_SD)
        if blocks is None:
            whole = {name: tensors[0] for name, tensors in self._arrays.items()}
            self._optimizer.update_device(whole, tangent_SD, lr)
            return
        for block in blocks:
            sampled = {
                name: mx.nd.take(self._arrays[name][block.number], block.inside)
                for name in self._optimizer.states
            }
            sampled["centers"] = centers_SD[block.part]
            self._optimizer.update_device(sampled, tangent_SD[block.part], lr)
            self._put(block, sampled)

    def _put(self, block: _Block, sampled: dict[str, Any]) -> None:
        """Write rows back.

        ``_scatter_set_nd`` copies what belongs to one index with one thread, element by element.
        With a row for each index the threads of a warp would touch 32 rows at a time, a sector of
        memory for each number. So an index stands for four numbers, next to those of the next
        thread; one index for each number would read as much again as it writes. ``index_copy`` has
        a thread for each number, but first copies the whole tensor.
        """
        starts = (block.inside * self._pieces.size).reshape((-1, 1))
        pieces = mx.nd.broadcast_add(starts, self._pieces.reshape((1, -1))).reshape((1, -1))
        for name, values in sampled.items():
            tensor = self._arrays[name][block.number]
            if tensor.ndim == 1:
                _set_entries(tensor, block.inside, values)
            else:
                cut = (-1, self._piece)
                _set_entries(tensor.reshape(cut), pieces, values.reshape(cut))

    @override
    def get_targets(self, logits: Logits, placed: Placed) -> Any:
        # Not gather_nd: its kernel reads back the largest index, and waits for that.
        return mx.nd.take(logits.numbers, placed.entries)

    @override
    def exponentiate(
        self, logits: Logits, placed: Placed, targets_B: Any, rules: Negatives
    ) -> tuple[Any, Any]:
        values_B = self.get_targets(logits, placed)
        invoke("_npi_where_lscalar", [placed.local_B, values_B], {"scalar": LEFT_OUT}, [values_B])
        _set_entries(logits.numbers, placed.entries, values_B)
        # Of the targets of this rank, elsewhere the lowest.
        shift_B = mx.nd.empty(targets_B.shape, ctx=targets_B.context)
        invoke("_npi_where_rscalar", [placed.local_B, targets_B], {"scalar": LOWEST}, [shift_B])
        (logits_BS,) = logits.blocks()
        shift_B = mx.nd.maximum(_maxima(logits_BS, rules), shift_B)
        return shift_B, _exponentiate(logits_BS, shift_B.reshape((-1, 1)), rules)

    @override
    def set_targets(self, logits: Logits, placed: Placed, values_B: Any) -> None:
        values_B = mx.nd.where(placed.local_B, values_B, self.get_targets(logits, placed))
        _set_entries(logits.numbers, placed.entries, values_B)

    @override
    def export(self) -> dict[str, NDArray[Any]]:
        # Into the same memory each time, as on the host. This waits for the device: for all
        # updates that are queued, and for the copies.
        for name, tensors in self._arrays.items():
            shape = (self._num_rows, *tensors[0].shape[1:])
            copy = self._copies.setdefault(name, np.empty(shape, dtype=tensors[0].dtype))
            for number, tensor in enumerate(tensors):
                start = number * self._height
                copy_to_host(tensor, copy[start : start + len(tensor)])
        return dict(self._copies)

    @override
    def load(self, name: str, first: int, values: NDArray[Any]) -> None:
        for number, block in enumerate(self._arrays[name]):
            start = number * self._height
            begin, end = max(first, start), min(first + len(values), start + len(block))
            if begin < end:
                block[begin - start : end - start] = values[begin - first : end - first]


def _maxima(logits_BS: Any, rules: Negatives) -> Any:
    """The largest logit of each sample after the rules; those left out are overwritten."""
    maxima = []
    for part in _parts(logits_BS):
        some = logits_BS[part]
        if rules.limit < NEVER:
            # In place, so that they are still left out when exponentials are taken.
            left_out = some > rules.limit
            invoke("_npi_where_lscalar", [left_out, some], {"scalar": LEFT_OUT}, [some])
        values = some if rules.curriculum is None else _hardened(some, part, rules)[0]
        maxima.append(mx.nd.max(values, axis=1))
    return _joined(maxima)


def _exponentiate(logits_BS: Any, shift_B1: Any, rules: Negatives) -> Any:
    """Exponentials in place, after ``_maxima``; returns their sums."""
    if rules.curriculum is None:
        mx.nd.broadcast_sub(logits_BS, shift_B1, out=logits_BS)
        mx.nd.exp(logits_BS, out=logits_BS)
        return mx.nd.sum(logits_BS, axis=1)
    sums = []
    for part in _parts(logits_BS):
        some = logits_BS[part]
        values, hard = _hardened(some, part, rules)
        mx.nd.broadcast_sub(values, shift_B1[part], out=values)
        mx.nd.exp(values, out=values)
        sums.append(mx.nd.sum(values, axis=1))
        some *= 2.0 / rules.scale
        mx.nd.broadcast_add(some, rules.curriculum.hardness.reshape((1, 1)), out=some)
        invoke("_npi_where_rscalar", [hard, some], {"scalar": 1.0}, [some])
        some *= values
    return _joined(sums)


def _parts(logits_BS: Any) -> list[slice]:
    batch, num_rows = logits_BS.shape
    height = max(1, PART_BYTES // (4 * num_rows))
    return [slice(start, min(start + height, batch)) for start in range(0, batch, height)]


def _joined(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else mx.nd.concat(*parts, dim=0)


def _hardened(logits: Any, part: slice, rules: Negatives) -> tuple[Any, Any]:
    """The logits of some samples with the curriculum's rule, and 1 where it applies, else 0."""
    assert rules.curriculum is not None
    thresholds = (rules.curriculum.thresholds_B[part] * rules.scale).reshape((-1, 1))
    hard = mx.nd.broadcast_greater(logits, thresholds)
    values = logits / rules.scale
    mx.nd.broadcast_add(values, rules.curriculum.hardness.reshape((1, 1)), out=values)
    values *= logits
    return mx.nd.where(hard, values, logits, out=values), hard


def _set_entries(array: Any, indices: Any, values: Any) -> None:
    """Replace entries of the first axis in place; the operator behind ``array[...] = values``."""
    indices = indices.reshape((1, -1))
    invoke("_scatter_set_nd", [array, values, indices], {"shape": array.shape}, [array])
