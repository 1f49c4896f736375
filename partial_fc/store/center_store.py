"""The store of ``--center-store``: a folder with the class centers of this host's ranks.

    DIR/store.json                    what it is, see ``header``
    DIR/records.bin                   a record for each class that was sampled, see ``records``
    DIR/index.bin                     where that of each class is
    DIR/undo-00002000.rank-0001       see ``undo``
    DIR/lock                          held by the run that uses it

All ranks of a host write into the same files, each the rows of its shard, so that a run goes on
with any number of ranks on this host. A checkpoint holds the ``Origin`` of the rows and not the
rows: the store keeps those of every checkpoint that exists, by its undo logs.
"""

from __future__ import annotations

import os
import secrets
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import numpy as np

from partial_fc.options import HeadOptions
from partial_fc.shard import RowState, Shard
from partial_fc.store import header as headers
from partial_fc.store.header import Header, Origin, explained
from partial_fc.store.records import Index, Part, Rows
from partial_fc.store.undo import Block, UndoLog, logs, undone
from runtime.devices import Communicator
from runtime.errors import ConfigError, DataError
from runtime.files import HeldFolder, flush_folder, open_kept
from runtime.mxnet import mx
from runtime.state import Saved

# How often the cache is left while as much is written as it may hold: while the disk takes one
# part of it, the next one is written.
_FLUSHES = 4
# Rows of a block of the undo log.
_BLOCK_ROWS = 4096


