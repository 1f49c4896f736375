"""Hosts that stop to answer while the others are asked, the text of a survey, and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parallel.check import __main__ as command
from parallel.check import survey as survey_module
from parallel.check.hosts import Finding, HostError
from parallel.check.network import Link
from parallel.check.survey import Pair, Survey
from parallel.check.table import WIDTH, table, verdict
from runtime.errors import ConfigError
from tests.support.healthy_hosts import facts, healthy


def surveyed(hosts: str, monkeypatch, change=lambda host, request, answer: answer) -> Survey:
    """Survey hosts whose probes answer; a function may change an answer, or raise an error."""

    class Probe:
        def __init__(self, host: str, models_root: Path) -> None:
            self.host = host

        def answer(self, expected):
            own = json.loads(json.dumps(vars(facts("abcd".index(self.host)))))
            return change(self.host, {"facts": None}, {"facts": own})

        def ask(self, request, expected):
            ports: dict[str, Any] = {"ports": dict.fromkeys(request.get("listen", ()), 40000)}
            return change(self.host, request, ports if "listen" in request else {"link": [1e9]})

        def not_understood(self, text: str) -> HostError:
            return HostError(Finding(self.host, f"not understood: {text}", "copy"))

        def close(self) -> None:
            pass

        end = close

    monkeypatch.setattr(survey_module, "Probe", Probe)
    return survey_module.survey(dict.fromkeys(hosts, 1), Path("models"), None)


def test_hosts_that_stop_to_answer_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(host, request, answer):
        what = next(iter(request))
        if {"b": "facts", "c": "measure", "d": "listen"}.get(host) == what:
            raise HostError(Finding(host, f"silent at {what}", "look"))
        return answer

    found = surveyed("abcd", monkeypatch, change)
    assert sorted((one.host, one.what) for one in found.silent) == [
        ("b", "silent at facts"), ("c", "silent at measure"), ("d", "silent at listen")
    ]  # fmt: skip
    assert list(found.facts) == ["a", "c", "d"]
    assert {(pair.sender, pair.receiver) for pair in found.pairs} <= {("a", "c")}


@pytest.mark.parametrize(
    ("what", "wrong"),
    [("facts", {}), ("link", ["1"]), ("error", 5), ("ports", ["10.0.0.1"]), ("ports", {"a": "1"})],
)
def test_answers_that_are_none(monkeypatch: pytest.MonkeyPatch, what: str, wrong: object) -> None:
    right = "link" if what == "error" else what

    def change(host, request, answer):
        return {what: wrong} if host == "c" and right in answer else answer

    (silent,) = surveyed("ac", monkeypatch, change).silent
    assert silent.host == "c" and silent.what.startswith("not understood: ")


def test_a_probe_listens_where_others_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first host at the address that the others' ssh servers see, each at its own."""
    asked = {}

    def change(host, request, answer):
        if "listen" in request:
            asked[host] = request["listen"]
        return {"ports": {}} if "listen" in request and host == "c" else answer

    found = surveyed("abc", monkeypatch, change)
    assert asked == {"a": ["10.0.0.0"], "b": ["10.0.0.1"], "c": ["10.0.0.2"]}
    errors = {pair.receiver: pair.error for pair in found.pairs if pair.link is None}
    assert errors == {"c": "it has no address 10.0.0.2"}
    asked.clear()
    surveyed("a", monkeypatch, change)
    assert not asked, "there is no other host to reach it"


def test_hosts_are_columns_with_their_worst_connection() -> None:
    survey = healthy({"a": 8, "b": 4, "c": 1}, "mxnet-cu112")
    pairs = [pair for pair in survey.pairs if (pair.sender, pair.receiver) != ("a", "c")]
    survey.pairs[:] = [*pairs, Pair("a", "c", Link(2e6))]
    survey.facts["b"] = replace(survey.facts["b"], files={"train.py": "9"})
    lines = {line[:14].strip(): line[14:].split("  ") for line in table(survey)}
    cells = {label: [cell.strip() for cell in row if cell] for label, row in lines.items()}
    assert cells[""] == ["a", "b", "c"]
    assert {label: row[1] for label, row in cells.items()}.items() >= {
        "address": "10.0.0.1 eth0", "ranks": "4 on 16 processors", "MXNet": "1.9.1 mxnet-cu112",
        "GPUs": "8 Tesla T4", "driver": "470.57 CUDA 11.4", "ulimit -n, -l": "4096, 8192 KiB",
        "sends": "1100 MB/s a",
    }.items()  # fmt: skip
    assert cells["address"][0] == "10.0.0.0 eth0" and cells["sends"][0] == "2 MB/s c"
    # Projects that differ look different.
    first, second, third = cells["project"]
    assert len(first) == len(second) == 12 and first == third != second


