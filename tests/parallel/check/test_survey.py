"""Findings for hosts with one change each, surveys of hosts that stop to answer, the command."""

import itertools
import json
import os
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Optional

import pytest

from parallel.check import __main__ as command
from parallel.check import survey as survey_module
from parallel.check.__main__ import BRIDGES, findings, table
from parallel.check.facts import UNUSABLE, Facts
from parallel.check.probe import MARK
from parallel.check.survey import Finding, Pair, Survey
from parallel.launch.ssh import Answer
from runtime.errors import ConfigError
from tests.support.launch import ROOT, write_program

BOTH, THREE = {"a": 1, "b": 1}, {"a": 1, "b": 1, "c": 1}


def facts(number: int) -> Facts:
    """Those of a host with nothing wrong, the first with number 0."""
    address = f"10.0.0.{number}"
    return Facts(
        hostname=f"node{number}", wrong=[],
        interfaces={"lo": "127.0.0.1", "eth0": address, "docker0": "172.17.0.1"},
        ssh_client="10.0.0.0" if number else "", ssh_server=address if number else "", port=4000,
        cells={
            "hostname": f"node{number}", "Python": "3.11", "MXNet": "1.9.1 mxnet",
            "Horovod": "0.28.1", "Open MPI": "4.1.8", "project": "3f2a",
            "GPUs": "8 Tesla T4, CUDA 11.4",
        },
    )  # fmt: skip


def healthy(slots: dict[str, int], nic: Optional[str] = None) -> Survey:
    survey = Survey(slots, nic)
    survey.facts.update({host: facts(number) for number, host in enumerate(slots)})
    survey.pairs.extend(Pair(*hosts, 1.1e9) for hosts in itertools.permutations(slots, 2))
    return survey


def found(survey: Survey, host: str = "b", **changes) -> list[str]:
    survey.facts[host] = replace(survey.facts[host], **changes)
    return [f"{one.host}: {one.what}" for one in findings(survey)]


def cells(**changed: str) -> dict[str, dict[str, str]]:
    return {
        "cells": {**facts(1).cells, **{row.replace("_", " "): one for row, one in changed.items()}}
    }


@pytest.mark.parametrize(("nic", "change", "line"), [
    (None, cells(Python="3.12"), "Python is 3.12, but 3.11 on a; remove .venv there and"),
    (None, cells(MXNet="1.8.0 mxnet"), "MXNet is 1.8.0 mxnet, but 1.9.1 mxnet on a; "),
    (None, cells(Horovod="0.27.0"), "Horovod is 0.27.0, but 0.28.1 on a; "),
    (None, cells(Open_MPI="4.0.7"), "Open MPI is 4.0.7, but 4.1.8 on a; "),
    (None, cells(project="77c1"), "project is 77c1, but 3f2a on a; copy one over the other"),
    (None, {"cells": {}}, ""),
    (None, cells(Horovod=UNUSABLE), ""),
    (None, cells(GPUs="none"), ""),
    (None, {"wrong": ["Horovod cannot be used"]}, "Horovod cannot be used"),
    (None, {"hostname": "node0"}, "its hostname is node0, as that of a: Horovod takes them "),
    ("eth0", {"interfaces": {"lo": "127.0.0.1", "eth5": "10.0.0.1"}},
     "it has no interface eth0 with an IPv4 address; NIC is the same name on all hosts; it has "
     "lo, eth5"),
    ("eth0", {}, ""),
])  # fmt: skip
def test_a_change_is_one_finding_or_none(nic, change, line: str) -> None:
    lines = found(healthy(BOTH, nic), **change)
    assert len(lines) == bool(line) and all(one.startswith(f"b: {line}") for one in lines)


def test_silent_hosts_stand_at_their_place_and_are_no_measure() -> None:
    survey = healthy(THREE)
    assert found(survey, "a", **cells(Horovod=UNUSABLE)) == []
    assert found(survey, "c", **cells(Horovod="0.1"))[0].startswith(
        "c: Horovod is 0.1, but 0.28.1 on b"
    )
    del survey.facts["b"]
    survey.silent.append(Finding("b", "ssh gets no answer"))
    assert [line[0] for line in found(survey, "c", wrong=["x"])] == ["b", "c"]


def test_the_same_address_on_two_hosts() -> None:
    survey = healthy(BOTH)
    for host in "ab":
        interfaces = {**survey.facts[host].interfaces, "br-12": "172.18.0.1"}
        lines = found(survey, host, interfaces=interfaces)
    assert len(lines) == 1
    assert lines[0].startswith("b: its interface br-12 has the address 172.18.0.1, as that of a: ")
    assert findings(replace(survey, nic="eth0")) == []
    # Bridges that do not matter are those that the launcher leaves out.
    text = (ROOT / "setup-utils/launchers/mpirun").read_text()
    (left_out,) = re.findall(r"btl_tcp_if_exclude=(127\S+)", text)
    assert {*left_out.split(",")} - {"127.0.0.1/8", "sppp"} == {*BRIDGES} - {"lo"}


