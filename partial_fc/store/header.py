"""The folder of a store, and what it says of itself: ``store.json``, replaced as a whole.

The header names the store by a random number, and by another one the start of a run that has made
each checkpoint. The checkpoints that need it repeat both, so that no checkpoint is joined with the
centers of another run, or with those of its own run after that has gone back and trained again.
"""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Optional

from partial_fc.shard import ENTRY, RowState
from partial_fc.store.records import Index, Records, layout_of
from partial_fc.store.undo import logs
from runtime.errors import ConfigError, DataError
from runtime.files import as_data_error, create, open_kept, read_file, write_atomically
from runtime.state import Saved

FILE_NAME = "store.json"
RECORDS, INDEX, LOCK = "records.bin", "index.bin", "lock"
# In a checkpoint, the numbers of an ``Origin``.
STORE, ATTEMPT = "center_store", "center_store_attempt"
FORMAT = "class centers 2"


class Origin(NamedTuple):
    """Names the rows that a checkpoint needs, together with its update.

    Attributes:
        number: of the store.
        attempt: drawn at random by the start of a run that has made the checkpoint.
    """

    number: int
    attempt: int

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Optional[Origin]:
        """Find it among the values of the head in a manifest; None if they name no store."""
        number = values.get(STORE)
        return cls(number, values.get(ATTEMPT, 0)) if isinstance(number, int) else None

    def values(self) -> dict[str, int]:
        """Return what a checkpoint says of it."""
        return {STORE: self.number, ATTEMPT: self.attempt}


@dataclass(frozen=True)
class Header:
    """A store.

    Attributes:
        number: names it.
        classes: of all ranks.
        embedding: D.
        states: of the optimizer, by name.
        seed: of the initial centers.
        first: the first class that is here; others may be on other hosts.
        last: one past the last.
        saved: the update of the last checkpoint that was begun; -1 if there is none.
        confirmed: whether a checkpoint exists. A process that is killed while the first one is
            written leaves a store of which that is not known.
        run: the folder of the run that uses it; empty if not known.
        format: what its files are.
        place: device and inode of the folder when a run began or went on; a copy has others.
        attempts: the start of a run that has made each checkpoint, by update; see ``Origin``.
    """

    number: int
    classes: int
    embedding: int
    states: Mapping[str, RowState]
    seed: int
    first: int
    last: int
    saved: int = -1
    confirmed: bool = False
    run: str = ""
    format: str = FORMAT
    place: str = ""
    attempts: Mapping[str, int] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Replace the header of a folder."""
        about = asdict(self)
        about["checksum"] = _checksum(about)
        write_atomically(folder / FILE_NAME, json.dumps(about, indent=1).encode() + b"\n")

    @classmethod
    def read(cls, folder: Path) -> Optional[Header]:
        """Read the header of a folder; None if there is none.

        Raises:
            DataError: it is damaged, or the index has not an entry for each class.
        """
        path = folder / FILE_NAME
        try:
            about = json.loads(read_file(path))
            checksum = about.pop("checksum")
            states = {name: RowState(*state) for name, state in about["states"].items()}
            are_known = {*states.values()} <= {("float32", True), ("int32", False)}
            if about["format"] != FORMAT or not are_known or checksum != _checksum(about):
                raise ValueError
            header = cls(**{**about, "states": states})
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise DataError(
                f"{path} is damaged, or of another version; bring it back from a copy, or delete "
                "the folder and start anew with --resume never"
            ) from None
        found, expected = (folder / INDEX).stat().st_size, ENTRY * header.classes
        if found != expected:
            raise DataError(f"{INDEX} has {found} bytes instead of {expected}: it is damaged")
        return header

    @property
    def span(self) -> str:
        """The classes that are here, in words."""
        if (self.first, self.last) == (0, self.classes):
            return f"{self.classes:,} classes"
        return f"classes {self.first:,} to {self.last - 1:,} of {self.classes:,}"

    def records(self, file: int, index: Index) -> Records:
        """Return the records of the store in a file that is open."""
        layout = layout_of(self.embedding, self.states)
        return Records(file, index, layout, seed=self.seed, salt=self.number)

    def origin(self, update: int) -> Origin:
        """Return what the checkpoint of an update has to say."""
        return Origin(self.number, self.attempts.get(str(update), 0))

    def is_needed_elsewhere(self, saved: Saved, place: str) -> bool:
        """Return True if checkpoints of another run than the one that goes on need this store.

        A copy, which has another place, is not needed, and neither is the store of a run that was
        moved or has no checkpoints any more.
        """
        if self.place != place or not os.path.isdir(self.run):
            return False
        if os.path.samefile(self.run, saved.run):
            return False
        return self.number in [values.get(STORE) for values in saved.values_in(Path(self.run))]

    def check_attempt(self, origin: Origin, update: int) -> None:
        """Raise ``DataError`` if the rows of an update are not those of a checkpoint of this."""
        if origin != self.origin(update):
            raise DataError(
                f"its rows of update {update} are not those of this checkpoint: a run has gone "
                "back to an earlier one and trained on from there; use a checkpoint of that run, "
                "or a copy of the store that was made with this checkpoint"
            )


def check_number(found: Optional[Header], origin: Origin) -> None:
    """Raise ``DataError`` if a store, None if it is empty, is not the one of a checkpoint."""
    if found is None or found.number != origin.number:
        there = "it is empty" if found is None else found.number
        raise DataError(
            f"it is not the store of this checkpoint ({there} instead of {origin.number}); give "
            "the folder of its run, or another --models-root, or start anew with --resume never"
        )


def locked(folder: Path, *, to_write: bool) -> int:
    """Lock the folder, for a run or for readers; returns the lock's descriptor."""
    lock = open_kept(folder / LOCK, os.O_RDWR | os.O_CREAT if to_write else os.O_RDONLY)
    try:
        fcntl.flock(lock, (fcntl.LOCK_EX if to_write else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ConfigError(
            f"--center-store {folder} is in use by another run; wait for its end, or give each run "
            "its own"
        ) from None
    return lock


def prepare(folder: Path, wanted: Header) -> None:
    """Make the files, unless checkpoints need those that are there, which fit this model."""
    found = Header.read(folder)
    if found is not None and found.saved >= 0:
        model = found.classes, found.embedding, found.states
        fits = found.first <= wanted.first and wanted.last <= found.last
        if model != (wanted.classes, wanted.embedding, wanted.states) or not fits:
            raise ConfigError(
                f"--center-store {folder} holds {found.span} of {found.embedding} numbers with "
                f"{', '.join(found.states)}, not {wanted.span} of {wanted.embedding} with "
                f"{', '.join(wanted.states)}; use the same options and hosts, or another folder"
            )
        return
    # No checkpoint needs what a run that has ended has left.
    remove_logs(folder)
    with create(folder / RECORDS):
        pass
    with create(folder / INDEX) as file:
        # It is written as memory, where a full disk would end the process.
        os.posix_fallocate(file.fileno(), 0, wanted.classes * ENTRY)
    wanted.write(folder)


def remove_logs(folder: Path) -> None:
    """Remove all logs and the header, without which there is no store."""
    for path in (*(path for _, path in logs(folder)), folder / FILE_NAME):
        path.unlink(missing_ok=True)


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """One line about the store, whatever is wrong with it."""
    remedy = "see to its disk and start again: the run goes on from its last checkpoint"
    with as_data_error(f"--center-store {folder} cannot be read or written", remedy):
        try:
            yield
        except DataError as error:
            raise DataError(f"--center-store {folder}: {error}") from error


def _checksum(about: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(about, sort_keys=True).encode())
