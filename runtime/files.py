"""Opening files that others may have made or may replace, and writing files that appear when whole.

Reading: a pipe or a device in place of a file would make its reader wait forever, so only regular
files are opened, and links to them. Text is UTF-8 or UTF-16, whatever editor has written it.

Writing: after a full disk, a power cut or Ctrl-C, a reader must find either the former file or the
complete new one. So each file is written under a random name in the same folder, flushed to the
disk, and then renamed. Where others may write into the folder, a link that waits under the name of
a file would lead to another file of the user, which would be overwritten: new files are made with
``O_EXCL``, and files that are changed in place (logs, locks) are opened with ``O_NOFOLLOW``.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Optional, Union

from runtime.errors import ConfigError, DataError, undisturbed

# Small writes and reads are slow, and make the threads that read records wait.
_BUFFER = 1 << 20
# More bytes than any text that is read as a whole.
_LARGEST_TEXT = 1 << 32
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

_AnyPath = Union[str, "os.PathLike[str]"]


@contextlib.contextmanager
def as_data_error(what: str, remedy: str = "") -> Iterator[None]:
    """Raise a ``DataError`` in place of an ``OSError``: what fails, the reason, and the remedy."""
    try:
        yield
    except OSError as error:
        reason = f"{error.strerror}; {remedy}" if remedy else error.strerror
        raise DataError(f"{what}: {reason}") from None


def open_descriptor(path: _AnyPath, flags: int = os.O_RDONLY) -> int:
    """Open a regular file, or a link to one, and return its descriptor; never waits for a pipe.

    Raises:
        OSError: it is missing or not a regular file, or may not be opened.
    """
    # Without effect on regular files.
    flags |= os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
    return descriptor


def open_regular(path: _AnyPath, buffering: int = -1) -> BinaryIO:
    """Open a regular file, or a link to one, to read it; ``buffering`` as for ``open``.

    Raises:
        OSError: it is missing or not a regular file, or may not be read.
    """
    file: BinaryIO = open(path, "rb", buffering, opener=open_descriptor)
    return file


def read_file(path: _AnyPath, limit: Optional[int] = None) -> bytes:
    """Return the content of a regular file, or of one to which a link leads.

    Raises:
        OSError: it is missing, not a regular file or larger than ``limit``, or may not be read.
    """
    with open_regular(path, buffering=0) as file:
        if limit is not None and os.fstat(file.fileno()).st_size > limit:
            raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", os.fspath(path))
        return file.read()


def read_text(path: _AnyPath, *, errors: str = "strict", limit: int = _LARGEST_TEXT) -> str:
    r"""Return the text of a file in UTF-8, or in UTF-16 after its byte order mark.

    Ends of lines become ``\n``, as they may be those of Windows. With ``errors`` "surrogateescape",
    bytes that are not UTF-8 are kept, as names of files have them. ``limit`` is in bytes.

    Raises:
        OSError: it cannot be read, or is not text; ``strerror`` says why.
    """
    content = read_file(path, limit)
    try:
        if content.startswith(_UTF_16):
            text = content.decode("utf-16")
        else:
            text = content.decode("utf-8-sig", errors)
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise OSError(errno.EILSEQ, "it is not text in UTF-8 or UTF-16", os.fspath(path))
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_lines(
    path: _AnyPath, kind: str, *, errors: str = "strict", limit: int = _LARGEST_TEXT
) -> list[str]:
    """Return the lines of a text, without their ends; the other arguments are ``read_text``'s.

    ``kind`` stands in the message, such as "a list of pairs".

    Raises:
        DataError: it cannot be read, or is not text.
    """
    with as_data_error(f"{path} cannot be read as {kind}"):
        lines = read_text(path, errors=errors, limit=limit).split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def create(path: _AnyPath) -> BinaryIO:
    """Begin a file in place of one of its name; of a link, the link is replaced.

    Raises:
        OSError: it cannot be made.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    file: BinaryIO = open(path, "x+b", _BUFFER)
    return file


