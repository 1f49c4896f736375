"""The probe on this host, over its pipes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parallel.check.probe import BUSY, MARK

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
    def ask(**request) -> dict:
        probe.stdin.write(json.dumps(request) + "\n")
        probe.stdin.flush()
        return answer(probe)

    port = answer(probe)["facts"]["port"]
    assert "error" in ask(measure=["127.0.0.1", port])
    assert ask(token="ab" * 32) == {"token": "set"}
    round_trip, bandwidth = ask(measure=["127.0.0.1", port])["link"]
    assert 0 < round_trip < 1 and bandwidth > 1e6
    assert ask(measure=["127.0.0.1", 1]) == {"error": "Connection refused"}
    assert abs(ask(clock=True)["clock"] - time.time()) < 5
    probe.stdin.close()
    assert probe.wait(20) == 0
