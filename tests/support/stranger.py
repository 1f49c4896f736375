"""Calls every port that is opened on this host while it runs, as another user.

    python -m tests.support.stranger

It must be started as root. It prints a line for each port that it has reached, until it is ended.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress

from tests.support.attacker import GET, NOBODY
from tests.support.listeners import listening

_SECONDS_BETWEEN_LOOKS = 0.005
# Connections to a port in turn: one that stays, one that sends and closes, one that says nothing.
_BYTES = (GET, bytes(range(256)), b"")

Place = tuple[str, int]
"""Address and port."""


def places() -> set[Place]:
    """Where somebody listens on this host."""
    return {place for _, place in listening(os.getpid())}


def call(place: Place, number: int) -> socket.socket:
    """Connect, and say something."""
    connection = socket.socket(socket.AF_INET6 if ":" in place[0] else socket.AF_INET)
    connection.settimeout(0.2)
    with suppress(OSError):
        connection.connect(place)
        connection.sendall(_BYTES[number])
        print(*place, flush=True)
    return connection


def main() -> None:
    """Call."""
    # Another user may not be able to load this codec of Python, which sockets want.
    "a".encode("idna")
    before = places()
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    print("ready", flush=True)
    called: dict[Place, list[socket.socket]] = {}
    while True:
        for place in places() - before:
            held = called.setdefault(place, [])
            number = len(held)
            if number < len(_BYTES):
                held.append(call(place, number))
                if number == 1:
                    held[1].close()
        time.sleep(_SECONDS_BETWEEN_LOOKS)


if __name__ == "__main__":
    main()
