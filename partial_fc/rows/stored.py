"""Rows of a store on a disk: a step has those of its sample in memory.

A stage holds the rows of one update. The kernels are those of ``HostRows``, which work on a stage
as on a shard that is all sampled, so both compute the same numbers. Three stages are enough: one is
written, one is computed, one is read. Rows that the former two have are taken from them, so that a
read has to be behind the write of neither, but only of that before, whose memory it fills.

Shapes: see ``partial_fc.rows.interface``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from partial_fc.optimizers import RowGradients, RowOptimizer
from partial_fc.rows.host import HostRows
from partial_fc.rows.interface import Placed
from partial_fc.shard import Int64Array, Sample, Shard
from partial_fc.store.center_store import CenterStore, StoreOptions
from partial_fc.store.header import STORE
from partial_fc.store.records import Layout, Part, Staged
from runtime.communicator import Communicator
from runtime.mxnet import mx
from runtime.state import Saved, State

_STAGES = 3
# Rows that are read or written at a time where all are.
_ROWS_AT_ONCE = 1 << 15


class _Stage:
    """The rows of an update.

    Attributes:
        rows: which of the shard.
        staged: their memory.
        take_over: copies those that the stage before has, to be called once it has updated them.
        take_done: the same for the stage whose update was done already.
        fresh: the places of the others, which are read.
        reading: of these.
        writing: of all of them.
    """

    def __init__(
        self,
        rows: Int64Array,
        staged: Staged,
        before: Optional[_Stage] = None,
        done: Optional[_Stage] = None,
    ) -> None:
        """Rows that ``before`` has are taken over from there, others that ``done`` has from it."""
        self.rows, self.staged = rows, staged
        self.reading: Any = None
        self.writing: Any = None
        self.fresh = np.arange(rows.size)
        self.take_over = self._copying_from(before)
        self.take_done = self._copying_from(done)

    def _copying_from(self, other: Optional[_Stage]) -> Callable[[], None]:
        """Return what copies fresh rows of another stage, which are not fresh any more."""
        if other is None:
            return lambda: None
        _, found, sources = np.intersect1d(
            self.rows[self.fresh], other.rows, assume_unique=True, return_indices=True
        )
        places = self.fresh[found]
        self.fresh = np.delete(self.fresh, found)
        given, own = other.staged.arrays, self.staged.arrays

        def copy() -> None:
            for name, array in own.items():
                array[places] = given[name][sources]

        return copy


class StoredRows(HostRows):
    """Rows of a store, which is where ``options`` says."""

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
        self._memory: list[Staged] = []
        self._read_centers = read_centers
        self._current: Optional[_Stage] = None
        self._ahead: list[_Stage] = []
        # The last write of the stages before the current one.
        self._settled: Any = None

    @property
    @override
    def reads_ahead(self) -> bool:
        return True

    @override
    def read_ahead(self, sample: Sample) -> None:
        before = (self._ahead[-1], self._current) if self._ahead else (self._current,)
        self._ahead.append(self._begin(sample.rows, *before))

    @override
    def place(self, sample: Sample) -> Placed:
        if not self._ahead or not np.array_equal(self._ahead[0].rows, sample.rows):
            if self._ahead:
                # Others may have taken the memory of a stage that is left out.
                self._store.wait()
                self._current = None
            self._ahead = [self._begin(sample.rows, self._current)]
        stage = self._ahead.pop(0)
        started = time.perf_counter()
        self._store.wait(stage.reading)
        self._waited += time.perf_counter() - started
        stage.take_over()
        if self._current is not None and self._current.writing is not None:
            self._settled = self._current.writing
        self._current, self._arrays = stage, stage.staged.arrays
        return Placed(np.arange(stage.rows.size), sample.targets, mx.nd.array(sample.local))

    @override
    def update(self, gathered: RowGradients, lr: float) -> None:
        super().update(gathered, lr)
        self.settle()
        assert self._current is not None
        self._current.writing = self._store.write(self._part(self._current, gathered.rows))

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
            self._store.write(self._part(_Stage(rows, staged), np.arange(rows.size)))
        self._store.wait()

    @override
    def export_state(self, update: int, shard: Shard) -> State:
        self._store.checkpoint(update)
        return State({}, self._store.origin(update).values(), self._store.forget)

    @override
    def load_state(self, saved: Saved, shard: Shard) -> None:
        self._current, self._ahead = None, []
        if saved.has(STORE):
            self._store.restore(saved)
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

    def _begin(
        self, rows: Int64Array, before: Optional[_Stage], done: Optional[_Stage] = None
    ) -> _Stage:
        stage = _Stage(rows, self._stage_memory(rows.size), before, done)
        part = self._part(stage, stage.fresh)
        stage.reading = self._store.read(part, self._settled, stage.take_done)
        return stage

    def _part(self, stage: _Stage, places: Int64Array) -> Part:
        return Part(stage.staged, self._shard.start + stage.rows[places], places)

    def _stage_memory(self, num_rows: int) -> Staged:
        """Memory that no stage uses any more, for this many rows."""
        staged = self._memory.pop(0) if len(self._memory) == _STAGES else None
        if staged is None or staged.wide.shape[1] < num_rows:
            staged = Staged(self._layout, num_rows)
        self._memory.append(staged)
        return staged.first(num_rows)

    def _read_now(self, rows: Int64Array) -> Staged:
        self._store.wait()
        stage = _Stage(rows, Staged(self._layout, rows.size))
        self._store.wait(self._store.read(self._part(stage, stage.fresh)))
        return stage.staged

    def _pieces(self, first: int, stop: int) -> Sequence[slice]:
        bounds = [*range(first, stop, _ROWS_AT_ONCE), stop]
        return [slice(*pair) for pair in zip(bounds, bounds[1:])]
