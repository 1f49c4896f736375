"""Saves checkpoints in the background of the training.

A save copies the state of every part, for which training waits, and leaves the writing to a
background thread. The threads of the ranks do not communicate (a collective in a thread would
collide with those of the main thread): each leaves files for the others, see ``files``. The next
save, or the end of the run, waits for the save before it and exchanges its outcome, so that a full
disk ends the run on all ranks with the reason. Where hosts have folders of their own, older
checkpoints are removed then, and not before: all hosts have theirs.
"""

from __future__ import annotations

import logging
import shutil
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event, Thread
from typing import Any, Optional

from runtime.errors import DataError
from runtime.state import REPLICATED, Stateful, Stored
from training.checkpoint import files
from training.checkpoint.layout import Part
from training.run_folder import Storage, explained

_log = logging.getLogger(__name__)


class Checkpointer:
    """Saves the parts of training; all ranks call its methods together, at the end ``finish``.

    Attributes:
        last: the last finished checkpoint, if any.
    """

    def __init__(
        self,
        parts: Mapping[str, Stateful],
        storage: Storage,
        *,
        keep: int,
        about: Mapping[str, Any],
        resumed: Optional[Path] = None,
    ) -> None:
        """Prepare the folder for the newest ``keep`` checkpoints of ``parts``; 0 writes none.

        The manifest has ``about``, see ``resume.find``; ``resumed`` is the checkpoint from which
        the run has resumed.
        """
        self._parts = parts
        self._storage, self._world = storage, storage.world
        self._root = storage.root / files.FOLDER
        self._keep = keep
        self._about = about
        self.last = resumed
        self._thread: Optional[Thread] = None
        self._pending: Optional[Path] = None
        self._error: Optional[Exception] = None
        # This rank's file is written, or cannot be; another rank's cannot be.
        self._written, self._cancelled = Event(), Event()
        self._when_saved: list[Callable[[Sequence[int]], None]] = []
        self._attempt = self._world.broadcast_object(uuid.uuid4().hex[:12], "checkpoint.attempt")
        self._serial, self._taken = 0, set[str]()
        if not keep:
            return
        own = []
        if storage.is_first:
            with explained(storage.root):
                files.prepare(self._root)
            own = [(path.name, part.serial) for path, part in files.candidates(self._root)]
        # Checkpoints are named and numbered after all that there are.
        for listed in storage.gather(own, "checkpoint.names").values():
            self._taken |= {name for name, _ in listed}
            self._serial = max([self._serial, *(serial for _, serial in listed)])

    def rehearse(self, update: int) -> None:
        """Copy everything once, after ``update`` updates, without writing it.

        The parts keep the memory that they copy into. Allocating it takes time, which is spent here
        before the first update, and not in the pause of the first checkpoint.
        """
        if self._keep:
            self._copy(update)

    def save(self, update: int) -> None:
        """Copy the state after ``update`` updates and start writing it; ``finish`` the one before.

        A second save of the same update does nothing.
        """
        name = files.name_of(update)
        own = [path for path in (self._pending, self.last) if path and path.parent == self._root]
        if not self._keep or any(name in (path.name, path.name.rpartition("-")[0]) for path in own):
            return
        started = time.perf_counter()
        self.finish()
        arrays, values = self._copy(update)
        size = sum(stored.array.nbytes for stored in arrays.values())
        self._serial += 1
        self._pending = self._root / (name if name not in self._taken else f"{name}-{self._serial}")
        self._error = None
        self._written.clear()
        self._cancelled.clear()
        written = self._pending, update, arrays, values
        self._thread = Thread(target=self._write, args=written, name="checkpoint", daemon=True)
        self._thread.start()
        _log.info(
            "update %d: checkpoint of %.1f MiB on this rank: training paused for %.2f s",
            *(update, size / 2**20, time.perf_counter() - started),
        )

    def finish(self) -> Optional[Path]:
        """Wait for the last checkpoint, and return it; ``DataError`` if a rank cannot write it."""
        if self._thread is None:
            return self.last
        self._written.wait()
        failure = self._first_failure()
        if failure is not None:
            self._cancelled.set()
        self._thread.join()
        self._thread, path, self._pending = None, self._pending, None
        failure = failure or self._first_failure()
        if failure is not None:
            failed, reason = failure
            if self._storage.is_first and path is not None:
                shutil.rmtree(files.hidden_folder(path, self._attempt), ignore_errors=True)
                # Others may lack their parts of it.
                files.remove(path)
            before = f"{self.last} is untouched" if self.last else "there is no earlier one"
            raise DataError(
                f"the checkpoint {path} could not be written by rank {failed} on "
                f"{self._storage.hosts[failed]}: {reason}; {before}"
            ) from self._error
        if self._storage.is_spread and self._storage.is_first:
            files.settle(self._root, self._keep)
        self.last = path
        if self._when_saved:
            found = files.candidates(self._root)
            remaining = sorted({part.update for _, part in found if part.world_size})
            for tell in self._when_saved:
                tell(remaining)
        return self.last

    def _copy(self, update: int) -> tuple[dict[str, Stored], dict[str, Any]]:
        arrays: dict[str, Stored] = {}
        values = {}
        self._when_saved = []
        for part, stateful in self._parts.items():
            state = stateful.export_state(update)
            self._when_saved += [state.when_saved] if state.when_saved else []
            values[part] = dict(state.values)
            for name, stored in state.arrays.items():
                # A folder with one of its own ranks' files is enough for that rank to resume.
                if stored.kind != REPLICATED or self._storage.is_first:
                    arrays[f"{part}/{name}"] = stored
        return arrays, values

    def _write(
        self, path: Path, update: int, arrays: dict[str, Stored], values: dict[str, Any]
    ) -> None:
        """Write this rank's file; the first of a folder publishes it. Runs in the thread."""
        storage, rank = self._storage, self._world.rank
        folder = files.hidden_folder(path, self._attempt)
        started = time.perf_counter()
        try:
            files.write_rank(folder, rank, arrays)
            self._written.set()
            if storage.is_first:
                about = {**self._about, "time": time.strftime("%Y-%m-%d %H:%M:%S")}
                hosts = storage.hosts if storage.is_spread else ()
                save = f"{self._attempt}-{self._serial}"
                header = Part(update, self._serial, save, hosts, {}, values, about)
                members = storage.members(rank)
                files.publish(folder, path, header, members, self._keep, self._cancelled)
                seconds = time.perf_counter() - started
                _log.info("update %d: checkpoint %s written in %.1f s", update, path, seconds)
        # The main thread raises it, whatever it is.
        except Exception as error:
            self._error = error
            self._written.set()

    def _first_failure(self) -> Optional[tuple[int, str]]:
        """Return the first rank that has failed, and why; the same on all ranks."""
        error = self._error
        own = error and (getattr(error, "strerror", None) or str(error) or repr(error))
        reasons = self._world.gather_objects(own, "checkpoint.reasons")
        return next(((rank, found) for rank, found in enumerate(reasons) if found), None)
