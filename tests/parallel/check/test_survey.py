"""Hosts that stop to answer while the others are asked, the text of a survey, and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from parallel.check import __main__ as command
from parallel.check import survey as survey_module
from parallel.check.hosts import HostError
from parallel.check.survey import Pair, Survey
from parallel.check.table import WIDTH, table
from runtime.errors import ConfigError
from tests.support.healthy_hosts import facts, healthy


def surveyed(hosts: str, monkeypatch, change=lambda host, asked, answer: answer) -> Survey:
    """Survey hosts whose probes answer; a function may change an answer, or raise an error."""

    class Probe:
        def __init__(self, sessions: object, host: str, models_root: Path) -> None:
            self.host = host

        def answer(self):
            own = json.loads(json.dumps(vars(facts("abcd".index(self.host)))))
            return change(self.host, None, {"facts": own})

        def ask(self, key, listen, measure):
            assert len(bytes.fromhex(key)) == 32
            if measure:
                return change(self.host, None, {"bandwidth": 1e9})
            return change(self.host, listen, {"ports": dict.fromkeys(listen, 40000)})

        def close(self) -> None:
            pass

    monkeypatch.setattr(survey_module, "Probe", Probe)
    return survey_module.survey(dict.fromkeys(hosts, 1), Path("models"), None)


def test_hosts_that_stop_to_answer_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(host, asked, answer):
        what = next(iter(answer))
        if {"b": "facts", "c": "bandwidth", "d": "ports"}.get(host) == what:
            raise HostError(host, f"silent at {what}", "look")
        return answer

    found = surveyed("abcd", monkeypatch, change)
    assert sorted((one.host, one.what) for one in found.silent) == [
        ("b", "silent at facts"), ("c", "silent at bandwidth"), ("d", "silent at ports")
    ]  # fmt: skip
    assert list(found.facts) == ["a", "c", "d"]
    assert {(pair.sender, pair.receiver) for pair in found.pairs} <= {("a", "c")}


@pytest.mark.parametrize(
    ("what", "wrong"),
    [
        ("facts", {}), ("facts", ["x"]), ("facts", {"gpus": []}), ("ports", ["10.0.0.1"]),
        ("ports", {"a": "x"}), ("bandwidth", "x"), ("bandwidth", None), ("bandwidth", 10**400),
    ],
)  # fmt: skip
def test_answers_that_are_none(monkeypatch: pytest.MonkeyPatch, what: str, wrong: object) -> None:
    def change(host, asked, answer):
        return {what: wrong} if host == "c" and what in answer else answer

    (silent,) = surveyed("ac", monkeypatch, change).silent
    assert silent.host == "c" and silent.what.startswith("its answer is not understood (")


def test_a_probe_listens_where_others_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first host at the address that the others' ssh servers see, each at its own."""
    asked = {}

    def change(host, request, answer):
        if "ports" in answer:
            asked[host] = request
        return {"ports": {}} if "ports" in answer and host == "c" else answer

    found = surveyed("abc", monkeypatch, change)
    assert asked == {"a": ["10.0.0.0"], "b": ["10.0.0.1"], "c": ["10.0.0.2"]}
    errors = {pair.receiver: pair.error for pair in found.pairs if pair.bandwidth is None}
    assert errors == {"c": "it has no address 10.0.0.2"}
    asked.clear()
    surveyed("a", monkeypatch, change)
    assert not asked, "there is no other host to reach it"
    # Hosts without the chosen interface have no connections.
    assert not survey_module.survey({"a": 1, "b": 1}, Path("models"), "eth9").pairs
    assert asked == {"a": [], "b": []}


def test_hosts_are_columns_with_their_worst_connection() -> None:
    survey = healthy({"a": 8, "b": 4, "c": 1}, "mxnet-cu112")
    pairs = [pair for pair in survey.pairs if (pair.sender, pair.receiver) != ("a", "c")]
    survey.pairs[:] = [*pairs, Pair("a", "c", 2e6)]
    survey.facts["b"] = replace(survey.facts["b"], files={"train.py": "9"})
    lines = {line[:14].strip(): line[14:].split("  ") for line in table(survey)}
    cells = {label: [cell.strip() for cell in row if cell] for label, row in lines.items()}
    assert cells[""] == ["a", "b", "c"]
    assert {label: row[1] for label, row in cells.items()}.items() >= {
        "address": "10.0.0.1 eth0", "ranks": "4 on 16 processors", "MXNet": "1.9.1 mxnet-cu112",
        "GPUs": "8 Tesla T4, CUDA 11.4", "sends": "1100 MB/s a",
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
    survey.facts["b"] = replace(survey.facts["b"], processors=0)
    assert command.main(["-H", "a,b"]) == 2
    *_, line, last = capsys.readouterr().out.splitlines()
    assert line.startswith("wrong  b: 1 ranks would share 0 processors; give") and last == "1 wrong"
    assert command.main(["-H", "a,b", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    (finding,) = found["findings"]
    assert finding["host"] == "b" and set(finding) == {"host", "what", "remedy"}
    assert found["facts"]["b"]["processors"] == 0 and len(found["pairs"]) == 2
