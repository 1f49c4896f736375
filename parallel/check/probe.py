"""The program of the check on every host: says what the host is, or measures a connection.

The request is JSON on the standard input, and so is the answer on the standard output. It begins
with a mark, since a login shell may print lines of its own.

A connection between two probes starts with the proof that both have the key of this check, as
between the processes of a job with parameter servers. Then one end sends, until the other has
counted bytes for a while and answers with their number per second.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Optional

from parallel.check.facts import gather
from parallel.parameter_server.connections import Admission, call

MARK = "parallel.check "
"""Begins each answer."""
_CHUNK = 1 << 20
_RATE = struct.Struct("!d")
# A measurement's time limits for connecting and for answers, and the time that bytes are counted.
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 5.0
_COUNT_SECONDS = 0.5
# Within which the probes of two hosts start.
_START_SECONDS = 10.0


def main() -> None:
    """Answer the request."""
    request = json.load(sys.stdin)
    answer = _measured(**request) if "key" in request else asdict(gather(**request))
    print(MARK + json.dumps(answer), flush=True)


def _measured(
    key: str, listen: Optional[tuple[str, int]], send: Optional[tuple[str, int]]
) -> dict[str, Any]:
    """Listen at an address and port, and measure the connection to another one."""
    secret, bytes_per_second, reason = bytes.fromhex(key), 0.0, ""
    has_ended = None
    # Other hosts may see another address than this one has.
    with suppress(OSError):
        has_ended = serve(*listen, secret) if listen else None
    try:
        bytes_per_second = bandwidth(*send, secret) if send else 0.0
    except OSError as error:
        reason = error.strerror or str(error)
    if has_ended is not None:
        has_ended.wait(_START_SECONDS)
    return {"bandwidth": bytes_per_second, "error": reason}


def serve(address: str, port: int, key: bytes) -> threading.Event:
    """Let another probe send to an address of this host; the event is set when it has.

    A connection has neither a thread nor a buffer before its proof.

    Raises:
        OSError: this host has no such address.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, port), family=family, backlog=socket.SOMAXCONN)
    has_ended = threading.Event()

    def start_counting(connection: socket.socket) -> None:
        threading.Thread(target=_count, args=(connection, has_ended), daemon=True).start()

    Admission(listener, key, start_counting).start()
    return has_ended


def _count(connection: socket.socket, has_ended: threading.Event) -> None:
    """Count what arrives, answer with the bytes per second, and drop what comes after."""
    buffer = bytearray(_CHUNK)
    connection.settimeout(_ANSWER_SECONDS)
    with connection, suppress(OSError):
        size, start = 0, time.monotonic()
        while time.monotonic() < start + _COUNT_SECONDS:
            size += connection.recv_into(buffer)
        connection.sendall(_RATE.pack(size / (time.monotonic() - start)))
        while connection.recv_into(buffer):
            pass
    has_ended.set()


def bandwidth(address: str, port: int, key: bytes) -> float:
    """Connect to the probe of another host and measure bytes per second, for half a second.

    Raises:
        OSError: it cannot be reached, does not answer in time, ends the connection, or has another
            key.
    """
    with _connect(address, port, key) as connection:
        connection.settimeout(_ANSWER_SECONDS)
        data, both = bytes(_CHUNK), [connection]
        while not select.select(both, both, [], _ANSWER_SECONDS)[0]:
            connection.send(data)
        answer = connection.recv(_RATE.size)
    if len(answer) < _RATE.size:
        raise ConnectionError("the connection was closed")
    rate: float = _RATE.unpack(answer)[0]
    return rate


def _connect(address: str, port: int, key: bytes) -> socket.socket:
    """Connect to a probe, which may not have started yet."""
    end = time.monotonic() + _START_SECONDS
    while True:
        try:
            return call((address, port), key, _CONNECT_SECONDS)
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
        time.sleep(0.1)


if __name__ == "__main__":
    main()
    # Not waiting for a thread that asks a dead disk.
    os._exit(0)
