"""Files that the commands of this room write where an option says."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runtime.errors import ConfigError, DataError
from runtime.files import write_atomically


def check_output(path: Path, option: str, inputs: Iterable[Path] = ()) -> None:
    """Refuse a file that cannot be written, before what takes minutes has been computed for it.

    Makes the folder of the file, if need be.

    Args:
        path: of the file.
        option: that names it.
        inputs: what the command reads, which the file would replace.

    Raises:
        ConfigError: the file is a folder, or one of the inputs.
        DataError: its folder cannot be made, or not be written.
    """
    if os.path.isdir(path):
        raise ConfigError(f"{option} {path} is a folder; name a file")
    refuse_inputs(path, option, inputs)
    with writing(path, option):
        path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK):
        raise DataError(f"{path} cannot be written: its folder is read-only; choose another one")


def refuse_inputs(path: Path, option: str, inputs: Iterable[Path]) -> None:
    """Raise ``ConfigError`` if a file that is to be written is one of those that are read."""
    for one in inputs:
        with suppress(OSError):
            if os.path.samefile(path, one):
                raise ConfigError(
                    f"{option} {path} would replace what this command reads; give it another name"
                )


def write_output(path: Path, content: bytes, option: str) -> None:
    """Write a file, whole or not at all, and its folder if need be.

    Raises:
        DataError: it cannot be written.
    """
    with writing(path, option):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)


@contextmanager
def writing(path: Path, option: str) -> Iterator[None]:
    """Raise ``DataError`` for a file or folder that cannot be written within."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{path} cannot be written: {error.strerror}; choose another folder with {option}"
        ) from None
