"""What ssh says, and conversations with probes that are scripts."""

from __future__ import annotations

import json
import stat
import sys
import time
from pathlib import Path

import pytest

from parallel.check import hosts
from parallel.check.hosts import HostError, Probe, explain
from parallel.check.probe import MARK


@pytest.mark.parametrize(
    ("status", "errors", "what"),
    [
        (255, "root@h: Permission denied (publickey,password).\n", "ssh without a password is ref"),
        (255, "Host key verification failed.\n", "ssh does not know its host key"),
        (255, "@ REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.\n",
         "its host key is another one than known_hosts has"),
        (255, "ssh: connect to host h port 22: Connection refused\n", "nothing listens on its ssh"),
        (255, "ssh: connect to host h port 22: No route to host\n", "there is no route"),
        (255, "ssh: Could not resolve hostname h: Name or service not known\n", "ssh does not"),
        (255, "Connection timed out during banner exchange\n", "ssh gets no answer"),
        (255, "kex_exchange_identification: read: Connection reset by peer\n", "ssh fails (kex_"),
        (255, "", "ssh gets no answer"),
        (1, "bash: line 1: cd: /x: No such file or directory\n", "the project is not in "),
        (127, f"env: '{sys.executable}': No such file or directory\n", "there is no "),
        (1, "/x/python: No module named parallel.check.probe\n", "the project in "),
        (1, "Traceback:\nSyntaxError: invalid syntax\n", "the probe has ended with status 1 (Syn"),
    ],
)  # fmt: skip
def test_why_a_host_does_not_answer(status: int, errors: str, what: str) -> None:
    found = explain("h", status, errors)
    assert found.host == "h" and found.what.startswith(what)
    assert found.remedy and "{" not in found.remedy


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A probe that is a shell script."""
    started: list[Probe] = []

    def start(script: str) -> Probe:
        file = tmp_path / "python"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(sys, "executable", str(file))
        started.append(Probe("localhost", tmp_path))
        return started[-1]

    monkeypatch.setattr(hosts, "_END_SECONDS", 0.3)
    yield start
    for one in started:
        one.end()
        assert one._process.poll() is not None


def test_a_conversation(probe) -> None:
    facts = json.dumps({"facts": 1})
    started = probe(f"echo welcome; echo '{MARK}{facts}'; read line; echo '{MARK}'$line")
    assert started.answer(["facts"]) == {"facts": 1}
    assert started.ask({"listen": 1}, ["listen"]) == {"listen": 1}
    with pytest.raises(HostError, match=r"has ended with status 3 \(what\); try there"):
        probe("echo what >&2; exit 3").answer(["facts"])
    started = probe(f"exec <&-; echo '{MARK}{facts}'; exit 4")
    assert started.answer(["facts"])
    time.sleep(0.3)
    with pytest.raises(HostError, match="has ended with status 4"):
        started.ask({"listen": 1}, ["listen"])
    for answer in ("", "no JSON", "5", '{"other": 1}', "[" * 9999):
        with pytest.raises(HostError, match="its answer is not understood .*; copy this project"):
            probe(f"echo '{MARK}{answer}'").answer(["facts"])


@pytest.mark.thorough
def test_a_probe_that_is_busy_and_one_that_hangs(probe, monkeypatch) -> None:
    monkeypatch.setattr(hosts, "SILENCE_SECONDS", 1.5)
    busy = f"echo '{MARK}{{\"busy\": true}}'; sleep 0.4;"
    assert probe(f"{busy * 5} echo '{MARK}{{\"facts\": 1}}'").answer(["facts"])
    start = time.monotonic()
    with pytest.raises(HostError, match="it has given no sign of life for 2 s; look there"):
        probe("exec sleep 30").answer(["facts"])
    assert time.monotonic() - start < 10
    monkeypatch.setattr(hosts, "_ANSWER_SECONDS", 0.5)
    with pytest.raises(HostError, match="it has not answered in 0 s; look there: ssh"):
        probe(f"while true; do {busy} done").answer(["facts"])
