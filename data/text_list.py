"""Lists that others publish as text: their lines and words, whatever program has written them.

A spreadsheet writes a mark at the beginning, quotes, and commas or semicolons at the end of a line;
Windows ends lines in its own way. Names of images are file names, which may hold spaces and bytes
that are not UTF-8; these become what ``os.fsdecode`` makes of them.
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterator
from pathlib import Path

from runtime.errors import DataError

_SEPARATORS = "\t,;"
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_lines(path: Path, kind: str) -> list[str]:
    """Return the lines of a text file in UTF-8, or in UTF-16 with its mark, without their ends.

    Args:
        path: the file.
        kind: of list, for the message, such as "a list of pairs".

    Raises:
        DataError: it cannot be read, or is no text.
    """
    try:
        # A pipe, which is not a file, may never end.
        if path.exists() and not path.is_file():
            raise OSError("it is no file")
        content = path.read_bytes()
        if content.startswith(_UTF_16):
            text = content.decode("utf-16")
        else:
            text = content.decode("utf-8-sig", "surrogateescape")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path} cannot be read as {kind}: {reason}") from None
    if "\0" in text:
        raise DataError(f"{path} cannot be read as {kind}: it is no text")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def splits(line: str) -> Iterator[list[str]]:
    """Yield the words of a line, between tabs, commas, semicolons, and at last between spaces.

    Without quotes, and without empty words at the end. The reader of a list takes the first split
    that has the form it expects, so that a name may hold the separators that come later. An empty
    word is that of a table, of which no other split is tried: its columns would move.
    """
    for mark in _SEPARATORS:
        if mark in line:
            words = _split(line, mark)
            yield words
            if "" in words:
                return
    yield _split(line.replace("\t", " "), " ") if '"' in line else line.split()


def _split(line: str, mark: str) -> list[str]:
    words = line.split(mark)
    if '"' in line:
        try:
            words = next(csv.reader([line], delimiter=mark, skipinitialspace=True))
        except csv.Error:
            pass
    words = [word.strip() for word in words]
    while words and not words[-1]:
        words.pop()
    return words
