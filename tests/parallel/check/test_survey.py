"""Hosts that stop to answer while the others are asked, and the text of a survey."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from parallel.check import survey as survey_module
from parallel.check.hosts import Finding, HostError
from parallel.check.network import Link
from parallel.check.survey import Pair
from parallel.check.table import WIDTH, table, verdict
from tests.support.healthy_hosts import facts, healthy


class Talking:
    """Probes that answer."""

    def __init__(self, host: str, models_root: Path) -> None:
        self.host, self.number = host, "abcd".index(host)

    def answer(self, expected):
        return {"facts": json.loads(json.dumps(vars(facts(self.number))))}

    def ask(self, request, expected):
        return {
            "listen": {"ports": dict.fromkeys(request.get("listen", ()), 40000)},
            "clock": {"clock": 5.0},
            "measure": {"link": [0.001, 1e9]},
        }[next(iter(request))]

    def not_understood(self, text: str) -> HostError:
        return HostError(Finding(self.host, f"not understood: {text}", "copy"))

    def close(self) -> None:
        pass

    end = close


class Silent(Talking):
    """Probes of which some stop to answer at a question."""

    def answer(self, expected):
        return self.ask({"facts": True}, expected) if self.host == "b" else super().answer(expected)

    def ask(self, request, expected):
        what = next(iter(request))
        if {"b": "facts", "c": "measure", "d": "clock"}.get(self.host) == what:
            raise HostError(Finding(self.host, f"silent at {what}", "look"))
        return super().ask(request, expected)


def test_hosts_that_stop_to_answer_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_module, "Probe", Silent)
    found = survey_module.survey(dict.fromkeys("abcd", 1), Path("models"), None)
    assert sorted((one.host, one.what) for one in found.silent) == [
        ("b", "silent at facts"), ("c", "silent at measure"), ("d", "silent at clock")
    ]  # fmt: skip
    assert list(found.facts) == ["a", "c", "d"] and list(found.clocks) == ["a", "c"]
    assert {(pair.sender, pair.receiver) for pair in found.pairs} <= {("a", "c")}


@pytest.mark.parametrize(
    ("what", "wrong"),
    [
        ("clock", "now"), ("link", [1]), ("error", 5),
        ("ports", ["10.0.0.1"]), ("ports", {"10.0.0.1": "1"}),
    ],
)  # fmt: skip
def test_answers_that_are_none(monkeypatch: pytest.MonkeyPatch, what: str, wrong: object) -> None:
    class Wrong(Talking):
        def ask(self, request, expected):
            is_it = self.host == "c" and what in expected
            return {what: wrong} if is_it else super().ask(request, expected)

    monkeypatch.setattr(survey_module, "Probe", Wrong)
    found = survey_module.survey({"a": 1, "c": 1}, Path("models"), None)
    (silent,) = found.silent
    assert silent.host == "c" and silent.what.startswith("not understood: ")


def test_a_probe_listens_where_others_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first host at the address that the others' ssh servers see, each at its own."""
    asked = {}

    class Noted(Talking):
        def ask(self, request, expected):
            if "listen" in request:
                asked[self.host] = request["listen"]
                if self.host == "c":
                    return {"ports": {}}
            return super().ask(request, expected)

    monkeypatch.setattr(survey_module, "Probe", Noted)
    found = survey_module.survey(dict.fromkeys("abc", 1), Path("models"), None)
    assert asked == {"a": ["10.0.0.0"], "b": ["10.0.0.1"], "c": ["10.0.0.2"]}
    errors = {pair.receiver: pair.error for pair in found.pairs if pair.link is None}
    assert errors == {"c": "it has no address 10.0.0.2"}
    asked.clear()
    survey_module.survey({"a": 1}, Path("models"), None)
    assert not asked, "there is no other host to reach it"


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
