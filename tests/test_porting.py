"""What docs/porting.md says to type is parsed or run, what it renames is refused.

A comment before each table says what is in it. The tables have the word of another program in the
first column, and in the second what to type here, or why nothing is to be typed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pytest

import backbones
from backbones import classifiers
from parallel.launch.options import parse
from runtime.errors import ConfigError
from tests.support.typed import PROGRAMS, accept, check, launch_parser, names_of
from training.config import originals
from training.config.presets import PRESETS, RECIPES

pytestmark = pytest.mark.documents

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "porting.md").read_text(encoding="utf-8")
# Two options that go together stand in one row.
PAIRS = {"--rec-val": "--rec-train"}
_TABLE = re.compile(r"<!-- ([a-z. ]+) -->\n\n((?:\|.*\n)+)")
NETWORKS = {
    "networks": ("train.py", "--network", backbones.names()),
    "models": ("classify.py", "--model", classifiers.names()),
}
SYNTHETIC = ("--dataset", "synthetic")


class Row(NamedTuple):
    kind: str
    there: str
    here: str
    why: str = ""


def rows(kind: str) -> list[Row]:
    tables = [table.splitlines()[2:] for named, table in _TABLE.findall(TEXT) if named == kind]
    found = [Row(kind, *cells_of(line)[:3]) for line in chain(*tables)]
    assert len(found) > 3, kind
    return found


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def spans(cell: str) -> list[str]:
    return re.findall("`([^`]+)`", cell)


def refusal(parse_line: Callable[[list[str]], object], *words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_line([*words])
    assert "\n" not in str(caught.value)
    return str(caught.value)


def check_commands(row: Row, folder: Path, program: str = "") -> list[str]:
    """Check what the second column says to type; returns the first word of each."""
    for command in spans(row.here):
        if command.startswith("--"):
            accept(program, command.split(), folder)
        else:
            check(command, folder)
    assert program or spans(row.here)
    return [command.split()[0] for command in spans(row.here)]


def check_option(row: Row, folder: Path) -> None:
    program = row.kind.rpartition(" ")[2]
    typed = check_commands(row, folder, program)
    for there in spans(row.there):
        is_variable = re.fullmatch("[a-z_0-9]+", there)
        name, *values = (f"--{there.replace('_', '-')}" if is_variable else there).split()
        if name in names_of(program):
            assert typed in ([name], [PAIRS.get(name)])
        elif program == "classify.py" and name in originals.SYNONYMS:
            assert typed == [originals.SYNONYMS[name]]
            accept(program, [name, *values], folder)
        else:
            message = refusal(PROGRAMS[program].parse, *SYNTHETIC, name, *values)
            assert f"{name} is not an option here: {'' if typed else row.here}" in message
            assert all(one in message for one in typed)


def check_option_of_the_launcher(row: Row, _: Path) -> None:
    """Each is taken for what the second column says, or refused with it."""

    def parse_options(words: list[str]) -> object:
        return parse(launch_parser(), ["-n", "2", *words, "--", "python", "x.py"])

    here = spans(row.here)
    for there in spans(row.there):
        name, *values = there.split()
        if row.why.startswith(("both", "all", "taken")):
            (typed,) = here
            assert parse_options([name, *values]) == parse_options(typed.split())
            continue
        message = refusal(parse_options, name, *values)
        assert name in message
        if name in ("--launcher", "--cluster"):
            assert f"{values[0]} is not ported; give --launcher ssh" in message
        elif here and here[0].startswith("-"):
            assert here[0].split()[0] in message
        else:
            assert "leave it out" in message or "NAME=VALUE before" in message or row.why in message


def check_network(row: Row, _: Path) -> None:
    program, option, known = NETWORKS[row.kind]
    here = spans(row.here)
    for name in spans(row.there):
        if row.here == "the same":
            assert name in known
            continue
        message = refusal(PROGRAMS[program].parse, *SYNTHETIC, "--network", name)
        assert f"{option} {name!r} does not exist here" in message
        assert set(here) <= set(known) and (here or row.here in message)
        # Of a family, a row has one of several.
        assert name.startswith("iresnet") or all(one in message for one in here[:1])


CHECKS: dict[str, Callable[[Row, Path], object]] = {
    "options of train.py": check_option,
    "options of classify.py": check_option,
    "options of the launcher": check_option_of_the_launcher,
    **dict.fromkeys(NETWORKS, check_network),
    "commands": check_commands,
}


def test_every_table_has_a_check() -> None:
    # Those of files are looked up by the test of all documents.
    others = {"files", "variables", "output"}
    assert {kind for kind, _ in _TABLE.findall(TEXT)} == {*CHECKS, *others}
    # Those without a comment are the presets, which have a test of their own, and the differences.
    assert TEXT.count("<!-- ") == len(_TABLE.findall(TEXT))
    assert len(re.findall(r"^\|[-| :]+\|$", TEXT, re.MULTILINE)) == TEXT.count("<!-- ") + 4


@pytest.mark.parametrize("kind", CHECKS)
def test_what_a_table_says_is_so(kind: str, tmp_path: Path) -> None:
    wrong = []
    for row in rows(kind):
        try:
            CHECKS[kind](row, tmp_path)
        except (AssertionError, ConfigError, pytest.fail.Exception) as error:
            wrong.append(f"{row.there}: {error}")
    assert not wrong, "\n".join(wrong)


def test_presets_are_those_of_the_tables() -> None:
    text = TEXT.partition("## Presets")[2].partition("### Differences")[0]
    lines = [line for line in text.splitlines() if re.match(r"\| `(?!--dataset`)", line)]
    tables = [(name, cells_of(line)) for line in lines for name in spans(line.split("|")[1])]
    recipes = [name for name in RECIPES if name != "synthetic"]
    assert sorted(name for name, _ in tables) == sorted([*PRESETS, *recipes])
    for name, cells in tables:
        if len(cells) == 8:
            recipe = PRESETS[name]
            steps = " ".join(f"{step:,}" for step in recipe.lr_steps)
            targets = " ".join(recipe.get("val_targets", ())) or "none"
            numbers = [f"{recipe.max_update:,}", str(recipe.sample_ratio)]
            assert cells[4:] == [f"{recipe.lr}, {steps}", *numbers, targets]
            assert "debug" in recipe or cells[3] == f"{recipe.num_classes:,}"
        elif len(cells) == 7:
            row = RECIPES[name]
            assert cells[1:4] == [row.model, str(row.batch_size), str(row.lr)]
            assert cells[5] == str(row.epochs)
