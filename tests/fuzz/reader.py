"""What a reader under test consists of.

A reader is right when it returns, or raises a ``UserError`` (for a file a ``DataError``, or its
kind, a ``BrokenRecordError``, which a loader counts and skips). Whatever else comes out of it
ends its process.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Optional

from runtime.errors import DataError

SEPARATOR = b"==\n"
"""Between the contents of two files in one input."""


class Reader(NamedTuple):
    """What makes valid files, and what reads a file in a folder of its own."""

    seeds: Callable[[Path], list[bytes]]
    read: Callable[[Path, bytes], object]
    share: int
    """The relative number of inputs in a campaign: more for quicker readers."""
    make: Optional[Callable[[random.Random], bytes]] = None
    """Makes an input that is almost right; damage to the bytes is added to some."""
    is_watched: bool = True
    """False if no input can hold a program, and what is called executes some by itself."""


def of(*seeds: bytes) -> Callable[[Path], list[bytes]]:
    """Return what gives these valid files."""
    return lambda _: list(seeds)


def file_reader(
    use: Callable[[Path], object], *names: str, make: Optional[Callable[[Path], object]] = None
) -> Callable[[Path, bytes], None]:
    """Return what writes an input to a file of a folder, or its parts to two, and reads them.

    Args:
        use: reads them; gets the path of the first.
        names: of the files.
        make: writes everything else into the folder, once.
    """

    def read(folder: Path, content: bytes) -> None:
        if make is not None and not any(folder.iterdir()):
            make(folder)
        parts = [content] if len(names) == 1 else content.partition(SEPARATOR)[::2]
        for name, part in zip(names, parts):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(part)
        use(folder / names[0])

    return read


@contextmanager
def refusals() -> Iterator[None]:
    """Refusing one way of reading does not end the others."""
    try:
        yield
    except DataError:
        pass
