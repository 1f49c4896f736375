"""Measurements between probes of this machine, and the order of the pairs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from parallel.check import network
from parallel.check.network import TOKEN_BYTES, Link, Listener, measure, rounds
from parallel.check.probe import BUSY, MARK
from tests.support.listeners import listeners

ROOT = Path(__file__).resolve().parents[3]
TOKEN = bytes(range(TOKEN_BYTES))


@pytest.fixture(scope="module")
def listener() -> Listener:
    return Listener("127.0.0.1", TOKEN)


def test_several_measure_the_loopback_at_the_same_time(listener: Listener) -> None:
    with ThreadPoolExecutor(3) as pool:
        address = ("127.0.0.1", listener.port)
        links = list(pool.map(lambda _: measure(*address, TOKEN), range(3)))
    assert all(0 < link.round_trip < 0.05 and link.bandwidth > 1e7 for link in links)


@pytest.mark.parametrize("token", [bytes(TOKEN_BYTES), b"", TOKEN[:-1] + b"x"])
def test_other_tokens_are_not_served(
    listener: Listener, token: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "_ANSWER_SECONDS", 0.5)
    with pytest.raises((EOFError, OSError)):
        measure("127.0.0.1", listener.port, token)


def test_it_listens_at_one_address(listener: Listener) -> None:
    assert ("127.0.0.1", listener.port) in listeners(os.getpid())
    with pytest.raises(OSError, match="refused"):
        measure("127.0.0.2", listener.port, TOKEN)
    with pytest.raises(OSError):
        Listener("192.0.2.1", TOKEN)
    assert measure("::1", Listener("::1", TOKEN).port, TOKEN).bandwidth > 0


def test_half_a_token_is_closed_after_a_second_and_says_nothing(listener: Listener) -> None:
    """The first bytes of the right token are treated like those of a wrong one."""
    start = time.monotonic()
    address = ("127.0.0.1", listener.port)
    with socket.create_connection(address) as right, socket.create_connection(address) as wrong:
        right.sendall(TOKEN[:-1])
        wrong.sendall(b"x" * (TOKEN_BYTES - 1))
        for connection in (right, wrong):
            connection.settimeout(5)
            assert connection.recv(1) == b""
            assert 0.5 < time.monotonic() - start < 4


def test_a_token_may_come_in_parts(listener: Listener) -> None:
    with socket.create_connection(("127.0.0.1", listener.port), 5) as connection:
        for byte in TOKEN:
            connection.sendall(bytes([byte]))
            time.sleep(0.001)
        connection.sendall(bytes(4))
        assert connection.recv(1) == b"."


def test_many_connections_cost_little_and_do_not_disturb(listener: Listener) -> None:
    threads = threading.active_count()
    before = len(os.listdir("/proc/self/fd"))
    address = ("127.0.0.1", listener.port)
    held = [socket.create_connection(address) for _ in range(400)]
    try:
        assert measure(*address, TOKEN).bandwidth > 0
        assert threading.active_count() <= threads + 1
        # Ours, and of theirs only some.
        assert len(os.listdir("/proc/self/fd")) < before + len(held) + 150
    finally:
        for connection in held:
            connection.close()


FULL = """\
import os, resource, socket, sys, time
from parallel.check.network import Listener, measure
token = bytes(32)
listener = Listener("127.0.0.1", token)
low, high = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (60, high))
files = []
try:
    while True:
        files.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    os.close(files.pop())
# Its other end takes the last descriptor, so that the listener has none for the connection.
with socket.socket() as connection:
    connection.settimeout(5)
    connection.connect(("127.0.0.1", listener.port))
    time.sleep(0.3)
for one in files:
    os.close(one)
print(measure("127.0.0.1", listener.port, token).bandwidth > 0)
"""


def test_a_process_without_descriptors_goes_on_afterwards() -> None:
    words = [sys.executable, "-c", FULL]
    said = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (said.stdout, said.stderr) == ("True\n", "")


def test_a_host_that_does_not_answer_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_ANSWER_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start = time.monotonic()
        with pytest.raises(OSError, match="timed out"):
            measure("127.0.0.1", silent.getsockname()[1], TOKEN)
        assert time.monotonic() - start < 3


def test_a_slow_host_is_measured_with_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 KiB arrive after two seconds; no second block is sent."""
    blocks = []

    def send(connection: socket.socket, data: memoryview, size: int) -> float:
        if size:
            blocks.append(size)
        return 2.0 if size else 0.001

    monkeypatch.setattr(network, "_send", send)
    with socket.create_server(("127.0.0.1", 0)) as server:
        link = measure("127.0.0.1", server.getsockname()[1], TOKEN)
    assert blocks == [1 << 16] and link == Link(0.001, (1 << 16) / 2.0)


@pytest.mark.parametrize("count", [2, 3, 7, 8])
def test_each_ordered_pair_once_and_no_host_twice_at_a_time(count: int) -> None:
    hosts = [f"host{number}" for number in range(count)]
    found = list(rounds(hosts))
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
        assert listeners(process.pid) == {("127.0.0.1", port)}
        process.stdin.close()
        assert process.wait(20) == 0
