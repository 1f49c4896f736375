"""Answers to somebody who types the options of a program that this toolkit follows.

A similar name of ours would be a wrong answer to most of them. What to type here instead is in the
tables of docs/porting.md, which are read for it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from runtime import options
from runtime.command_line import hint_for
from runtime.errors import ConfigError
from runtime.files import read_text

_PAGE = Path(__file__).parents[1] / "docs/porting.md"
_TABLE = re.compile(r"<!-- ([a-z. ]+) -->\n\n.*\n\|[-|]+\n((?:\|.*\n)+)")


def answers(kind: str) -> dict[str, str]:
    """Return what to type instead of each option or network in the tables of a kind, as patterns.

    Without the page there are none.
    """
    page, found = "", dict[str, str]()
    with suppress(OSError):
        page = read_text(_PAGE)
    for row in "".join(rows for name, rows in _TABLE.findall(page) if name == kind).splitlines():
        there, here, why = (cell.strip() for cell in row.strip("|").split("|"))
        answer = f"type {here}" if here.startswith("`") else here
        for name in re.findall("`([^` ]+)", there):
            found.setdefault(name, f"{answer}; {why}" if why else answer)
    return found


def option_answers(program: str) -> dict[str, str]:
    """Return what to type instead of each option of another program; some write ``_`` for ``-``."""
    return {
        options.option(name) if name.isidentifier() else name.replace("_", "-"): answer
        for name, answer in answers(f"options of {program}").items()
    }


def check_name(option: str, name: str, known: Collection[str], kind: str) -> None:
    """Raise ``ConfigError`` for an original's network that is not ``known`` here."""
    hint = None if name in known else hint_for(name, answers(kind))
    if hint is not None:
        raise ConfigError(f"{option} {name!r} does not exist here: {hint}")
