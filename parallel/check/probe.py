"""The program of the check on every host: says what the host is, then measures as it is told.

    python -m parallel.check.probe MODELS_ROOT

Answers are lines that begin with a mark, since a login shell may print lines of its own. Requests
are lines of JSON on the standard input. The end of the input ends the probe.

A connection between two probes starts with the proof that both have the key of this check, as
between the processes of a job with parameter servers. Then come blocks: a length in four bytes and
as many bytes, each answered by one byte when all have arrived.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from parallel.check.facts import gather
from parallel.parameter_server.authentication import Admission, call
from runtime.files import sha256

NAME = "parallel.check "
"""Begins each answer, also of other versions of the check."""
MARK = f"{NAME}{sha256(*sorted(Path(__file__).parent.glob('*.py')))[:12]} "
"""Begins each answer; its checksum shows that both ends are the same version."""
BUSY = {"busy": True}
"""An answer that comes while the real one takes time, so that a host that hangs is told apart."""
KEY_BYTES = 32
_BUSY_SECONDS = 2.0
# A probe whose first host is gone without the connection being closed ends by itself.
_IDLE_SECONDS = 300
_ACKNOWLEDGED = b"."
_LENGTH_BYTES = 4
_FIRST_BLOCK, _LARGEST_BLOCK = 1 << 16, 1 << 26
_CHUNK = 1 << 20
# Limits of a measurement: for connecting, and for sending blocks.
_CONNECT_SECONDS = 5.0
_SEND_SECONDS = 0.4
# Limit for one block; the first block takes a second at 64 kB/s.
_ANSWER_SECONDS = 5.0
_BLOCKS = 3


def main() -> None:
    """Answer until the input ends."""
    signal.alarm(_IDLE_SECONDS)
    done = threading.Event()
    threading.Thread(target=_say_busy, args=(done,), daemon=True).start()
    facts = asdict(gather(Path(sys.argv[1])))
    done.set()
    _say({"facts": facts})
    for line in sys.stdin:
        signal.alarm(_IDLE_SECONDS)
        _say(_answer(**json.loads(line)))


def _say_busy(done: threading.Event) -> None:
    while not done.wait(_BUSY_SECONDS):
        _say(BUSY)


def _say(answer: dict[str, Any]) -> None:
    print(MARK + json.dumps(answer), flush=True)


def _answer(key: str, listen: list[str], measure: list[Any]) -> dict[str, Any]:
    """Listen at addresses, or else measure the connection to an address and port."""
    secret = bytes.fromhex(key)
    if not measure:
        ports = {}
        for address in listen:
            # Other hosts may see another address than this one has.
            with suppress(OSError):
                ports[address] = serve(address, secret)
        return {"ports": ports}
    address, port = measure
    try:
        return {"bandwidth": bandwidth(address, port, secret)}
    except OSError as error:
        return {"error": error.strerror or str(error)}


def serve(address: str, key: bytes) -> int:
    """Serve other probes at an address of this host; returns the port, which the system chooses.

    A connection has neither a thread nor a buffer before its proof.

    Args:
        address: of this host, by which others reach it.
        key: of this check.

    Raises:
        OSError: this host has no such address.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family, backlog=socket.SOMAXCONN)
    Admission(listener, key, _start_acknowledging).start()
    port: int = listener.getsockname()[1]
    return port


def _start_acknowledging(connection: socket.socket) -> None:
    threading.Thread(target=_acknowledge, args=(connection,), daemon=True).start()


def _acknowledge(connection: socket.socket) -> None:
    """Acknowledge blocks until the sender closes the connection."""
    buffer = memoryview(bytearray(_CHUNK))
    connection.settimeout(2 * _ANSWER_SECONDS)
    with closing(connection), suppress(OSError), connection.makefile("rb") as stream:
        while len(length := stream.read(_LENGTH_BYTES)) == _LENGTH_BYTES:
            left = int.from_bytes(length, "big")
            while left:
                count = stream.readinto(buffer[: min(left, _CHUNK)])
                if not count:
                    return
                left -= count
            connection.sendall(_ACKNOWLEDGED)


def bandwidth(address: str, port: int, key: bytes) -> float:
    """Connect to the probe of another host and measure bytes per second, for about half a second.

    Raises:
        OSError: it cannot be reached, does not answer in time, ends the connection, or has another
            key.
    """
    with call((address, port), key, _CONNECT_SECONDS) as connection:
        connection.settimeout(_ANSWER_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        rates: list[float] = []
        size, start = _FIRST_BLOCK, time.monotonic()
        while len(rates) < _BLOCKS or time.monotonic() < start + _SEND_SECONDS:
            seconds = _send(connection, size)
            rates.append(size / seconds)
            if seconds > _ANSWER_SECONDS / 4:
                # Another one of its size would take the time of the whole measurement.
                break
            if seconds < _SEND_SECONDS / _BLOCKS:
                size = min(2 * size, _LARGEST_BLOCK)
        # The best, since processes that wait for a processor are not the link.
        return max(rates)


def _send(connection: socket.socket, size: int) -> float:
    """Send a block; returns the seconds until it has arrived."""
    data = memoryview(bytes(_CHUNK))
    start = time.perf_counter()
    connection.sendall(size.to_bytes(_LENGTH_BYTES, "big"))
    for sent in range(0, size, _CHUNK):
        connection.sendall(data[: size - sent])
    if connection.recv(1) != _ACKNOWLEDGED:
        raise ConnectionError("the connection was closed")
    return time.perf_counter() - start


if __name__ == "__main__":
    try:
        main()
    except (BrokenPipeError, KeyboardInterrupt):
        pass
    # Not waiting for a thread that asks a dead disk.
    os._exit(0)