class CenterStore:
    """One rank's part of a store; all ranks call its methods together, but ``read``, ``write``.

    Methods raise ``DataError`` where the disk is full or fails, or a record is damaged, and
    ``ConfigError`` where the store is that of another run.
    """

    def __init__(
        self,
        options: HeadOptions,
        shard: Shard,
        embedding: int,
        states: Mapping[str, RowState],
        world: Communicator,
        seed: int,
    ) -> None:
        """Open the store of a folder, or make it; no other run uses it meanwhile.

        Args:
            options: the folder, the same path on all hosts, and the memory for its records.
            shard: the classes of this rank.
            embedding: D.
            states: those of the optimizer.
            world: all ranks.
            seed: of the initial centers of a new store.
        """
        assert options.center_store is not None
        self._folder = folder = Path(os.path.realpath(options.center_store))
        self._memory, self._shard, self._world = options.center_memory, shard, world
        self._log: Optional[UndoLog] = None
        self._logged = np.zeros(shard.size, bool)
        self._is_finite, self._written = True, 0
        with ExitStack() as opened, explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._is_owner, first, last, self._attempt = self._meet()
            if self._is_owner:
                opened.callback(os.close, headers.locked(folder, to_write=True))
                wanted = self._attempt, shard.num_classes, embedding, states, seed, first, last
                headers.prepare(folder, Header(*wanted))
            self._barrier("ready")
            self._held = HeldFolder("--center-store", folder, headers.LOCK)
            opened.callback(self._held.close)
            header = Header.read(folder)
            assert header is not None
            self._header = header
            self._file = open_kept(folder / headers.RECORDS, os.O_RDWR)
            opened.callback(os.close, self._file)
            # Rows lie far apart: what stands behind one is not to be read. Past the cache
            # (O_DIRECT) a disk has read and written no more rows a second.
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_RANDOM)
            with open(folder / headers.INDEX, "r+b", opener=open_kept) as file:
                self._mapped = np.memmap(file, np.uint32)
            self._records = header.records(self._file, Index(self._mapped))
            self.layout = self._records.layout
            opened.callback(self._records.close)
            # Reads and writes, one after the other, and next to them what leaves the cache.
            self._beside = ThreadPoolExecutor(1, "centers-flush")
            opened.callback(self._beside.shutdown)
            self._ordered = ThreadPoolExecutor(1, "centers")
            opened.callback(self._ordered.shutdown)
            self._opened = opened.pop_all()
        self._last = self._ordered.submit(lambda: None)
        self._flushed = self._beside.submit(lambda: None)

    def begin(self, run: str) -> None:
        """Begin a run that goes on from no checkpoint; all ranks together.

        What this run itself has left, killed before it had a checkpoint, is removed. ``run`` is its
        folder.
        """
        # No rank opens the files any more.
        self._barrier("begin")
        is_used, header = self._header.saved >= 0, self._header
        if is_used and (header.confirmed or header.run != run):
            raise ConfigError(
                f"--center-store {self._folder} holds the centers of another run, at update "
                f"{header.saved}; give another folder, or that run's --models-root to go on with "
                "it, or delete the folder"
            )
        with explained(self._folder):
            if self._is_owner and is_used:
                # The ranks have the files open: they stay the same ones.
                headers.remove_logs(self._folder)
                os.ftruncate(self._file, 0)
                self._mapped[:] = 0
            self._write_header(run=run, place=self._held.place, saved=-1, attempts={})
            self._barrier("begun")

    def read(self, part: Part) -> Future[None]:
        """Begin to fill rows in memory, after all writes so far; returns what ``wait`` takes."""
        return self._submit(lambda: self._records.read(part))

    def write(self, part: Part) -> None:
        """Begin to write rows, which stay as they are meanwhile; ``wait`` raises its error."""
        self._submit(lambda: self._write(part))

    def wait(self, reading: Optional[Future[None]] = None) -> None:
        """Wait for what ``read`` has begun, or for everything."""
        with explained(self._folder):
            (reading or self._last).result()

    def checkpoint(self, update: int) -> Origin:
        """Keep the rows as they are after ``update`` updates, and name them, for ``restore``.

        Raises:
            DataError: also if the folder was moved, or a number is not finite.
        """
        self._held.check()
        self.wait()
        if self._log is not None and self._log.update == update:
            return self._header.origin(update)
        with explained(self._folder):
            if not self._is_finite:
                raise DataError(
                    "numbers are not finite, so there is no checkpoint of update "
                    f"{update}; resume from the one before with a lower --lr"
                )
            # The first log is that of the start, of which there is no checkpoint.
            saved = self._header.saved if self._log is None else update
            attempts = {**self._logged_attempts(), str(update): self._attempt}
            self._begin_log(update, saved=saved, attempts=attempts)
        return self._header.origin(update)

    def forget(self, remaining: Sequence[int]) -> None:
        """Remove the logs of checkpoints before all of these, which exist."""
        if not self._is_owner or not remaining:
            return
        self._held.check()
        with explained(self._folder):
            if not self._header.confirmed:
                self._write_header(confirmed=True)
        for update, path in logs(self._folder):
            if update < min(remaining):
                path.unlink(missing_ok=True)

    def restore(self, saved: Saved) -> None:
        """Put the rows back as they were at a checkpoint, which may be of another store."""
        update, header = saved.update, self._header
        origin = Origin(saved.count(headers.STORE), saved.count(headers.ATTEMPT))
        with explained(self._folder):
            headers.check_number(header if header.saved >= 0 else None, origin)
        if header.is_needed_elsewhere(saved, self._held.place):
            raise ConfigError(
                f"--center-store {self._folder} belongs to the run in {header.run}, whose "
                "checkpoints need it: going on from here would overwrite their rows; give a copy "
                "of the folder, or delete those checkpoints"
            )
        with explained(self._folder):
            # All logs are checked before any is undone: half undone, the rows fit no newer
            # checkpoint either.
            for _ in undone(self._folder, update, self._records, Index(self._mapped.copy())):
                pass
            header.check_attempt(origin, update)
            self._barrier("checked")
            if self._is_owner:
                self._return_to(update)
            self._barrier("restored")
            claim = {"run": str(saved.run.resolve()), "place": self._held.place}
            attempts = self._logged_attempts()
            self._begin_log(update, **claim, confirmed=True, attempts=attempts)

    def close(self) -> None:
        """Finish what is under way and leave the folder to other runs."""
        self._opened.close()
        if self._log is not None:
            self._log.close()

    def _submit(self, action: Callable[[], None]) -> Future[None]:
        """Do something after everything that was asked for before, unless that has failed."""
        before = self._last

        def run() -> None:
            before.result()
            action()

        self._last = self._ordered.submit(run)
        return self._last

    def _write(self, part: Part) -> None:
        if self._log is not None:
            self._log_rows(self._log, part.classes)
        # Behind the log, which says what is new: a new row has no place once it is undone.
        self._is_finite &= self._records.write(part)
        # A row that was read is written as well, so that this counts the pages of both.
        self._written += part.classes.size * self.layout.itemsize
        if self._written > self._memory * 2**30 / _FLUSHES:
            self._flushed.result()
            self._flushed, self._written = self._beside.submit(self._leave_cache), 0

    def _leave_cache(self) -> None:
        os.fdatasync(self._file)
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)

    def _log_rows(self, log: UndoLog, classes: Rows) -> None:
        """Keep what rows are that have not changed since the last checkpoint."""
        fresh = classes[~self._logged[classes - self._shard.start]]
        if not fresh.size:
            return
        checks = self._records.index.checks
        for some in np.split(fresh, range(_BLOCK_ROWS, fresh.size, _BLOCK_ROWS)):
            is_new = checks[some] == 0
            new, others = some[is_new], some[~is_new]
            log.append(Block(new, others, checks[others], self._records.images(others)))
        log.flush()
        self._logged[fresh - self._shard.start] = True

    def _return_to(self, update: int) -> None:
        """Put back the rows of all ranks here."""
        folder, records = self._folder, self._records
        for _, block in undone(folder, update, records, records.index):
            records.put(block.classes, block.checks, block.images)
        self._flush()
        # The newest first: what is left can be undone again. The logs of this checkpoint stay, so
        # that it can be restored whatever happens; they are written anew.
        for age, path in logs(folder):
            if age > update:
                path.unlink()
        flush_folder(folder)
        # Rows that are new again give their room back; nobody writes now.
        os.ftruncate(self._file, records.index.end() * self.layout.itemsize)

    def _begin_log(self, update: int, **about: Any) -> None:
        """Begin the log of a checkpoint, while no rank writes, and change the header."""
        self._flushed.result()
        self._flush()
        self._barrier("written")
        former, classes = self._log, (self._header.first, self._header.last)
        folder, index = self._folder, self._records.index
        self._log = UndoLog(folder, update, self._shard.rank, index, classes)
        self._logged[:] = False
        if former is not None:
            former.close()
        self._barrier("logged")
        self._write_header(**about)

    def _write_header(self, **changes: Any) -> None:
        self._header = replace(self._header, **changes)
        if self._is_owner:
            self._header.write(self._folder)

    def _flush(self) -> None:
        os.fdatasync(self._file)
        self._mapped.flush()

    def _logged_attempts(self) -> dict[str, int]:
        """The start of a run that made each checkpoint with undo logs, by update."""
        kept = {str(update) for update, _ in logs(self._folder)}
        return {update: one for update, one in self._header.attempts.items() if update in kept}

    def _meet(self) -> tuple[bool, int, int, int]:
        """Meet the other ranks.

        Returns:
            Whether this is the first rank here, the first class of the ranks here, one past their
            last class, and a random number that names this start of a run, and a new store.
        """
        found, shard = self._folder.stat(), self._shard
        here = (zlib.crc32(os.uname().nodename.encode()), found.st_dev, found.st_ino)
        own = [[*here, shard.start, shard.stop, secrets.randbits(53)]]
        gathered = self._world.allgather(mx.nd.array(own, dtype="int64"), "head.store").asnumpy()
        ranks = [rank for rank, row in enumerate(gathered) if (row[:3] == here).all()]
        first, last = int(gathered[ranks, 3].min()), int(gathered[ranks, 4].max())
        return ranks[0] == shard.rank, first, last, int(gathered[0, 5])

    def _barrier(self, moment: str) -> None:
        self._world.allgather(mx.nd.zeros(1), f"head.store.{moment}").wait_to_read()