def open_kept(path: _AnyPath, flags: int) -> int:
    """Open a file that is changed in place, a log or a lock, as an ``opener`` of ``open``.

    Raises:
        OSError: it cannot be opened, or is not a regular file of this user, or of the owner of the
            folder, under this one name.
    """
    try:
        descriptor = open_descriptor(path, flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link", os.fspath(path)) from None
        raise
    found = os.fstat(descriptor)
    folder = os.stat(os.path.dirname(path) or os.curdir)
    if found.st_nlink > 1 or found.st_uid not in (os.geteuid(), folder.st_uid):
        os.close(descriptor)
        reason = "it is a hard link, or belongs to another user"
        raise OSError(errno.EPERM, reason, os.fspath(path))
    return descriptor


def make_folder(path: Path) -> None:
    """Make a folder, which may exist, within a folder that others may write.

    Raises:
        OSError: it cannot be made, or is a link that another user has made.
    """
    path.mkdir(parents=True, exist_ok=True)
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode) and found.st_uid not in (os.geteuid(), 0):
        raise OSError(errno.EPERM, "it is a link of another user", os.fspath(path))


class HeldFolder:
    """A folder that a run uses, which has to stay at its path, and whose lock nobody may replace.

    One that is moved away during a run must not be made again: its files would be in two places, or
    in the folder of another run.

    Attributes:
        place: device and inode of the folder; a copy has others.
    """

    def __init__(self, option: str, path: Path, lock: str) -> None:
        """Hold the folder at the path that an option gives, and its lock file, if there is one.

        Raises:
            OSError: there is no folder.
        """
        self._about, self._lock = f"{option} {path}", path / lock
        # As long as they are open, nothing else gets their inodes.
        self._held = {path: os.open(path, os.O_PATH | os.O_DIRECTORY)}
        with contextlib.suppress(FileNotFoundError):
            self._held[self._lock] = os.open(self._lock, os.O_PATH | os.O_NOFOLLOW)
        found = os.fstat(self._held[path])
        self.place = f"{found.st_dev}:{found.st_ino}"

    def check(self) -> None:
        """See that nothing has come in place of the folder, or of the lock in it.

        Raises:
            DataError: the path names another folder, or none, or another run has made a lock.
        """
        for path, descriptor in self._held.items():
            try:
                is_same = os.path.samestat(os.fstat(descriptor), os.stat(path))
            except OSError:
                # Without the lock, no other run has come yet.
                is_same = path == self._lock
            if not is_same:
                raise DataError(
                    f"{self._about} is no longer the folder in which this run started, or another "
                    f"run has it: {path} was moved, removed or replaced; move it back, or wait for "
                    "the end of the other run, and start the same command again: it resumes from "
                    "the last checkpoint"
                )

    def close(self) -> None:
        """Hold it no longer."""
        for descriptor in self._held.values():
            os.close(descriptor)


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
        partial = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
        file: BinaryIO = open(partial, "x+b", _BUFFER)
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

        Former files that contradict the new ones, ``remove_first``, are removed in between.
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
        with open_regular(path) as file:
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
    """Make the folder in which to write; leaving without an exception gives it the name ``out``.

    Otherwise it is removed. It is a hidden one next to ``out``.

    Raises:
        ConfigError: ``out`` exists, and is not an empty folder; or somebody is writing it.
        DataError: nothing can be written there.
    """
    hidden = out.with_name(f".{out.name}.part")
    remedy = "choose a place with enough room where you may write"
    with as_data_error(f"{out} cannot be written", remedy):
        for path in (hidden, out):
            is_empty = path == out and path.is_dir() and not any(path.iterdir())
            if os.path.lexists(path) and not is_empty:
                raise ConfigError(
                    f"{path} exists already; delete it, or choose another place: nothing is "
                    "overwritten"
                )
        hidden.mkdir(parents=True)
        try:
            yield hidden
            with undisturbed():
                os.replace(hidden, out)
        except BaseException:
            # Threads may still be writing: where the name has changed, each of them makes at most
            # the file that it was opening, and that may come when the others have been removed.
            aside = hidden.with_name(f"{hidden.name}.{os.getpid()}")
            with undisturbed(), contextlib.suppress(OSError):
                hidden.replace(aside)
                for _ in range(100):
                    shutil.rmtree(aside, ignore_errors=True)
            raise
