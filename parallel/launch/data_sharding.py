"""The file ``data_sharding``: line k holds the fractions of the data that worker k reads.

    0.0 0.4
    0.4 0.8
    0.8 0.9
    0.9 1.0

Each is a start and an end, from 0 to 1. Together they are the whole, so that every image is read
once in an epoch; an end and the start that follows it are written alike, digit for digit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from parallel.launch import lines
from parallel.parameter_server.assignment import Share
from runtime.errors import DataError

_CONTENT = "two numbers, start and end of a worker's share of the data"


def read(path: Path, workers: int) -> tuple[Share, ...]:
    """Read the share of each worker.

    Raises:
        DataError: with the file and the line: not two numbers from 0 to 1 that rise, too few or
            many lines, shares that overlap, or data that nobody reads.
    """
    shares = [
        _share(words, lines.location(path, number))
        for number, words in enumerate(lines.read(path, _CONTENT), 1)
    ]
    if len(shares) != workers:
        raise DataError(
            f"{path} has {len(shares)} lines, but there are {workers} workers; give it one line "
            "for each"
        )
    _check_whole(path, shares)
    return tuple(shares)


def text(shares: Iterable[Share]) -> str:
    """Write down shares as ``read`` reads them."""
    return "".join(f"{start!r} {end!r}\n" for start, end in shares)


def _share(words: list[str], here: str) -> Share:
    written = " ".join(words)
    if len(words) != 2:
        raise DataError(f"{here}: {written!r} is not {_CONTENT}")
    numbers = [_number(word, here) for word in words]
    if not 0 <= numbers[0] < numbers[1] <= 1:
        raise DataError(
            f"{here}: {written!r} must rise and lie from 0 to 1: the first number is the start of "
            "a share, the second its end"
        )
    return Share(*numbers)


def _number(word: str, here: str) -> float:
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{here}: {word!r} is not a number from 0 to 1")
    return number


def _check_whole(path: Path, shares: list[Share]) -> None:
    """Refuse shares that overlap or leave gaps."""
    reached, before = 0.0, "the data begins at 0"
    for share, number in sorted((share, number) for number, share in enumerate(shares, 1)):
        here = lines.location(path, number)
        if share.start < reached:
            raise DataError(f"{here} begins at {share.start}, but {before}: the shares overlap")
        if share.start > reached:
            raise DataError(
                f"{here} begins at {share.start}, but {before}: nobody reads what is between"
            )
        reached, before = share.end, f"line {number} ends at {share.end}"
    if reached < 1:
        raise DataError(f"{path}: {before}, and nobody reads from there to 1")
