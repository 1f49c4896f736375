"""Words of the lines of lists that others publish, whatever program has written them.

A spreadsheet writes quotes, and commas or semicolons at the end of a line. Names of images are file
names, which may hold spaces.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator

_SEPARATORS = "\t,;"


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
    try:
        words = next(csv.reader([line], delimiter=mark, skipinitialspace=True), [""])
    except csv.Error:
        words = line.split(mark)
    words = [word.strip() for word in words]
    while words and not words[-1]:
        words.pop()
    return words
