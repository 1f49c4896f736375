"""Whether a program has printed what a page says, apart from what differs between machines.

A page leaves out what launchers and the log put before a line, and has ``…`` for the rest of a line
or, alone, for any lines. Numbers are compared to two percent; not at all before a unit of time,
speed or share, or where the page says that they are those of a machine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

ANY = "…"
_BEFORE = re.compile(r"\[\d+,\d+\]<std(?:out|err)>:?|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d rank \d+ \w+: ")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
_MEASURED = re.compile(r"[\d,.]+ ?(?:images/s|ms|µs|s\b|%|GB/s|MB/s|MiB\b)")
_TOLERANCE = 0.02


def lines_of(printed: str) -> list[str]:
    """The lines of a program without what stands before them."""
    plain = (_BEFORE.sub("", line).rstrip() for line in printed.splitlines())
    return [line for line in plain if line]


def difference(printed: str, expected: str, *, of_the_machine: bool = False) -> str:
    """What is not as expected; nothing where all is.

    Args:
        printed: by the program.
        expected: the lines of the page.
        of_the_machine: whether numbers may be any.
    """
    left = lines_of(printed)
    may_skip = False
    for line in lines_of(expected):
        if line == ANY:
            may_skip = True
            continue
        while left and may_skip and not _same(left[0], line, of_the_machine):
            del left[0]
        if not left or not _same(left[0], line, of_the_machine):
            return f"expected {line!r}, printed {left[0] if left else 'nothing'!r}"
        del left[0]
        may_skip = False
    if left and not may_skip:
        return f"printed more: {left[0]!r}"
    return ""


def _same(printed: str, expected: str, of_the_machine: bool) -> bool:
    if expected.endswith(ANY):
        expected = expected[: -len(ANY)].rstrip()
        words = len(expected.split())
        printed = " ".join(printed.split()[:words])
    if of_the_machine:
        return _words(printed) == _words(expected)
    printed, expected = (_MEASURED.sub("#", text) for text in (printed, expected))
    return _words(printed) == _words(expected) and all(
        map(_near, _numbers(printed), _numbers(expected))
    )


def _words(line: str) -> Sequence[str]:
    return _NUMBER.sub("#", line).split()


def _numbers(line: str) -> list[float]:
    return [float(number.replace(",", "")) for number in _NUMBER.findall(line.rstrip(","))]


def _near(one: float, other: float) -> bool:
    # The last digit that is printed may be rounded the other way.
    return math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=0.011)
