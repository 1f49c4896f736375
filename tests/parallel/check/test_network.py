"""Measurements between probes of this machine, and the order of the pairs."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from parallel.check import network
from parallel.check.network import TOKEN_BYTES, Link, Listener, measure, rounds

TOKEN = bytes(range(TOKEN_BYTES))


@pytest.fixture(scope="module")
def listener() -> Listener:
    started = Listener()
    started.token = TOKEN
    return started


def test_the_loopback_is_fast(listener: Listener) -> None:
    link = measure("127.0.0.1", listener.port, TOKEN)
    assert 0 < link.round_trip < 0.01 and link.bandwidth > 5e7


def test_several_at_the_same_time(listener: Listener) -> None:
    links: list[Link] = []
    threads = [
        threading.Thread(
            target=lambda: links.append(measure("127.0.0.1", listener.port, TOKEN))
        )
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(links) == 3


@pytest.mark.parametrize("token", [bytes(TOKEN_BYTES), b"", TOKEN[:-1] + b"x"])
def test_strangers_are_not_served(listener: Listener, token: bytes, monkeypatch) -> None:
    monkeypatch.setattr(network, "_ANSWER_SECONDS", 0.5)
    with pytest.raises((EOFError, OSError)):
        measure("127.0.0.1", listener.port, token)


def test_a_listener_without_a_token_serves_nobody() -> None:
    with pytest.raises((EOFError, OSError)):
        measure("127.0.0.1", Listener().port, b"")


def test_a_port_on_which_nothing_listens() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(OSError, match="refused"):
            measure("127.0.0.1", unused.getsockname()[1], TOKEN)


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


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8])
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
