"""Files that the commands of this room write where an option says."""

from __future__ import annotations

import os
from pathlib import Path

from runtime.errors import ConfigError, DataError
from runtime.files import write_atomically


def check_output(path: Path, option: str) -> None:
    """Refuse a file that cannot be written, before what takes minutes has been computed for it.

    Makes the folder of the file, if need be.

    Raises:
        ConfigError: the file is a folder.
        DataError: its folder cannot be made, or not be written.
    """
    if path.is_dir():
        raise ConfigError(f"{option} {path} is a folder; name a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refusal(path, error, option) from None
    if not os.access(path.parent, os.W_OK):
        raise DataError(f"{path} cannot be written: its folder is read-only; choose another one")


def write_output(path: Path, content: bytes, option: str) -> None:
    """Write a file, whole or not at all, and its folder if need be.

    Raises:
        DataError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise _refusal(path, error, option) from None


def _refusal(path: Path, error: OSError, option: str) -> DataError:
    return DataError(
        f"{path} cannot be written: {error.strerror}; choose another folder with {option}"
    )
