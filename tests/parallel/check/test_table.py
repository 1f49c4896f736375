"""The text of a survey."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parallel.check.hosts import Finding
from parallel.check.network import Link
from parallel.check.survey import Pair
from parallel.check.table import WIDTH, table, verdict
from tests.support.healthy_hosts import healthy


def test_hosts_are_columns() -> None:
    survey = healthy({"a": 8, "b": 4}, "mxnet-cu112")
    lines = {line[:14].strip(): line[14:].split("  ") for line in table(survey)}
    cells = {label: [cell.strip() for cell in row if cell] for label, row in lines.items()}
    assert cells[""] == ["a", "b"]
    assert cells["address"] == ["10.0.0.0 eth0", "10.0.0.1 eth0"]
    assert cells["ranks"] == ["8 on 16 processors", "4 on 16 processors"]
    assert cells["MXNet"] == ["1.9.1 mxnet-cu112"] * 2
    assert cells["GPUs"] == ["8 Tesla T4"] * 2
    assert cells["driver"] == ["470.57 CUDA 11.4"] * 2
    assert cells["ulimit -n, -l"] == ["4096, 8192 KiB"] * 2
    assert cells["clock"] == ["+0.000 s ± 0.002", "+0.001 s ± 0.002"]
    assert cells["answers after"] == ["0.20 ms b", "0.20 ms a"]
    assert cells["sends"] == ["1100 MB/s b", "1100 MB/s a"]


def test_the_worst_connection_is_shown_and_projects_that_differ_look_different() -> None:
    survey = healthy({"a": 1, "b": 1, "c": 1})
    pairs = [pair for pair in survey.pairs if (pair.sender, pair.receiver) != ("a", "c")]
    survey.pairs[:] = [*pairs, Pair("a", "c", Link(0.5, 2e6))]
    survey.facts["b"] = replace(survey.facts["b"], files={"train.py": "9"})
    text = "\n".join(table(survey))
    assert "500.00 ms c" in text and "2 MB/s c" in text
    (line,) = (line for line in table(survey) if line.startswith("project"))
    first, second, third = line.split()[1:]
    assert len(first) == len(second) == 12 and first == third != second


@pytest.mark.parametrize("count", [1, 5, 17])
def test_lines_fit_into_the_width(count: int) -> None:
    slots = {f"node-{number}.of.a.cluster.example": 8 for number in range(count)}
    lines = list(table(healthy(slots, "mxnet-cu112")))
    assert max(map(len, lines)) <= WIDTH
    assert all(any(host in line for line in lines) for host in slots)
    assert max(map(len, table(healthy({"x" * 200: 1, **slots})))) <= WIDTH


def test_hosts_that_have_not_answered() -> None:
    survey = healthy({"a": 1, "b": 1}, nic="eth0")
    del survey.facts["b"], survey.clocks["b"]
    survey.pairs.clear()
    for line in table(survey):
        assert line[:14].strip() == "" or line.endswith("?"), line


def test_the_verdict() -> None:
    survey = healthy({"a": 1})
    assert list(verdict(survey, [])) == ["healthy: nothing is wrong"]
    found = [Finding("a", "x is y", "do z")]
    assert list(verdict(survey, found)) == ["wrong  a: x is y; do z", "1 wrong"]
