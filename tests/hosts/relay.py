"""The networks between two hosts as a process, which delays and loses frames.

    python -m tests.hosts.relay NAMESPACE1 NAMESPACE2 INTERFACE...

Linux does this with ``tc ... netem``, which not every kernel has. So each interface of a host is a
TAP device here, whose frames this process passes on to the other host. A line on its standard input
is what happens from now on: the delay, the most that a frame's delay differs from it (seconds), and
the share of lost frames. The end of the input ends it.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import itertools
import os
import random
import select
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

DEVICE = "/dev/net/tun"
# linux/sched.h, linux/if_tun.h
_NEW_NETWORK, _SET_DEVICE, _TAP, _NO_HEADER = 0x40000000, 0x400454CA, 0x0002, 0x1000
_LONGEST_FRAME = 65_600
_FRAMES_AT_ONCE = 64
_INPUT = 0


def main(namespaces: Sequence[str], interfaces: Sequence[str]) -> None:
    """Make the devices, say "ready", and pass frames on until the input ends."""
    opposite = {}
    for interface in interfaces:
        one, other = (_open_tap(namespace, interface) for namespace in namespaces)
        opposite.update({one: other, other: one})
    print("ready", flush=True)
    rng, order = random.Random(0), itertools.count()
    waiting: list[tuple[float, int, int, bytes]] = []
    delay = spread = loss = 0.0
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        readable, _, _ = select.select([_INPUT, *opposite], [], [], timeout)
        if _INPUT in readable:
            line = os.read(_INPUT, 1000).decode()
            if not line:
                return
            delay, spread, loss = map(float, line.split())
            readable.remove(_INPUT)
        for device in readable:
            # An error ends the frames that have come.
            with suppress(OSError):
                for number in itertools.islice(order, _FRAMES_AT_ONCE):
                    frame = os.read(device, _LONGEST_FRAME)
                    if rng.random() >= loss:
                        due = time.monotonic() + delay + rng.uniform(-spread, spread)
                        heapq.heappush(waiting, (due, number, opposite[device], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, device, frame = heapq.heappop(waiting)
            # If the interface is down, or cannot take more, it is lost.
            with suppress(OSError):
                os.write(device, frame)


def _open_tap(namespace: str, interface: str) -> int:
    """Make an interface of a namespace; it exists as long as this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    here, there = (os.open(path, os.O_RDONLY)
                   for path in ("/proc/self/ns/net", f"/run/netns/{namespace}"))  # fmt: skip
    # The device belongs to the network in which its file is opened.
    assert libc.setns(there, _NEW_NETWORK) == 0, os.strerror(ctypes.get_errno())
    device = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _SET_DEVICE, struct.pack("16sH14x", interface.encode(), _TAP | _NO_HEADER))
    assert libc.setns(here, _NEW_NETWORK) == 0, os.strerror(ctypes.get_errno())
    os.close(here)
    os.close(there)
    return device


if __name__ == "__main__":
    main(sys.argv[1:3], sys.argv[3:])
