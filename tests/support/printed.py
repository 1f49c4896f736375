"""True if a program has printed what a page says, apart from what differs between machines.

A page leaves out what launchers and the log put before a line, and has ``…`` for a part of a line
or, alone, for any lines. Numbers are compared to two percent; not at all before a unit of time,
speed or share, or where the page says that they are those of a machine.
"""

from __future__ import annotations

import math
import re

ANY = "…"
_BEFORE = re.compile(r"\[\d+,\d+\]<std(?:out|err)>:?|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d rank \d+ \w+: ")
_NUMBER = r"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?"
_MEASURED = r"[\d,.]+ ?(?:images/s|ms|µs|s\b|%|GB/s|MB/s|MiB\b)"
_TOKEN = re.compile(rf"({ANY})|({_MEASURED})|({_NUMBER})|\s+")
_TOLERANCE = 0.02


def lines_of(printed: str) -> list[str]:
    plain = (_BEFORE.sub("", line).rstrip() for line in printed.splitlines())
    return [line for line in plain if line]


def difference(printed: str, expected: str, *, of_the_machine: bool = False) -> str:
    """What is not as the page says; nothing where all is. Numbers ``of_the_machine`` may be any."""
    left, may_skip = lines_of(printed), False
    for line in lines_of(expected):
        if line == ANY:
            may_skip = True
            continue
        while left and may_skip and not is_same(left[0], line, of_the_machine):
            del left[0]
        if not left or not is_same(left[0], line, of_the_machine):
            return f"expected {line!r}, printed {left[0] if left else 'nothing'!r}"
        del left[0]
        may_skip = False
    if left and not may_skip:
        return f"printed more: {left[0]!r}"
    return ""


def is_same(printed: str, expected: str, of_the_machine: bool = False) -> bool:
    # Texts, and the groups of the tokens between them; no group of a token that is space.
    parts = _TOKEN.split(expected)
    texts, numbers = map(re.escape, parts[::4]), parts[3::4]
    tokens = [
        ".*" if any_ else _MEASURED if measured else f"({_NUMBER})" if number else r"\s+"
        for any_, measured, number in zip(parts[1::4], parts[2::4], numbers)
    ]
    found = re.fullmatch("".join(map(str.__add__, texts, [*tokens, ""])), printed)
    wanted = filter(None, numbers)
    return found is not None and (of_the_machine or all(map(_near, found.groups(), wanted)))


def _near(*numbers: str) -> bool:
    one, other = (float(number.rstrip(",").replace(",", "")) for number in numbers)
    # The last digit that is printed may be rounded the other way.
    return math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=0.011)
