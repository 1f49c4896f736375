"""Measurements between probes of this machine, and the order of the pairs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from parallel.check import network
from parallel.check.network import KEY_BYTES, Link, listen, measure, rounds
from parallel.check.probe import BUSY, MARK
from tests.support.listeners import listeners

ROOT = Path(__file__).resolve().parents[3]
KEY = bytes(range(KEY_BYTES))


def test_several_measure_one_address_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    address = ("127.0.0.1", listen("127.0.0.1", KEY))
    with ThreadPoolExecutor(3) as pool:
        links = list(pool.map(lambda _: measure(*address, KEY), range(3)))
    assert all(link.bandwidth > 1e7 for link in links)
    assert address in listeners(os.getpid())
    with pytest.raises(OSError, match="refused"):
        measure("127.0.0.2", address[1], KEY)
    with pytest.raises(OSError):
        listen("192.0.2.1", KEY)
    assert measure("::1", listen("::1", KEY), KEY).bandwidth > 0
    # Another key, and a host that does not answer.
    with pytest.raises(OSError, match="another proof"):
        measure(*address, bytes(KEY_BYTES))
    monkeypatch.setattr(network, "_CONNECT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start = time.monotonic()
        with pytest.raises(OSError, match="timed out"):
            measure("127.0.0.1", silent.getsockname()[1], KEY)
        assert time.monotonic() - start < 3


def test_a_slow_host_is_measured_with_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 KiB arrive after two seconds; no second block is sent."""
    blocks: list[int] = []
    monkeypatch.setattr(network, "_send", lambda _, __, size: blocks.append(size) or 2.0)
    link = measure("127.0.0.1", listen("127.0.0.1", KEY), KEY)
    assert blocks == [1 << 16] and link == Link((1 << 16) / 2.0)


@pytest.mark.parametrize("count", [2, 3, 7, 8])
def test_each_ordered_pair_once_and_no_host_twice_at_a_time(count: int) -> None:
    found = list(rounds([f"host{number}" for number in range(count)]))
    for pairs in found:
        busy = [host for pair in pairs for host in pair]
        assert len(busy) == len(set(busy))
    everything = [pair for pairs in found for pair in pairs]
    assert len(everything) == len(set(everything)) == count * (count - 1)
    assert all(sender != receiver for sender, receiver in everything)
    # As few rounds as there can be.
    assert len(found) == 2 * (count - 1 + count % 2)


def test_a_probe_measures_as_it_is_told() -> None:
    words = [sys.executable, "-m", "parallel.check.probe", "models"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=ROOT, text=True, stdin=pipe, stdout=pipe) as process:

        def answer() -> dict[str, Any]:
            while True:
                line = process.stdout.readline()
                assert line.startswith(MARK)
                found: dict[str, Any] = json.loads(line[len(MARK) :])
                if found != BUSY:
                    return found

        def ask(**request: Any) -> dict[str, Any]:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            return answer()

        assert not listeners(process.pid)
        assert "facts" in answer()
        key = "ab" * 32
        # 192.0.2.1 is an address of documents (RFC 5737), and of no host.
        ports = ask(listen=["127.0.0.1", "192.0.2.1"], key=key)["ports"]
        assert list(ports) == ["127.0.0.1"]
        port = ports["127.0.0.1"]
        assert "error" in ask(measure=["127.0.0.1", port], key="cd" * 32)
        (bandwidth,) = ask(measure=["127.0.0.1", port], key=key)["link"]
        assert bandwidth > 1e6
        assert ask(measure=["127.0.0.1", 1], key=key) == {"error": "Connection refused"}
        assert listeners(process.pid) == {("127.0.0.1", port)}
        process.stdin.close()
        assert process.wait(20) == 0
