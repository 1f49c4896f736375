"""Rows of a store on a disk: a step has those of its sample in memory.

A stage holds the rows of one update. The kernels are those of ``HostRows``, which work on a stage
as on a shard that is all sampled, so both compute the same numbers. Three stages are enough: one is
written, one is computed, one is read. Rows that the stage before has are taken from it; all others
are read after everything that was written before.

Shapes: see ``partial_fc.rows.interface``.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from partial_fc.optimizers import RowGradients, RowOptimizer
from partial_fc.options import HeadOptions
from partial_fc.rows.host import HostRows
from partial_fc.rows.interface import Placed
from partial_fc.shard import Int64Array, Sample, Shard
from partial_fc.store.center_store import CenterStore
from partial_fc.store.header import STORE
from partial_fc.store.records import Arrays, Part, empty
from runtime.devices import Communicator
from runtime.mxnet import mx
from runtime.state import Saved, State

_STAGES = 3
# Rows that are loaded at a time.
_ROWS_AT_ONCE = 1 << 15


class _Stage(NamedTuple):
    """The rows of an update.

    Attributes:
        rows: which of the shard.
        arrays: their memory.
        reading: of those that the stage before does not have.
        taken: of the others: the memory of that stage, and places there and here.
    """

    rows: Int64Array
    arrays: Arrays
    reading: Any
    taken: Optional[tuple[Arrays, Int64Array, Int64Array]]

    def take_over(self) -> None:
        """Copy the rows that the stage before has, once it has updated them."""
        if self.taken is not None:
            given, sources, places = self.taken
            for name, array in self.arrays.items():
                array[places] = given[name][sources]


class StoredRows(HostRows):
    """Rows of a store, which is where ``options`` say."""

    reads_ahead = True

    def __init__(
        self,
        options: HeadOptions,
        shard: Shard,
        embedding_size: int,
        optimizer: RowOptimizer,
        world: Communicator,
        seed: int,
    ) -> None:
        """Open a store or make it; see ``CenterStore``."""
        super().__init__(np.empty((0, embedding_size), np.float32), optimizer)
        self._waited, self._since = 0.0, time.perf_counter()
        self._shard, states = shard, optimizer.states
        self._store = CenterStore(options, shard, embedding_size, states, world, seed)
        self._memory: list[Arrays] = []
        self._current: Optional[_Stage] = None
        self._ahead: list[_Stage] = []

    @override
    def read_ahead(self, sample: Sample) -> None:
        rows, before = sample.rows, self._ahead[-1] if self._ahead else self._current
        arrays, fresh, taken = self._stage_memory(rows.size), np.arange(rows.size), None
        if before is not None:
            _, places, sources = np.intersect1d(
                rows, before.rows, assume_unique=True, return_indices=True
            )
            taken, fresh = (before.arrays, sources, places), np.delete(fresh, places)
        reading = self._store.read(self._part(arrays, rows[fresh], fresh))
        self._ahead.append(_Stage(rows, arrays, reading, taken))

    @override
    def place(self, sample: Sample) -> Placed:
        if not (self._ahead and np.array_equal(self._ahead[0].rows, sample.rows)):
            # It was not announced. Others may have taken the memory of the stage before.
            self._current, self._ahead = None, []
            self.read_ahead(sample)
        stage = self._ahead.pop(0)
        started = time.perf_counter()
        self._store.wait(stage.reading)
        self._waited += time.perf_counter() - started
        stage.take_over()
        self._current, self._arrays = stage, stage.arrays
        return Placed(np.arange(stage.rows.size), sample.targets, mx.nd.array(sample.local))

    @override
    def update(self, gathered: RowGradients, lr: float) -> None:
        super().update(gathered, lr)
        self.settle()
        assert self._current is not None
        rows = self._current.rows[gathered.rows]
        self._store.write(self._part(self._current.arrays, rows, gathered.rows))

    @override
    def export(self) -> dict[str, NDArray[Any]]:
        """A copy, read from the disk: for shards that fit in memory."""
        return self._read_now(np.arange(self._shard.size))

    @override
    def load(self, name: str, first: int, values: NDArray[Any]) -> None:
        self._current, self._ahead = None, []
        for start in range(0, len(values), _ROWS_AT_ONCE):
            some = values[start : start + _ROWS_AT_ONCE]
            rows = np.arange(first + start, first + start + len(some))
            arrays = self._read_now(rows)
            arrays[name][:] = some
            self._store.write(self._part(arrays, rows, np.arange(rows.size)))
        self._store.wait()

    @override
    def export_state(self, update: int, shard: Shard) -> State:
        return State({}, self._store.checkpoint(update).values(), self._store.forget)

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

    @override
    def averages(self) -> dict[str, float]:
        now = time.perf_counter()
        share = self._waited / max(now - self._since, 1e-9)
        self._waited, self._since = 0.0, now
        return {"waiting_for_rows": share}

    @override
    def close(self) -> None:
        self._store.close()

    def _part(self, arrays: Arrays, rows: Int64Array, places: Int64Array) -> Part:
        return Part(arrays, self._shard.start + rows, places)

    def _stage_memory(self, num_rows: int) -> Arrays:
        """Memory that no stage uses any more, for this many rows."""
        memory = self._memory.pop(0) if len(self._memory) == _STAGES else None
        if memory is None or len(memory["centers"]) < num_rows:
            memory = empty(self._store.layout, num_rows)
        self._memory.append(memory)
        return {name: array[:num_rows] for name, array in memory.items()}

    def _read_now(self, rows: Int64Array) -> Arrays:
        arrays = empty(self._store.layout, rows.size)
        self._store.wait(self._store.read(self._part(arrays, rows, np.arange(rows.size))))
        return arrays
