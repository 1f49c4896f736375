"""Calls every port that the processes of a test open while it runs, as another user.

    python -m tests.support.stranger

It must be started as root. It prints a line for each port that it has reached, until it is ended.
Jobs of tests in other processes are left alone.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from contextlib import suppress

import psutil
import pytest

from tests.support.attacker import GET, NOBODY
from tests.support.processes import listeners, listening

_SECONDS_BETWEEN_LOOKS = 0.02
# Connections to a port in turn: one that stays, one that sends and closes, one that says nothing.
_BYTES = (GET, bytes(range(256)), b"")

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
# Not in Python, which other users may not be able to load; the server may reset the connection.
_ASK = r"""
trap "" PIPE
exec 3<>"/dev/tcp/127.0.0.1/$0" || exit
printf 'GET /scope/key HTTP/1.0\r\n\r\n' >&3 && cat <&3 || true
"""

Place = tuple[str, int]
"""Address and port."""


def answer_to_a_stranger(port: int) -> bytes:
    command = ["bash", "-c", _ASK, str(port)]
    return subprocess.check_output(command, timeout=60, user=NOBODY, group=NOBODY, cwd="/")


def opened_by(test: psutil.Process, known: set[Place]) -> set[Place]:
    """Where the processes that a test has started listen, without places that are known."""
    places = {place for _, place in listening(os.getpid())} - known
    if not places:
        return places
    own = [process.pid for process in test.children(recursive=True)]
    return places & set().union(*map(listeners, own))


def call(place: Place, number: int) -> socket.socket:
    connection = socket.socket(socket.AF_INET6 if ":" in place[0] else socket.AF_INET)
    connection.settimeout(0.2)
    with suppress(OSError):
        connection.connect(place)
        connection.sendall(_BYTES[number])
        print(*place, flush=True)
    return connection


def main() -> None:
    # Other users may not be able to load this codec of Python, which sockets want.
    "a".encode("idna")
    test = psutil.Process().parent()
    os.setegid(NOBODY)
    print("ready", flush=True)
    called: dict[Place, list[socket.socket]] = {}
    while True:
        finished = {place for place, held in called.items() if len(held) == len(_BYTES)}
        places = opened_by(test, finished)
        os.seteuid(NOBODY)
        for place in places:
            held = called.setdefault(place, [])
            held.append(call(place, len(held)))
            if len(held) == 2:
                held[1].close()
        os.seteuid(0)
        time.sleep(_SECONDS_BETWEEN_LOOKS)


if __name__ == "__main__":
    main()
