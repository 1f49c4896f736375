"""Hosts that stop to answer while the others are asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parallel.check import survey as survey_module
from parallel.check.hosts import Finding, HostError
from tests.support.healthy_hosts import facts


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
