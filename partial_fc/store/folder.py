"""The folder of a store, which one run at a time uses: its lock, its header, and its files."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from partial_fc.store import header as headers
from partial_fc.store.header import Header
from partial_fc.store.index import ENTRY
from partial_fc.store.undo import logs
from runtime.errors import ConfigError, DataError
from runtime.files import create, open_kept


class StoreFolder:
    """The folder at ``path``."""

    def __init__(self, path: Path) -> None:
        """Make it, if it is missing.

        Raises:
            DataError: it cannot be made.
        """
        self.path = path
        with self.explained():
            path.mkdir(parents=True, exist_ok=True)

    def __str__(self) -> str:
        """The option with which the user has chosen it."""
        return f"--center-store {self.path}"

    def claim(self) -> int:
        """Lock the folder for this run; returns the descriptor that holds the lock.

        Raises:
            ConfigError: another run uses it.
        """
        lock = open_kept(self.path / headers.LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise ConfigError(
                f"{self} is in use by another run; give each run a folder of its own"
            ) from None
        return lock

    def prepare(self, wanted: Header) -> None:
        """Make the files, or see that those of checkpoints are of this model.

        Raises:
            ConfigError: they are of another one.
        """
        found = Header.read(self.path)
        if found is not None and found.saved >= 0:
            differences = found.differences(wanted)
            if found.first > wanted.first or found.last < wanted.last:
                differences.append(
                    f"classes {found.first} to {found.last - 1} there and {wanted.first} to "
                    f"{wanted.last - 1} here, as ranks of other hosts had the others"
                )
            if differences:
                raise ConfigError(
                    f"{self} holds other centers: {', '.join(differences)}; "
                    "use the same options and hosts, or give another folder"
                )
            return
        self._make_files(wanted)

    def _make_files(self, wanted: Header) -> None:
        """Make a store without rows; no checkpoint needs what a run that has ended has left."""
        self.remove_logs()
        with create(self.path / headers.RECORDS):
            pass
        with create(self.path / headers.INDEX) as file:
            # It is written as memory, where a full disk would end the process.
            os.posix_fallocate(file.fileno(), 0, wanted.classes * ENTRY)
        wanted.write(self.path)

    def remove_logs(self) -> None:
        """Remove all logs and the header, without which there is no store."""
        for path in (*(path for _, path in logs(self.path)), self.path / headers.FILE_NAME):
            path.unlink(missing_ok=True)

    def read_header(self) -> Header:
        """The header, of files that have the sizes which it says."""
        header = Header.read(self.path)
        if header is None:
            raise DataError(f"{headers.FILE_NAME} has vanished")
        header.check_files(self.path)
        return header

    @contextmanager
    def explained(self) -> Iterator[None]:
        """One line about the store, whatever is wrong with it."""
        try:
            yield
        except OSError as error:
            raise DataError(
                f"{self} cannot be read or written ({error.strerror}); see "
                "to its disk and start again: the run goes on from its last checkpoint"
            ) from error
        except DataError as error:
            raise DataError(
                f"{self}: {error}; nothing of the last checkpoint has been removed"
            ) from error