@pytest.mark.parametrize(("slots", "links", "line"), [
    (THREE, ["ac", "bc"], "c: a port of it is not reached from a, b (timed out); ranks listen"),
    (BOTH, [("b", "a", 49e6)], "b: it sends 49 MB/s to a, and 50 are expected; "),
    (BOTH, [("b", "a", 51e6)], ""),
    (THREE, [("c", "a", 40e6), ("c", "b", 30e6)], "c: it sends 30 MB/s to b, and 50 are exp"),
])  # fmt: skip
def test_links(slots: dict[str, int], links, line: str) -> None:
    survey = healthy(slots)
    for sender, receiver, *link in links:
        others = [one for one in survey.pairs if (one.sender, one.receiver) != (sender, receiver)]
        pair = Pair(sender, receiver, *(link or (0.0, "timed out")))
        survey.pairs[:] = [*others, pair]
    lines = found(survey)
    assert len(lines) == bool(line) and all(one.startswith(line) for one in lines)


def surveyed(hosts: str, monkeypatch, change=lambda host, request, answer: answer, nic=None):
    """Survey hosts that answer; a function may change an answer, or return an end of ssh."""

    def answers(commands, given, seconds):
        found = {}
        for host in commands:
            request = json.loads(given[host].rpartition(b"\0")[2])
            answer = {"bandwidth": 1e9, "error": ""}
            if "key" not in request:
                assert request == {"models_root": "models", "hosts": len(hosts), "ranks": 1}
                answer = vars(facts("abcdefgh".index(host)))
            answer = change(host, request, answer)
            if not isinstance(answer, Answer):
                answer = Answer(0, f"Welcome!\n{MARK}{json.dumps(answer)}\n".encode(), "")
            found[host] = answer
        return found

    monkeypatch.setattr(survey_module.ssh, "answers", answers)
    return survey_module.survey(dict.fromkeys(hosts, 1), Path("models"), nic)


def test_hosts_that_do_not_answer_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_module, "_COUPLES_AT_ONCE", 1)

    def change(host, request, answer):
        is_silent = host == "b" or (host == "c" and "key" in request)
        return Answer(255, b"", "no answer in 45 s") if is_silent else answer

    found = surveyed("abc", monkeypatch, change)
    assert [one.host for one in found.silent] == ["b", "c"]
    assert list(found.facts) == ["a", "c"]
    assert [(pair.sender, pair.receiver) for pair in found.pairs] == [("a", "c")]


@pytest.mark.parametrize("wrong", [
    {}, {"bandwidth": "x", "error": ""}, Answer(0, f"{MARK}0123".encode(), ""),
])  # fmt: skip
def test_answers_that_are_none(monkeypatch: pytest.MonkeyPatch, wrong: object) -> None:
    (silent,) = surveyed("c", monkeypatch, lambda *_: wrong).silent
    assert silent.host == "c" and silent.what.startswith("its answer is not understood (")


# The probes of hosts that are this one, and of hosts without the project or an ssh server.
SSH = """#!/bin/sh
while [ "${1#-o}" != "$1" ]; do shift; done
case $1 in
    away) SSH_CONNECTION="127.0.0.1 1 127.0.0.1 22" exec sh -c "$2" ;;
    gone) echo "Connection refused" >&2; exit 255 ;;
    empty) echo "No module named parallel" >&2; exit 1 ;;
esac
"""


def test_probes_by_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(tmp_path / "ssh", SSH)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    slots = {"localhost": 1, "away": 2, "gone": 1, "empty": 1}
    survey = survey_module.survey(slots, tmp_path / "models", None)
    assert {one.host: one.what for one in survey.silent} == {
        "gone": "no connection by ssh (Connection refused); it has to work without a question: "
        "ssh -oBatchMode=yes gone true",
        "empty": "the check does not run there (No module named parallel); copy this project to "
        f"the same path, {Path.cwd()}, and make env there",
    }
    ranks = {host: one.cells["ranks"].partition(" ")[0] for host, one in survey.facts.items()}
    assert ranks == {"localhost": "1", "away": "2"}
    own = survey.facts["localhost"]
    assert own.interfaces["lo"] == "127.0.0.1" and own.hostname == socket.gethostname()
    cells = [own.cells[name] for name in ("MXNet", "Horovod", "GPUs")]
    assert cells == ["1.9.1 mxnet", "0.28.1", "none"] and UNUSABLE not in own.cells.values()
    ends = {(pair.sender, pair.receiver) for pair in survey.pairs if pair.bandwidth > 1e6}
    assert ends == {("localhost", "away"), ("away", "localhost")}


