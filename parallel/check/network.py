"""How hosts reach each other: their probes connect, and send blocks that are acknowledged.

A connection begins with the token of this check; others are closed. Then come blocks: a length in
four bytes and as many bytes, each answered by one byte when all have arrived. Large blocks, which
fit no buffer, measure the bandwidth.
"""

from __future__ import annotations

import hmac
import selectors
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from typing import NamedTuple

TOKEN_BYTES = 32
# For connections that have not sent it.
_TOKEN_SECONDS = 1.0
_MOST_WAITING = 128
_PAUSE_SECONDS = 0.01
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


class Listener:
    """Serves the connections of other probes at one address of this host.

    A connection has a second to send the token of this check. Until then it has neither a thread
    nor a buffer, and of many connections the oldest is closed.
    """

    def __init__(self, address: str, token: bytes) -> None:
        """Listen on a port that the system chooses.

        Args:
            address: of this host, by which others reach it.
            token: with which connections begin.

        Raises:
            OSError: this host has no such address.
        """
        known = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)
        family, _, _, _, own = known[0]
        self._token = token
        self._socket = socket.create_server(own, family=family)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        # In the order in which they have come: when each is closed, and what it has sent.
        self._waiting: dict[socket.socket, tuple[float, bytes]] = {}
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select(_TOKEN_SECONDS / 4):
                if key.fileobj is self._socket:
                    self._accept()
                elif key.fileobj in self._waiting:
                    self._admit(key.fileobj)  # type: ignore[arg-type]
            now = time.monotonic()
            for connection in [one for one, (end, _) in self._waiting.items() if end < now]:
                self._drop(connection)

    def _accept(self) -> None:
        if len(self._waiting) >= _MOST_WAITING:
            self._drop(next(iter(self._waiting)))
        try:
            connection, _ = self._socket.accept()
            self._selector.register(connection, selectors.EVENT_READ)
        except OSError:
            # It has ended already, or the process may not open more files.
            if self._waiting:
                self._drop(next(iter(self._waiting)))
            time.sleep(_PAUSE_SECONDS)
            return
        self._waiting[connection] = (time.monotonic() + _TOKEN_SECONDS, b"")

    def _admit(self, connection: socket.socket) -> None:
        """Read more of a token; serve the connection if it is that of this check."""
        end, sent = self._waiting[connection]
        more = b""
        with suppress(OSError):
            more = connection.recv(TOKEN_BYTES - len(sent))
        sent += more
        if more and len(sent) < TOKEN_BYTES:
            self._waiting[connection] = (end, sent)
        elif hmac.compare_digest(sent, self._token):
            del self._waiting[connection]
            self._selector.unregister(connection)
            threading.Thread(target=_serve, args=(connection,), daemon=True).start()
        else:
            self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        del self._waiting[connection]
        self._selector.unregister(connection)
        connection.close()


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


def measure(address: str, port: int, token: bytes) -> Link:
    """Connect to the probe of another host and measure, for about half a second.

    Raises:
        OSError: it cannot be reached, or does not answer in time.
        EOFError: it has ended the connection.
    """
    with socket.create_connection((address, port), _CONNECT_SECONDS) as connection:
        connection.settimeout(_ANSWER_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(token)
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
