"""Something else in place of a file: a pipe, a device, a folder, a socket, or a link.

A reader has to refuse it in one line, and a file that a link leads to must stay as it was, whatever
is written.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fuzz.link_cases import CASES, Case
from tests.fuzz.reader import Reader

VICTIM = b"a file of the user"


def _socket(path: Path, _: Path) -> None:
    # The name of a socket may have 108 bytes.
    former = Path.cwd()
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)
    os.chdir(former)


KINDS: dict[str, Callable[[Path, Path], None]] = {
    "pipe": lambda path, _: os.mkfifo(path),
    "device": lambda path, _: path.symlink_to("/dev/zero"),
    "terminal": lambda path, _: path.symlink_to("/dev/tty"),
    "folder": lambda path, _: path.mkdir(),
    "socket": _socket,
    "link to itself": lambda path, _: path.symlink_to(path.name),
    "link to nothing": lambda path, _: path.symlink_to("gone"),
    "link to a pipe": lambda path, victim: path.symlink_to(_pipe_beside(victim)),
    "link to a file": lambda path, victim: path.symlink_to(victim),
    "hard link": lambda path, victim: os.link(victim, path),
}
"""What puts something at a path; the second path is that of the user's file."""


def _pipe_beside(victim: Path) -> Path:
    pipe = victim.with_name("pipe")
    if not pipe.exists():
        os.mkfifo(pipe)
    return pipe


@contextmanager
def replaced(case: Case, kind: str, folder: Path) -> Iterator[Path]:
    """Make the files of a case, put something else in place of one, and remove all at the end."""
    from runtime.errors import DataError

    victim = folder / "user" / "file"
    victim.parent.mkdir(parents=True)
    victim.write_bytes(VICTIM)
    place = folder / "place"
    place.mkdir()
    try:
        case.make(place)
        path = place / case.name
        path.unlink(missing_ok=True)
        KINDS[kind](path, victim)
        yield place
    except OSError as error:
        # Of writers, whose programs say the rest of the line.
        raise DataError(str(error)) from None
    finally:
        content = victim.read_bytes()
        for made in (place, victim.parent):
            shutil.rmtree(made)
        assert content == VICTIM, f"the user's file was changed: {content[:80]!r}"


def _seeds(_: Path) -> list[bytes]:
    return [bytes((number % 256, number // 7 % 256)) for number in range(300)]


def _read(folder: Path, content: bytes) -> None:
    first, second, *_ = content + bytes(2)
    case = list(CASES.values())[first % len(CASES)]
    with replaced(case, list(KINDS)[second % len(KINDS)], folder) as place:
        case.use(place)


LINK_READERS = {"links": Reader(_seeds, _read, 6, is_watched=False)}
