"""Rows of a store on a disk: a step has those of its sample in memory.

A stage holds the rows of one update. The kernels are those of ``HostRows``, which work on a stage
as on a shard that is all sampled, so both compute the same numbers. Rows of the next update are
read while this one is computed; those that this one changes are taken from its stage, and all
others from the disk, behind the writes that were asked for before. So three stages are enough: one
is written, one is computed, one is read.

Shapes: see ``partial_fc.rows``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from partial_fc.communicator import Communicator
from partial_fc.host_rows import HostRows, _Gathered
from partial_fc.optimizers import RowOptimizer
from partial_fc.rows import Placed
from partial_fc.shard import Int64Array, Sample, Shard
from partial_fc.store.center_store import CenterStore, StoreOptions
from partial_fc.store.header import STORE
from partial_fc.store.records import Layout, Part, Staged
from runtime.mxnet import mx
from runtime.state import Saved, State

_STAGES = 3
# Rows that are read or written at a time where all are.
_ROWS_AT_ONCE = 1 << 15


class _Stage:
    """The rows of an update: those that the stage before it has, and those that are read."""

    def __init__(self, rows: Int64Array, staged: Staged, before: Optional[_Stage]) -> None:
        self.rows, self.staged = rows, staged
        self.reading: Any = None
        self.fresh = np.arange(rows.size)
        self._before, self._places, self._sources = before, self.fresh[:0], self.fresh[:0]
        if before is not None:
            _, self._places, self._sources = np.intersect1d(
                rows, before.rows, assume_unique=True, return_indices=True
            )
            self.fresh = np.delete(self.fresh, self._places)

    def take_over(self) -> None:
        """Copy the rows that the stage before has, once it has updated them."""
        before, self._before = self._before, None
        if before is not None:
            for name, array in self.staged.arrays.items():
                array[self._places] = before.staged.arrays[name][self._sources]


class StoredRows(HostRows):
    """Rows of a store.

    Attributes:
        options: where it is.
    """

    def __init__(
        self,
        options: StoreOptions,
        shard: Shard,
        embedding_size: int,
        optimizer: RowOptimizer,
        world: Communicator,
        read_centers: Optional[Callable[[], NDArray[np.float32]]] = None,
    ) -> None:
        """Open a store or make it; see ``CenterStore``.

        ``read_centers`` returns the centers that a new run begins with, instead of initial ones.
        """
        super().__init__(np.empty((0, embedding_size), np.float32), optimizer)
        self._waited, self._since = 0.0, time.perf_counter()
        self.options = options
        self._shard, self._layout = shard, Layout(embedding_size, optimizer.states)
        self._store = CenterStore(options, shard, self._layout, world)
        self._memory: list[tuple[int, Staged]] = []
        self._read_centers = read_centers
        self._current: Optional[_Stage] = None
        self._ahead: list[_Stage] = []

    @property
    @override
    def reads_ahead(self) -> bool:
        return True

    @override
    def read_ahead(self, sample: Sample) -> None:
        before = self._ahead[-1] if self._ahead else self._current
        self._ahead.append(self._begin(sample.rows, before))

    @override
    def place(self, sample: Sample) -> Placed:
        if not self._ahead or not np.array_equal(self._ahead[0].rows, sample.rows):
            # Of a stage that is left out, others may have taken the memory.
            self._ahead = [self._begin(sample.rows, None if self._ahead else self._current)]
        stage = self._ahead.pop(0)
        started = time.perf_counter()
        self._store.wait(stage.reading)
        self._waited += time.perf_counter() - started
        stage.take_over()
        self._current, self._arrays = stage, stage.staged.arrays
        return Placed(np.arange(stage.rows.size), sample.targets, mx.nd.array(sample.local))

    @override
    def update(self, gathered: _Gathered, lr: float) -> None:
        super().update(gathered, lr)
        assert self._current is not None
        self._store.write(self._part(self._current, gathered.rows))

    @override
    def export(self) -> dict[str, NDArray[Any]]:
        """A copy, read from the disk: for shards that fit in memory."""
        copies: dict[str, NDArray[Any]] = {
            name: np.empty((self._shard.size, *shape), self._arrays[name].dtype)
            for name, shape in self.row_shapes.items()
        }
        for part in self._pieces(0, self._shard.size):
            staged = self._read_now(np.arange(part.start, part.stop))
            for name, copy in copies.items():
                copy[part] = staged.arrays[name]
        return copies

    @override
    def snapshot(self) -> dict[str, NDArray[Any]]:
        return self.export()

    @override
    def load(self, name: str, first: int, values: NDArray[Any]) -> None:
        self._current, self._ahead = None, []
        for part in self._pieces(first, first + len(values)):
            rows = np.arange(part.start, part.stop)
            staged = self._read_now(rows)
            staged.arrays[name][:] = values[part.start - first : part.stop - first]
            self._store.write(self._part(_Stage(rows, staged, None), np.arange(rows.size)))
        self._store.wait()

    @override
    def export_state(self, update: int, shard: Shard) -> State:
        self._store.checkpoint(update)
        return State({}, {STORE: self._store.number}, self._store.forget)

    @override
    def load_state(self, saved: Saved, shard: Shard) -> None:
        self._current, self._ahead = None, []
        if saved.has(STORE):
            self._store.restore(saved.count(STORE), saved.update)
        else:
            super().load_state(saved, shard)

    @override
    def begin(self, run: str) -> None:
        self._store.begin(run)
        if self._read_centers is not None:
            self.load("centers", 0, self._read_centers())

    @override
    def averages(self) -> dict[str, float]:
        now = time.perf_counter()
        share = self._waited / max(now - self._since, 1e-9)
        self._waited, self._since = 0.0, now
        return {"waiting_for_rows": share}

    @override
    def close(self) -> None:
        self._store.close()

    def _begin(self, rows: Int64Array, before: Optional[_Stage]) -> _Stage:
        stage = _Stage(rows, self._stage_memory(rows.size), before)
        stage.reading = self._store.read(self._part(stage, stage.fresh))
        return stage

    def _part(self, stage: _Stage, places: Int64Array) -> Part:
        return Part(stage.staged, self._shard.start + stage.rows[places], places)

    def _stage_memory(self, num_rows: int) -> Staged:
        """Memory that no stage uses any more, for this many rows."""
        room, staged = self._memory.pop(0) if len(self._memory) == _STAGES else (0, None)
        if staged is None or room < num_rows:
            room = num_rows
            staged = Staged(self._layout, room)
        self._memory.append((room, staged))
        return staged.first(num_rows)

    def _read_now(self, rows: Int64Array) -> Staged:
        stage = _Stage(rows, Staged(self._layout, rows.size), None)
        self._store.wait(self._store.read(self._part(stage, stage.fresh)))
        return stage.staged

    def _pieces(self, first: int, stop: int) -> Sequence[slice]:
        bounds = [*range(first, stop, _ROWS_AT_ONCE), stop]
        return [slice(*pair) for pair in zip(bounds, bounds[1:])]
