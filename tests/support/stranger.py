"""Calls every port that is opened on this host while it runs, as another user: ``stranger.py``.

It must be started as root. It prints a line for each port that it has reached, until it is ended.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

NOBODY = 65534
_LISTEN = "0A"  # TCP_LISTEN, net/tcp_states.h
_SECONDS_BETWEEN_LOOKS = 0.005
# Connections to a port in turn: one that stays, one that sends and closes, one that says nothing.
_BYTES = (b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)), b"")


def listening() -> set[tuple[str, int]]:
    """Families and ports on which somebody listens."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN:
                found.add((name, int(fields[1].rpartition(":")[2], 16)))
    return found


def call(family: str, port: int, number: int) -> socket.socket:
    """Connect, and say something."""
    kind, host = (socket.AF_INET6, "::1") if family == "tcp6" else (socket.AF_INET, "127.0.0.1")
    connection = socket.socket(kind)
    connection.settimeout(0.2)
    with suppress(OSError):
        connection.connect((host, port))
        connection.sendall(_BYTES[number])
        print(f"{family} {port}", flush=True)
    return connection


def main() -> None:
    """Call."""
    # Another user may not be able to load this codec of Python, which sockets want.
    "a".encode("idna")
    before = listening()
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    print("ready", flush=True)
    called: dict[tuple[str, int], list[socket.socket]] = {}
    while True:
        for place in listening() - before:
            held = called.setdefault(place, [])
            number = len(held)
            if number < len(_BYTES):
                held.append(call(*place, number))
                if number == 1:
                    held[1].close()
        time.sleep(_SECONDS_BETWEEN_LOOKS)


if __name__ == "__main__":
    main()
