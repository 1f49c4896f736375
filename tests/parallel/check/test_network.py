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
def address() -> tuple[str, int]:
    return "127.0.0.1", Listener("127.0.0.1", TOKEN).port


def test_several_measure_one_address_at_the_same_time(address: tuple[str, int]) -> None:
    with ThreadPoolExecutor(3) as pool:
        links = list(pool.map(lambda _: measure(*address, TOKEN), range(3)))
    assert all(link.bandwidth > 1e7 for link in links)
    assert address in listeners(os.getpid())
    with pytest.raises(OSError, match="refused"):
        measure("127.0.0.2", address[1], TOKEN)
    with pytest.raises(OSError):
        Listener("192.0.2.1", TOKEN)
    assert measure("::1", Listener("::1", TOKEN).port, TOKEN).bandwidth > 0


def test_other_tokens_and_hosts_that_do_not_answer(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "_ANSWER_SECONDS", 0.5)
    for token in (bytes(TOKEN_BYTES), b"", TOKEN[:-1] + b"x"):
        with pytest.raises((EOFError, OSError)):
            measure(*address, token)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start = time.monotonic()
        with pytest.raises(OSError, match="timed out"):
            measure(*silent.getsockname(), TOKEN)
        assert time.monotonic() - start < 3


def test_half_a_token_is_closed_after_a_second_and_says_nothing(address: tuple[str, int]) -> None:
    """The first bytes of the right token are treated like those of a wrong one."""
    start = time.monotonic()
    with socket.create_connection(address) as right, socket.create_connection(address) as wrong:
        right.sendall(TOKEN[:-1])
        wrong.sendall(b"x" * (TOKEN_BYTES - 1))
        for connection in (right, wrong):
            connection.settimeout(5)
            assert connection.recv(1) == b""
            assert 0.5 < time.monotonic() - start < 4


def test_a_token_may_come_in_parts(address: tuple[str, int]) -> None:
    with socket.create_connection(address, 5) as connection:
        for byte in TOKEN:
            connection.sendall(bytes([byte]))
            time.sleep(0.001)
        connection.sendall(bytes(4))
        assert connection.recv(1) == b"."


def test_many_connections_cost_little_and_do_not_disturb(address: tuple[str, int]) -> None:
    threads = threading.active_count()
    before = len(os.listdir("/proc/self/fd"))
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
import os, resource, socket, time
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


def test_a_slow_host_is_measured_with_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 KiB arrive after two seconds; no second block is sent."""
    blocks: list[int] = []
    monkeypatch.setattr(network, "_send", lambda _, __, size: blocks.append(size) or 2.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        link = measure("127.0.0.1", server.getsockname()[1], TOKEN)
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
        token = "ab" * 32
        # 192.0.2.1 is an address of documents (RFC 5737), and of no host.
        ports = ask(listen=["127.0.0.1", "192.0.2.1"], token=token)["ports"]
        assert list(ports) == ["127.0.0.1"]
        port = ports["127.0.0.1"]
        assert "error" in ask(measure=["127.0.0.1", port], token="cd" * 32)
        (bandwidth,) = ask(measure=["127.0.0.1", port], token=token)["link"]
        assert bandwidth > 1e6
        assert ask(measure=["127.0.0.1", 1], token=token) == {"error": "Connection refused"}
        assert listeners(process.pid) == {("127.0.0.1", port)}
        process.stdin.close()
        assert process.wait(20) == 0
