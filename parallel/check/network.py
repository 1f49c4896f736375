"""How hosts reach each other: their probes connect, and send blocks that are acknowledged.

Both ends of a connection first prove that they have the key of this check, as the processes of a
job with parameter servers do. Then come blocks: a length in four bytes and as many bytes, each
answered by one byte when all have arrived. Blocks that fit no buffer measure the bandwidth.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from typing import NamedTuple

from parallel.parameter_server.authentication import Admission, call

KEY_BYTES = 32
_LENGTH = struct.Struct("!I")
_ACKNOWLEDGED = b"."
_FIRST_BLOCK, _LARGEST_BLOCK = 1 << 16, 1 << 26
_CHUNK = 1 << 20
# Of a measurement: connecting, and sending blocks until it has lasted so long.
_CONNECT_SECONDS = 5.0
_SEND_SECONDS = 0.4
# Of one block on a link that is almost dead; the first one takes a second at 64 kB/s.
_ANSWER_SECONDS = 5.0
_BLOCKS = 3


class Link(NamedTuple):
    """A connection between two hosts."""

    bandwidth: float
    """Bytes per second, in the direction of the connection."""


def listen(address: str, key: bytes) -> int:
    """Serve other probes at an address of this host; returns the port, which the system chooses.

    A connection has neither a thread nor a buffer before its proof.

    Args:
        address: of this host, by which others reach it.
        key: of this check.

    Raises:
        OSError: this host has no such address.
    """
    family, _, _, _, own = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    listener = socket.create_server(own, family=family, backlog=socket.SOMAXCONN)
    Admission(listener, key, _start_serving).start()
    port: int = listener.getsockname()[1]
    return port


def _start_serving(connection: socket.socket) -> None:
    threading.Thread(target=_serve, args=(connection,), daemon=True).start()


def _serve(connection: socket.socket) -> None:
    """Acknowledge blocks until the sender closes the connection."""
    buffer = memoryview(bytearray(_CHUNK))
    with closing(connection), suppress(OSError, EOFError):
        connection.settimeout(2 * _ANSWER_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            _receive(connection, buffer[: _LENGTH.size])
            (left,) = _LENGTH.unpack(buffer[: _LENGTH.size])
            while left:
                left -= _receive(connection, buffer[: min(left, _CHUNK)])
            connection.sendall(_ACKNOWLEDGED)


def _receive(connection: socket.socket, buffer: memoryview) -> int:
    """Fill a buffer; returns its length."""
    length = len(buffer)
    while buffer:
        count = connection.recv_into(buffer)
        if count == 0:
            raise EOFError
        buffer = buffer[count:]
    return length


def measure(address: str, port: int, key: bytes) -> Link:
    """Connect to the probe of another host and measure, for about half a second.

    Raises:
        OSError: it cannot be reached, does not answer in time, or has another key.
        EOFError: it has ended the connection.
    """
    with call((address, port), key, _CONNECT_SECONDS) as connection:
        connection.settimeout(_ANSWER_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = memoryview(bytes(_CHUNK))
        rates: list[float] = []
        size, start = _FIRST_BLOCK, time.monotonic()
        while len(rates) < _BLOCKS or time.monotonic() < start + _SEND_SECONDS:
            seconds = _send(connection, data, size)
            rates.append(size / seconds)
            if seconds > _ANSWER_SECONDS / 4:
                # Another one of its size would take the time of the whole measurement.
                break
            if seconds < _SEND_SECONDS / _BLOCKS:
                size = min(2 * size, _LARGEST_BLOCK)
        # The best, since processes that wait for a processor are not the link.
        return Link(max(rates))


def _send(connection: socket.socket, data: memoryview, size: int) -> float:
    """Send a block; returns the seconds until it has arrived."""
    start = time.perf_counter()
    connection.sendall(_LENGTH.pack(size))
    for sent in range(0, size, _CHUNK):
        connection.sendall(data[: min(_CHUNK, size - sent)])
    if connection.recv(1) != _ACKNOWLEDGED:
        raise EOFError
    return time.perf_counter() - start


def rounds(hosts: Sequence[str]) -> Iterator[list[tuple[str, str]]]:
    """All ordered pairs of hosts, in rounds in which each host is in one pair at most.

    So many pairs are measured at the same time, and none disturbs another. (The circle method of
    round-robin tournaments, and each of its rounds once more in the other direction.)
    """
    circle: list[str] = [*hosts, ""] if len(hosts) % 2 else list(hosts)
    half = len(circle) // 2
    for _ in range(len(circle) - 1):
        pairs = [pair for pair in zip(circle[:half], reversed(circle[half:])) if "" not in pair]
        yield pairs
        yield [(receiver, sender) for sender, receiver in pairs]
        circle = [circle[0], circle[-1], *circle[1:-1]]
