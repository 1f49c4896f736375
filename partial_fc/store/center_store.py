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

import fcntl
import mmap
import os
import secrets
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

import numpy as np

from partial_fc.shard import Shard
from partial_fc.store import header as headers
from partial_fc.store.header import Header, Origin, StoreFolder
from partial_fc.store.records import Index, Layout, Part, Records, Rows, Transfers, Words
from partial_fc.store.undo import Block, UndoLog, blocks, check_index, logs, logs_since
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


@dataclass(frozen=True)
class StoreOptions:
    """Where a store is and what it may take.

    Attributes:
        folder: the same path on all hosts.
        memory: bytes of the records that this rank leaves in the system's cache of files.
        seed: of the initial centers of a new store.
    """

    folder: Path
    memory: int
    seed: int


class CenterStore:
    """One rank's part of a store; all ranks call its methods together, but ``read``, ``write``.

    Methods raise ``DataError`` where the disk is full or fails, or a record is damaged, and
    ``ConfigError`` where the store is that of another run.

    Attributes:
        shard: the classes of this rank.
    """

    def __init__(
        self, options: StoreOptions, shard: Shard, layout: Layout, world: Communicator
    ) -> None:
        """Open the store of a folder, or make it; no other run uses it meanwhile."""
        self._folder = StoreFolder(options.folder)
        self._memory, self.shard = options.memory, shard
        self._layout, self._world = layout, world
        self._log: Optional[UndoLog] = None
        self._logged = np.zeros(shard.size, bool)
        self._is_finite, self._written = True, 0
        with ExitStack() as opened, self._folder.explained():
            self._folder.path.mkdir(parents=True, exist_ok=True)
            self._is_owner, starts, last, self._attempt = self._meet()
            if self._is_owner:
                opened.callback(os.close, self._folder.lock(fcntl.LOCK_EX))
                model = shard.num_classes, layout.embedding, layout.states
                self._folder.prepare(
                    Header(self._attempt, *model, options.seed, first=starts[0], last=last)
                )
            self._barrier("ready")
            self._held = HeldFolder("--center-store", self._folder.path, headers.LOCK)
            opened.callback(self._held.close)
            self._header = self._folder.read_header()
            # Spans divide the store: some classes may be those of ranks on other hosts.
            bounds = [self._header.first, *starts[1:], self._header.last]
            own = starts.index(shard.start)
            self._span = bounds[own], bounds[own + 1]
            self._is_used = self._header.saved >= 0
            self._file = open_kept(self._folder.path / headers.RECORDS, os.O_RDWR)
            opened.callback(os.close, self._file)
            # Rows lie far apart: what stands behind one is not to be read. Past the cache
            # (O_DIRECT) a disk has read and written no more rows a second.
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_RANDOM)
            with open(open_kept(self._folder.path / headers.INDEX, os.O_RDWR), "r+b") as file:
                self._mapped = mmap.mmap(file.fileno(), 0)
            self._opened = opened.pop_all()
        index = Index(np.frombuffer(self._mapped, np.uint32))
        self._records = Records(
            *(self._file, index, layout), seed=self._header.seed, salt=self._header.number
        )
        self._transfers = Transfers()

    def begin(self, run: str) -> None:
        """Begin a run that goes on from no checkpoint; all ranks together.

        What this run itself has left, killed before it had a checkpoint, is removed. ``run`` is its
        folder.
        """
        # No rank opens the files any more.
        self._barrier("begin")
        is_left = self._is_used and not self._header.confirmed and self._header.run == run
        self._is_used &= not is_left
        self._check_is_own()
        self._header = replace(self._claimed(run), saved=-1, attempts={})
        with self._folder.explained():
            if self._is_owner and is_left:
                # The ranks have the files open: they stay the same ones.
                self._folder.remove_logs()
                os.ftruncate(self._file, 0)
                self._records.index.entries[:] = 0
            self._write_header()
            self._barrier("begun")

    def read(self, part: Part) -> Any:
        """Begin to fill rows in memory, after all writes so far; returns what ``wait`` takes."""
        self._check_is_own()
        return self._transfers.submit(lambda: self._spread(self._records.read, part))

    def write(self, part: Part) -> None:
        """Begin to write rows, which stay as they are meanwhile; ``wait`` raises its error."""
        self._check_is_own()
        self._transfers.submit(lambda: self._write(part))

    def wait(self, reading: Any = None) -> None:
        """Wait for what ``read`` has begun, or for everything."""
        with self._folder.explained():
            self._transfers.wait(reading)

    def checkpoint(self, update: int) -> Origin:
        """Keep the rows as they are after ``update`` updates, and name them, for ``restore``.

        Raises:
            DataError: also if the folder was moved, or a number is not finite.
        """
        self._check_is_own()
        self._held.check()
        self.wait()
        if self._log is not None and self._log.update == update:
            return self._header.origin(update)
        if not self._is_finite:
            raise DataError(
                f"{self._folder} holds numbers that are not finite, so there is no checkpoint of "
                f"update {update}; resume from the one before with a lower --lr"
            )
        with self._folder.explained():
            self._flush()
            is_first = self._log is None
            self._begin_log(update, self._span)
            attempts = {**self._logged_attempts(), str(update): self._attempt}
            saved = self._header.saved if is_first else update
            self._header = replace(self._header, attempts=attempts, saved=saved)
            if not is_first:
                self._write_header()
        return self._header.origin(update)

    def forget(self, remaining: Sequence[int]) -> None:
        """Remove the logs of checkpoints before all of these, which exist."""
        if not self._is_owner or not remaining:
            return
        self._held.check()
        with self._folder.explained():
            if not self._header.confirmed:
                self._header = replace(self._header, confirmed=True)
                self._write_header()
        for update, path in logs(self._folder.path):
            if update < min(remaining):
                path.unlink(missing_ok=True)

    def restore(self, saved: Saved) -> None:
        """Put the rows back as they were at a checkpoint, which may be of another store."""
        update = saved.update
        origin = Origin(saved.count(headers.STORE), saved.count(headers.ATTEMPT))
        with self._folder.explained():
            headers.check_number(self._header.number if self._is_used else None, origin)
        if self._header.is_needed_elsewhere(saved, self._held.place):
            raise ConfigError(
                f"{self._folder} belongs to the run in {self._header.run}, whose "
                "checkpoints need it: going on from here would overwrite their rows; give a copy "
                "of the folder, or delete those checkpoints"
            )
        with self._folder.explained():
            found = logs_since(self._folder.path, update)
            self._header.check_attempt(origin, update)
            whole = self._header.first, self._header.last
            # All before any is undone: half undone, the rows fit no newer checkpoint either.
            check_index(found, update, self._index_after(found), whole)
            self._barrier("checked")
            for block in self._blocks(found):
                self._undo(block)
            self._flush()
            self._barrier("restored")
            if self._is_owner:
                # The newest first: what is left can be undone again. The logs of this checkpoint
                # stay, so that it can be restored whatever happens; they are written anew.
                for age, path in found:
                    if age > update:
                        path.unlink()
                flush_folder(self._folder.path)
                # Rows that are new again give their room back; nobody writes now.
                end = self._records.index.end(*whole)
                os.ftruncate(self._file, end * self._layout.num_bytes)
            self._barrier("forgotten")
            claimed, attempts = self._claimed(str(saved.run.resolve())), self._logged_attempts()
            self._header = replace(claimed, confirmed=True, attempts=attempts)
            self._write_header()
            # A kill may leave logs of several numbers of ranks, whose spans do not fit together.
            self._begin_log(update, whole)
            self._barrier("logged")
        self._is_used = False

    def close(self) -> None:
        """Finish what is under way and leave the folder to other runs."""
        self._transfers.close()
        if self._log is not None:
            self._log.close()
        self._opened.close()

    def _spread(self, action: Callable[[Part], Any], part: Part) -> list[Any]:
        return self._transfers.spread(lambda few: action(part.some(few)), part.classes.size)

    def _write(self, part: Part) -> None:
        if self._log is not None:
            self._log_rows(part.classes)
        # Behind the log, which says what is new: a new row has no place once it is undone.
        self._records.make_room(part.classes)
        self._is_finite &= all(self._spread(self._records.write, part))
        # A row that was read is written as well, so that this counts the pages of both.
        self._written += part.classes.size * self._layout.num_bytes
        if self._written > self._memory // _FLUSHES:
            self._transfers.flush(self._leave_cache)
            self._written = 0

    def _leave_cache(self) -> None:
        os.fdatasync(self._file)
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)

    def _log_rows(self, classes: Rows) -> None:
        """Keep what rows are that have not changed since the last checkpoint."""
        assert self._log is not None
        start = self.shard.start
        fresh = classes[~self._logged[classes - start]]
        if not fresh.size:
            return
        checks = self._records.index.checks
        is_new = checks[fresh] == 0
        new, others = fresh[is_new], fresh[~is_new]
        for first in range(0, max(others.size, 1), _BLOCK_ROWS):
            some = others[first : first + _BLOCK_ROWS]
            self._log.append(
                Block(new if not first else new[:0], some, checks[some], self._images(some))
            )
        self._log.flush()
        self._logged[fresh - start] = True

    def _images(self, classes: Rows) -> Words:
        parts = self._transfers.spread(lambda few: self._records.images(classes[few]), classes.size)
        return np.concatenate([np.empty((0, self._layout.words), np.uint32), *parts])

    def _blocks(self, found: Sequence[tuple[int, Path]]) -> Iterator[Block]:
        form = self._layout.words, self._header.classes
        return (block for _, path in found for block in blocks(path, *form))

    def _index_after(self, found: Sequence[tuple[int, Path]]) -> Index:
        """The index as it will be when these logs are undone; ``DataError``: one is damaged."""
        index = Index(self._records.index.entries.copy())
        for block in self._blocks(found):
            self._records.check(block.classes, block.checks, block.images)
            index.checks[block.new] = 0
            index.checks[block.classes] = block.checks
        return index

    def _undo(self, block: Block) -> None:
        """Put rows of this rank's span back."""
        (start, stop), checks = self._span, self._records.index.checks
        checks[block.new[(block.new >= start) & (block.new < stop)]] = 0
        own = (block.classes >= start) & (block.classes < stop)
        self._records.put(block.classes[own], block.checks[own], block.images[own])

    def _begin_log(self, update: int, classes: tuple[int, int]) -> None:
        former, index = self._log, self._records.index
        self._log = UndoLog(self._folder.path, update, self.shard.rank, index, classes)
        self._logged[:] = False
        if former is not None:
            former.close()

    def _write_header(self) -> None:
        if self._is_owner:
            self._header.write(self._folder.path)

    def _flush(self) -> None:
        os.fdatasync(self._file)
        self._mapped.flush()

    def _check_is_own(self) -> None:
        """Refuse to write over rows of which there are checkpoints, before ``restore``."""
        if self._is_used:
            raise ConfigError(
                f"{self._folder} holds the centers of another run, at update "
                f"{self._header.saved}; give another folder, or that run's --models-root to go on "
                "with it, or delete the folder"
            )

    def _claimed(self, run: str) -> Header:
        return replace(self._header, run=run, place=self._held.place)

    def _logged_attempts(self) -> dict[str, int]:
        """The start of a run that made each checkpoint with undo logs, by update."""
        kept = {str(update) for update, _ in logs(self._folder.path)}
        return {update: one for update, one in self._header.attempts.items() if update in kept}

    def _meet(self) -> tuple[bool, list[int], int, int]:
        """Meet the other ranks.

        Returns:
            Whether this is the first rank here, the first classes of the ranks here, one past their
            last class, and a random number that names this start of a run, and a new store.
        """
        found, shard = self._folder.path.stat(), self.shard
        here = (zlib.crc32(os.uname().nodename.encode()), found.st_dev, found.st_ino)
        own = [[*here, shard.start, shard.stop, secrets.randbits(53)]]
        gathered = self._world.allgather(mx.nd.array(own, dtype="int64"), "head.store").asnumpy()
        ranks = [rank for rank, row in enumerate(gathered) if (row[:3] == here).all()]
        starts, last = sorted(gathered[ranks, 3].tolist()), int(gathered[ranks, 4].max())
        return ranks[0] == shard.rank, starts, last, int(gathered[0, 5])

    def _barrier(self, moment: str) -> None:
        self._world.allgather(mx.nd.zeros(1), f"head.store.{moment}").wait_to_read()
