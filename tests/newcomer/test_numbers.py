"""Every result that README.md and the documents of docs/ state has a source: ``sources.tsv``.

A result is a number with a decimal point or with thousands, or a share in percent, outside commands
and names. The rows of a section say where its numbers come from: measured by a command, published
by somebody, computed by a module, or no result but a setting or an example of an output. What was
measured is compared with the report or the file of results that its row names.
"""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.newcomer import commands

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/results"
# Not what is in docs/results: numbers are compared with that.
DOCUMENTS = (
    "README.md",
    *sorted(
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "docs").rglob("*.md")
        if ROOT / "docs/results" not in path.parents
    ),
)
KINDS = {"measured", "published", "computed", "setting"}
# Blocks of commands and listings; of one with prompts, what the commands print is read.
_BLOCK = re.compile(r"^ *```\w*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_ADDRESS = re.compile(r"\d+(?:\.\d+){3}")
_NO_PROSE = re.compile(r"(?<!`)`[^`]+`(?!`)|\]\([^)]*\)")
_REPORT = re.compile(r"(?:benchmarks|docs)/results/[\w-]+\.(?:md|json|txt)")
_FILE = re.compile(
    r"(?<![\w/])(?:backbones|benchmarks|data|docs|evaluation|parallel|partial_fc|runtime|setup-utils|tests"
    r"|training)/[\w./-]*\w"
)
_NUMBER = re.compile(r"(?<![\w.])\d{1,3}(?:,\d{3})+(?:\.\d+)?(?!\w)|(?<![\w.])\d+(?:\.\d+)+(?!\w)")


def numbers(text: str) -> dict[str, list[str]]:
    """The results of a document by section."""
    found: dict[str, list[str]] = defaultdict(list)
    section = ""
    text = _BLOCK.sub(lambda block: _printed(block[1]), text)
    for line in _NO_PROSE.sub(" ", text).splitlines():
        if line.startswith("#"):
            section = line.strip("# ")
        else:
            found[section] += _NUMBER.findall(line)
    return {name: listed for name, listed in found.items() if listed}


def _printed(block: str) -> str:
    """What a block says is printed: a line with an accuracy, or all behind a prompt."""
    if block.startswith("verification "):
        return block
    typed = [line for line in commands.read(f"```\n{block}```\n") if line.output]
    return _ADDRESS.sub("", "".join(f"{line}\n" for one in typed for line in one.output))


def rows() -> list[dict[str, str]]:
    lines = (RESULTS / "sources.tsv").read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader([line for line in lines if line[0] != "#"], delimiter="\t"))


def of_row(row: dict[str, str]) -> set[str]:
    """The numbers that a row is the source of."""
    if row["numbers"] != "*":
        return set(row["numbers"].split())
    (report,) = _REPORT.findall(row["source"])
    return set(_NUMBER.findall((ROOT / report).read_text(encoding="utf-8")))


def kept(path: Path) -> str:
    """The text of a report without the commas of thousands, or the numbers of a file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".json":
        return re.sub(r"(?<=\d),(?=\d{3})", "", text)
    return "\n".join(values(json.loads(text)))


def values(found: Any) -> list[str]:
    """All numbers of a file of results, and what it has as text."""
    if isinstance(found, dict):
        found = list(found.values())
    if isinstance(found, list):
        return [value for one in found for value in values(one)]
    return [str(found)]


def is_in(number: str, text: str) -> bool:
    """Whether a number stands in a text, with as many digits or with more that round to it."""
    plain = number.replace(",", "")
    if re.search(rf"(?<![\w.]){re.escape(plain)}(?![\w.]*\d)", text):
        return True
    digits = len(plain.partition(".")[2])
    longer = re.findall(rf"(?<![\w.])\d+\.\d{{{digits + 1},}}(?!\w)", text)
    return any(f"{float(one):.{digits}f}" == plain for one in longer)


def test_what_was_measured_stands_in_its_report() -> None:
    for row in rows():
        if row["kind"] != "measured":
            continue
        reports = [ROOT / name for name in _REPORT.findall(row["source"])]
        assert reports, row
        texts = [kept(report) for report in reports]
        missing = [one for one in of_row(row) if not any(is_in(one, text) for text in texts)]
        assert missing == [], (row["document"], row["section"], reports)


@pytest.mark.parametrize(
    ("number", "text", "is_there"),
    [
        ("0.9500", "trained 0.9500, best", True),
        ("0.9497", "0.9496666666666668", True),
        ("9,865", "9865 of 10000", True),
        ("0.95", "0.9500", True),
        ("0.94", "0.9500", False),
        ("0.9500", "10.9500", False),
        ("1.5", "v1.5.1", False),
        ("0.9510", "0.9500", False),
    ],
)
def test_a_number_is_found(number: str, text: str, is_there: bool) -> None:
    assert is_in(number, text) == is_there


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_result_has_a_source(document: str) -> None:
    sources: dict[str, set[str]] = defaultdict(set)
    for row in rows():
        if row["document"] == document:
            sources[row["section"]] |= of_row(row)
    found = numbers((ROOT / document).read_text(encoding="utf-8"))
    missing = {name: sorted(set(listed) - sources[name]) for name, listed in found.items()}
    missing = {name: listed for name, listed in missing.items() if listed}
    assert not missing, f"add where they come from to {RESULTS.name}/sources.tsv: {missing}"


def test_every_source_is_that_of_a_result() -> None:
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS}
    for row in rows():
        assert row["kind"] in KINDS and len(row["source"]) > 20, row
        stated = set(numbers(texts[row["document"]]).get(row["section"], []))
        assert of_row(row) & stated, row
        if row["numbers"] != "*":
            assert of_row(row) <= stated, (row["section"], of_row(row) - stated)


def test_files_and_modules_of_the_sources_exist() -> None:
    for row in rows():
        for path in _FILE.findall(row["source"]):
            assert (ROOT / path).exists(), path
        for module in re.findall(r"python -m ([\w.]+)", row["source"]):
            path = ROOT / module.replace(".", "/")
            assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


def test_numbers_are_read_as_they_are_written() -> None:
    blocks = "```\nverification lfw: 0.95\n```\n\n```\nsleep 1.5\n```\n"
    blocks += "```\n$ sleep 2.5\nverification lfw: 0.96\n```\n"
    text = f"# A\n0.9865 (9,865 of 10,000), `0.1`\n{blocks}"
    text += "## B\n| r50 | 97.3 % |\nv1.9.1 and 4.1.8\n"
    found = ["0.9865", "9,865", "10,000", "0.95", "0.96"]
    assert numbers(text) == {"A": found, "B": ["97.3", "4.1.8"]}