def test_lines_fit_into_the_width_and_hosts_may_be_silent() -> None:
    for count in (1, 5, 17):
        slots = {f"node-{number}.of.a.cluster.example": 8 for number in range(count)}
        lines = list(table(healthy(slots, "mxnet-cu112")))
        assert max(map(len, lines)) <= WIDTH
        assert all(any(host in line for line in lines) for host in slots)
    assert max(map(len, table(healthy({"x" * 200: 1, **slots})))) <= WIDTH
    survey = healthy({"a": 1, "b": 1}, nic="eth0")
    del survey.facts["b"]
    survey.pairs.clear()
    for line in table(survey):
        assert line[:14].strip() == "" or line.endswith("?"), line
    assert list(verdict(survey, [])) == ["healthy: nothing is wrong"]
    found = [Finding("a", "x is y", "do z")]
    assert list(verdict(survey, found)) == ["wrong  a: x is y; do z", "1 wrong"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list:
    """What is asked of a survey that finds two healthy hosts; its findings come first."""
    found = healthy({"a": 1, "b": 1})
    calls: list = [found]
    monkeypatch.setattr(command, "survey", lambda *options: calls.append(options) or found)
    for variable in ("NIC", "HOSTS", "HOSTFILE", "OMPI_MCA_orte_default_hostfile"):
        monkeypatch.delenv(variable, raising=False)
    return calls


def test_options_and_the_variables_of_run_sh(asked, tmp_path, monkeypatch, capsys) -> None:
    assert command.main(["-H", "a:1,b:1", "--models-root", "x"]) == 0
    assert asked[-1] == ({"a": 1, "b": 1}, Path.cwd() / "x", None)
    assert capsys.readouterr().out.endswith("healthy: nothing is wrong\n")
    hosts, operator = tmp_path / "hosts", tmp_path / "operator"
    hosts.write_bytes(b"\xef\xbb\xbfa slots=1\r\na:2\r\n")
    operator.write_text("c slots=3\n")
    command.main([])
    assert asked[-1] == ({"localhost": 1}, Path.cwd() / "models", None)
    for name, value, options, slots in (
        # The latter as mpirun and horovodrun write it.
        ("NIC", "eth1", ["--hostfile", str(hosts)], {"a": 3}),
        ("NIC", "eth1", ["-hostfile", str(hosts)], {"a": 3}),
        ("OMPI_MCA_orte_default_hostfile", str(operator), [], {"c": 3}),
        ("HOSTFILE", str(hosts), [], {"a": 3}),
        ("HOSTS", "a:1", [], {"a": 1}),
        # Names of this host are one host.
        ("HOSTS", "a:1", ["-H", "127.0.0.1:1,a:2,localhost:3"], {"127.0.0.1": 4, "a": 2}),
    ):
        monkeypatch.setenv(name, value)
        command.main(options)
        assert asked[-1] == (slots, Path.cwd() / "models", "eth1")
    for wrong in (["-H", ""], ["-H", "a", "--hostfile", "x"], ["a:1"], ["-H", "[::1]:2"]):
        with pytest.raises(ConfigError):
            command.main(wrong)
    assert len(asked) == 9


def test_what_is_wrong_is_the_status(asked: list, capsys) -> None:
    survey = asked[0]
    survey.facts["b"] = replace(survey.facts["b"], open_files=5)
    assert command.main(["-H", "a,b"]) == 2
    assert capsys.readouterr().out.splitlines()[-1] == "1 wrong"
    assert command.main(["-H", "a,b", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    (finding,) = found["findings"]
    assert finding["host"] == "b" and set(finding) == {"host", "what", "remedy"}
    assert found["facts"]["b"]["open_files"] == 5 and len(found["pairs"]) == 2
