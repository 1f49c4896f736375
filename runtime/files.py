"""Files and folders that appear under their names only when they are complete.

After a full disk, a power cut or Ctrl-C, a reader must find either the former file or the complete
new one. So each file is written under a temporary name in the same folder, flushed to the disk, and
then renamed. By the checksum of files two hosts or two runs know that they have the same ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Optional

from runtime.errors import ConfigError, DataError
from runtime.stopping import undisturbed

# Small writes and reads are slow, and make the threads that read records wait.
_BUFFER = 1 << 20


class StagedFiles:
    """Files that belong together and get their names together.

    A context manager: leaving it with an exception removes what has been written; otherwise the
    files get their names in the order in which they were opened. Former files of these names stay
    untouched until all new ones are complete and flushed.

    Raises:
        OSError: when opening, writing or leaving, for want of room or permission.
    """

    def __init__(self) -> None:
        self._files: list[tuple[BinaryIO, Path, Path]] = []

    def open(self, path: Path) -> BinaryIO:
        """Begin a file that will be called ``path``."""
        partial = path.with_name(f".{path.name}.{os.getpid()}.part")
        file = partial.open("wb", _BUFFER)
        self._files.append((file, partial, path))
        return file

    def __enter__(self) -> StagedFiles:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], *_: object) -> None:
        try:
            if kind is None:
                self.publish()
        finally:
            self.discard()

    def publish(self, remove_first: Iterable[Path] = ()) -> None:
        """Flush all files to the disk, and then give them their names.

        Args:
            remove_first: former files that contradict the first of the new ones; they are removed
                before it appears.
        """
        for file, _, _ in self._files:
            file.flush()
            os.fsync(file.fileno())
            file.close()
        for path in remove_first:
            path.unlink(missing_ok=True)
        for _, partial, path in self._files:
            partial.replace(path)
        for folder in {path.parent for _, _, path in self._files}:
            flush_folder(folder)

    def discard(self) -> None:
        """Close the files and remove those that are not published."""
        for file, partial, _ in self._files:
            # Its buffer may not fit on the disk either, which has been reported.
            with contextlib.suppress(OSError):
                file.close()
            partial.unlink(missing_ok=True)
        self._files = []


def write_atomically(path: Path, content: bytes) -> None:
    """Write one file, whole or not at all."""
    with StagedFiles() as files:
        files.open(path).write(content)


def sha256(*paths: Path) -> str:
    """Return the SHA-256 of the contents of files, one behind the other, in hexadecimal digits."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(_BUFFER):
                digest.update(chunk)
    return digest.hexdigest()


def flush_folder(folder: Path) -> None:
    """Make new names survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Give the folder in which to write; leaving without an exception gives it the name ``out``.

    Otherwise it is removed. It is a hidden one beside ``out``, and is made by whoever writes into
    it, so that what is refused before leaves nothing behind.

    Raises:
        ConfigError: ``out`` exists, and is no empty folder; or somebody is writing it.
        DataError: nothing can be written there.
    """
    hidden = out.with_name(f".{out.name}.part")
    try:
        if hidden.exists() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
            raise ConfigError(
                f"{hidden if hidden.exists() else out} exists already; delete it, or choose "
                "another place: nothing is overwritten"
            )
        try:
            yield hidden
            with undisturbed():
                os.replace(hidden, out)
        except BaseException:
            with undisturbed():
                shutil.rmtree(hidden, ignore_errors=True)
            raise
    except OSError as error:
        raise DataError(
            f"{out} cannot be written: {error.strerror}; choose a place with enough room where you "
            "may write"
        ) from None