def test_a_probe_listens_where_others_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first host at the address that the others' ssh servers see, each at its own."""
    asked: dict[str, list] = {}

    def change(host, request, answer):
        if "key" in request:
            assert len(bytes.fromhex(request["key"])) == 32
            asked.setdefault(host, []).append((request["listen"], request["send"]))
        return answer

    a, b, c = (["10.0.0.0", 4000], ["10.0.0.1", 4000], ["10.0.0.2", 4000])
    found = surveyed("abc", monkeypatch, change)
    assert asked == {"a": [(a, c), (a, b)], "b": [(b, c), (b, a)], "c": [(c, b), (c, a)]}
    assert len(found.pairs) == 6
    ends = [(pair.sender, pair.receiver) for pair in surveyed("abcdefgh", monkeypatch).pairs]
    assert sorted(ends) == [*itertools.permutations("abcdefgh", 2)]
    asked.clear()
    # At the chosen interface, if both have it; hosts without it have no connections.
    chosen = healthy({"a": 1, "b": 1}, nic="eth0")
    assert (chosen.address_of("b", "a"), chosen.address_of("a", "b")) == ("10.0.0.1", "10.0.0.0")
    chosen.facts["a"] = replace(chosen.facts["a"], interfaces={})
    assert (chosen.address_of("b", "a"), chosen.address_of("a", "b")) == (None, None)
    assert not surveyed("ab", monkeypatch, change, nic="eth9").pairs
    assert asked == {"a": [(None, None)], "b": [(None, None)]}


def test_hosts_are_columns_with_their_worst_connection() -> None:
    survey = healthy(THREE)
    pairs = [pair for pair in survey.pairs if (pair.sender, pair.receiver) != ("a", "c")]
    survey.pairs[:] = [*pairs, Pair("a", "c", 2e6)]
    lines = [re.split("  +", line) for line in table(survey) if line]
    # Two side by side, and the third below.
    assert [line[1:] for line in lines if not line[0]] == [["a", "b"], ["c"]]
    for row in (
        ["address", "10.0.0.0 eth0", "10.0.0.1 eth0"], ["MXNet", "1.9.1 mxnet", "1.9.1 mxnet"],
        ["sends", "2 MB/s c", "1100 MB/s a"],
    ):  # fmt: skip
        assert row in lines


def test_lines_fit_into_the_width_and_hosts_may_be_silent() -> None:
    slots = {f"node{number}.of.a.cluster.ex": 8 for number in range(5)}
    lines = list(table(healthy(slots)))
    assert all(any(host in line for line in lines) for host in slots)
    assert max(map(len, table(healthy({"x" * 200: 1, **slots})))) <= 100
    survey = healthy({"a": 1, "b": 1}, nic="eth0")
    del survey.facts["b"]
    survey.pairs.clear()
    first, *lines, _ = table(survey)
    assert first.split() == ["a", "b"] and len(lines) == 9
    assert all(line[:14].strip() and line.endswith(" ?") for line in lines), lines


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list:
    """What is asked of a survey that finds two healthy hosts; its findings come first."""
    found = healthy({"a": 1, "b": 1})
    calls: list = [found]
    monkeypatch.setattr(command, "survey", lambda *options: calls.append(options) or found)
    monkeypatch.delenv("NIC", raising=False)
    return calls


def test_options_and_the_interface(asked, tmp_path, monkeypatch, capsys) -> None:
    assert command.main(["-H", "a:1,b:1", "--models-root", "x"]) == 0
    assert asked[-1] == ({"a": 1, "b": 1}, Path.cwd() / "x", None)
    assert capsys.readouterr().out.endswith("healthy: nothing is wrong\n")
    hosts = tmp_path / "hosts"
    hosts.write_bytes(b"\xef\xbb\xbfa slots=1\r\na:2\r\n")
    command.main([])
    assert asked[-1] == ({"localhost": 1}, Path.cwd() / "models", None)
    monkeypatch.setenv("NIC", "eth1")
    for options, slots in (
        (["--hostfile", str(hosts)], {"a": 3}),
        (["-H", "127.0.0.1:1,a:2,localhost:3"], {"127.0.0.1": 4, "a": 2}),
    ):
        command.main(options)
        assert asked[-1] == (slots, Path.cwd() / "models", "eth1")
    for wrong in (["-H", ""], ["-H", "a", "--hostfile", "x"], ["a:1"], ["-H", "[::1]:2"]):
        with pytest.raises(ConfigError):
            command.main(wrong)
    assert len(asked) == 5


def test_what_is_wrong_is_the_status(asked: list, capsys) -> None:
    survey = asked[0]
    survey.facts["b"] = replace(survey.facts["b"], wrong=["no processors; get some"])
    assert command.main(["-H", "a,b"]) == 2
    *_, line, last = capsys.readouterr().out.splitlines()
    assert line == "wrong  b: no processors; get some" and last == "1 wrong"
    assert command.main(["-H", "a,b", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    (finding,) = found["findings"]
    assert finding["host"] == "b" and finding["what"] == "no processors; get some"
    assert found["facts"]["b"]["hostname"] == "node1" and len(found["pairs"]) == 2
