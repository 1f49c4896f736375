"""Small text files of which every line counts, so that a mistake can be named with its line."""

from __future__ import annotations

from pathlib import Path

from runtime.errors import DataError


def read(path: Path, content: str) -> list[list[str]]:
    """Read the words of all lines.

    Args:
        path: a text file.
        content: what a line holds, for the error.

    Returns:
        For each line its words, at least one.

    Raises:
        DataError: the file cannot be read, is no text, is empty, or has an empty line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is no text file; each line holds {content}") from None
    lines = [line.split() for line in text.splitlines()]
    if not lines:
        raise DataError(f"{path} is empty; each line holds {content}")
    for number, words in enumerate(lines, 1):
        if not words:
            raise DataError(f"{location(path, number)} is empty; each line holds {content}")
    return lines


def location(path: Path, number: int) -> str:
    """Name a line, counted from 1."""
    return f"{path}, line {number}"
