"""The program of the check on every host: says what the host is, then measures as it is told.

    python -m parallel.check.probe MODELS_ROOT RANKS HOSTS

Answers are lines that begin with a mark, since a login shell may print lines of its own. Requests
are lines of JSON on the standard input. The end of the input ends the probe.

A connection between two probes starts with the proof that both have the key of this check, as
between the processes of a job with parameter servers. Then one end sends, until the other has
counted bytes for a while and answers with their number per second.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Optional

from parallel.check.facts import gather
from parallel.parameter_server.authentication import Admission, call

MARK = "parallel.check "
"""Begins each answer."""
_BUSY_SECONDS = 2.0
# A probe whose first host is gone without the connection being closed ends by itself.
_IDLE_SECONDS = 300
_CHUNK = 1 << 20
_RATE = struct.Struct("!d")
# A measurement's time limits for connecting and for answers, and the time that bytes are counted.
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 5.0
_COUNT_SECONDS = 0.5


def main() -> None:
    """Answer until the input ends."""
    signal.alarm(_IDLE_SECONDS)
    _, models_root, ranks, hosts = sys.argv
    facts = ThreadPoolExecutor(1).submit(gather, Path(models_root), int(ranks), int(hosts))
    while wait([facts], _BUSY_SECONDS).not_done:
        # A sign of life: a host that hangs is told apart.
        _say(None)
    _say(asdict(facts.result()))
    for line in sys.stdin:
        signal.alarm(_IDLE_SECONDS)
        _say(_answer(**json.loads(line)))


def _say(answer: Optional[dict[str, Any]]) -> None:
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

    def start_counting(connection: socket.socket) -> None:
        threading.Thread(target=_count, args=(connection,), daemon=True).start()

    Admission(listener, key, start_counting).start()
    port: int = listener.getsockname()[1]
    return port


def _count(connection: socket.socket) -> None:
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


def bandwidth(address: str, port: int, key: bytes) -> float:
    """Connect to the probe of another host and measure bytes per second, for half a second.

    Raises:
        OSError: it cannot be reached, does not answer in time, ends the connection, or has another
            key.
    """
    with call((address, port), key, _CONNECT_SECONDS) as connection:
        connection.settimeout(_ANSWER_SECONDS)
        data, both = bytes(_CHUNK), [connection]
        while not select.select(both, both, [], _ANSWER_SECONDS)[0]:
            connection.send(data)
        answer = connection.recv(_RATE.size)
    if len(answer) < _RATE.size:
        raise ConnectionError("the connection was closed")
    rate: float = _RATE.unpack(answer)[0]
    return rate


if __name__ == "__main__":
    try:
        main()
    except (BrokenPipeError, KeyboardInterrupt):
        pass
    # Not waiting for a thread that asks a dead disk.
    os._exit(0)
