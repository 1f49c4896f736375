"""What docs/porting.md says to type is parsed or run, what it renames is refused.

A comment before each table says what is in it. The tables have the word of another program in the
first column, and in the second what to type here, or why nothing is to be typed.
"""

from __future__ import annotations

import re
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
from training.config.presets import PRESETS
from training.config.recipes import RECIPES

pytestmark = pytest.mark.documents

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "porting.md").read_text(encoding="utf-8")
# Two options that go together stand in one row.
PAIRS = {"--rec-val": "--rec-train"}
_TABLE = re.compile(r"<!-- ([a-z. ]+) -->\n\n((?:\|.*\n)+)")
_SPAN = re.compile(r"`([^`]+)`")


class Row(NamedTuple):
    kind: str
    there: str
    here: str
    why: str = ""


def rows(kind: str) -> list[Row]:
    tables = [table.splitlines()[2:] for named, table in _TABLE.findall(TEXT) if named == kind]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in chain(*tables)]
    assert len(cells) > 3, kind
    return [Row(kind, *found[:3]) for found in cells]


def spans(cell: str) -> list[str]:
    return _SPAN.findall(cell)


def refusal(program: str, word: str) -> str:
    base = ["--dataset", "synthetic"]
    with pytest.raises(ConfigError) as caught:
        PROGRAMS[program].parse([*base, *word.split()])
    assert "\n" not in str(caught.value)
    return str(caught.value)


def check_option(row: Row, folder: Path) -> None:
    program = row.kind.rpartition(" ")[2]
    here = spans(row.here)
    for command in here:
        if command.startswith("--"):
            accept(program, command.split(), folder)
        else:
            check(command, folder)
    for there in spans(row.there):
        word = there if not re.fullmatch("[a-z_0-9]+", there) else "--" + there.replace("_", "-")
        name = word.split()[0]
        if name in names_of(program):
            assert [command.split()[0] for command in here] in ([name], [PAIRS.get(name)])
            continue
        if program == "classify.py" and name in originals.SYNONYMS:
            assert [command.split()[0] for command in here] == [originals.SYNONYMS[name]]
            accept(program, word.split(), folder)
            continue
        message = refusal(program, word)
        assert f"{name} is not an option here: " in message
        for command in here:
            assert command.split()[0] in message
        if not here:
            assert f"{name} is not an option here: {row.here}" in message


def check_option_of_the_launcher(row: Row, _: Path) -> None:
    """Each is taken for what the second column says, or refused with it."""
    here = spans(row.here)
    for there in spans(row.there):
        line = ["-n", "2", *there.split(), "--", "python", "x.py"]
        if row.why.startswith(("both", "all", "taken")):
            (typed,) = here
            wanted = parse(launch_parser(), ["-n", "2", *typed.split(), "--", "python", "x.py"])
            assert parse(launch_parser(), line) == wanted
            continue
        with pytest.raises(ConfigError) as caught:
            parse(launch_parser(), line)
        message = str(caught.value)
        assert "\n" not in message and there.split()[0] in message
        if there.split()[0] in ("--launcher", "--cluster"):
            assert f"{there.split()[1]} is not ported; give --launcher ssh" in message
        elif here and here[0].startswith("-"):
            assert here[0].split()[0] in message
        else:
            assert "leave it out" in message or "NAME=VALUE before" in message or row.why in message


def check_network(row: Row, _: Path) -> None:
    program, option, known = (
        ("train.py", "--network", backbones.names())
        if row.kind == "networks"
        else ("classify.py", "--model", classifiers.names())
    )
    here = spans(row.here)
    for name in spans(row.there):
        if row.here == "the same":
            assert name in known
            continue
        message = refusal(program, f"--network {name}")
        assert f"{option} {name!r} does not exist here" in message
        assert here or row.here in message
        assert set(here) <= set(known)
        # Of a family, a row has one of several.
        assert name.startswith("iresnet") or all(one in message for one in here[:1])


def check_commands(row: Row, folder: Path) -> None:
    assert spans(row.here)
    for command in spans(row.here):
        check(command, folder)


CHECKS = {
    "options of train.py": check_option,
    "options of classify.py": check_option,
    "options of the launcher": check_option_of_the_launcher,
    "networks": check_network,
    "models": check_network,
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
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    tables = [line for line in lines if not line.startswith("| `--dataset`")]
    named = [name for line in tables for name in spans(line.split("|")[1])]
    assert sorted(named) == sorted([*PRESETS, *(name for name in RECIPES if name != "synthetic")])
    for line in tables:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        for name in spans(cells[0]):
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
