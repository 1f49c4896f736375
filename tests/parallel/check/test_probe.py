"""The probe on this host, over its pipes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parallel.check.probe import BUSY, MARK
from tests.support.listeners import listeners

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def probe():
    words = [sys.executable, "-m", "parallel.check.probe", "models"]
    with subprocess.Popen(
        words, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield process
        process.kill()


def answer(process) -> dict:
    while True:
        line = process.stdout.readline()
        assert line.startswith(MARK)
        found = json.loads(line[len(MARK) :])
        if found != BUSY:
            return found


def test_a_probe_measures_as_it_is_told(probe) -> None:
    assert not listeners(probe.pid)

    def ask(**request) -> dict:
        probe.stdin.write(json.dumps(request) + "\n")
        probe.stdin.flush()
        return answer(probe)

    assert "facts" in answer(probe)
    token = "ab" * 32
    # 192.0.2.1 is an address of documents (RFC 5737), and of no host.
    ports = ask(listen=["127.0.0.1", "192.0.2.1"], token=token)["ports"]
    assert list(ports) == ["127.0.0.1"]
    port = ports["127.0.0.1"]
    assert "error" in ask(measure=["127.0.0.1", port], token="cd" * 32)
    round_trip, bandwidth = ask(measure=["127.0.0.1", port], token=token)["link"]
    assert 0 < round_trip < 1 and bandwidth > 1e6
    assert ask(measure=["127.0.0.1", 1], token=token) == {"error": "Connection refused"}
    assert abs(ask(clock=True)["clock"] - time.time()) < 5
    assert listeners(probe.pid) == {("127.0.0.1", port)}
    probe.stdin.close()
    assert probe.wait(20) == 0
