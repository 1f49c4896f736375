"""Processes that tests have started: whether they are still there, and where they listen."""

from __future__ import annotations

import ipaddress
import os
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

_LISTEN = "0A"  # TCP_LISTEN, net/tcp_states.h


def is_alive(pid: int) -> bool:
    """A zombie, for which nobody has waited yet, is not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def left(pids: Iterable[int], seconds: float = 20) -> list[int]:
    """Those that are still alive after a time; it is less if all have ended."""
    deadline = time.monotonic() + seconds
    alive = list(pids)
    while (alive := [pid for pid in alive if is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return alive


def listeners(process: int) -> set[tuple[str, int]]:
    """Addresses and ports on which a process listens."""
    with suppress(OSError):
        files = list(Path(f"/proc/{process}/fd").iterdir())
        owned = {os.path.basename(os.path.realpath(file)) for file in files}
        return {at for inode, at in listening(process) if f"socket:[{inode}]" in owned}
    return set()


def listening(process: int) -> Iterator[tuple[str, tuple[str, int]]]:
    """Inode, address and port of each listening socket in the network namespace of a process."""
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN:
                address, port = fields[1].split(":")
                yield fields[9], (_text(bytes.fromhex(address)), int(port, 16))


def _text(address: bytes) -> str:
    # Each four bytes stand in the order of the processor.
    words = struct.unpack(f"={len(address) // 4}I", address)
    return str(ipaddress.ip_address(struct.pack(f">{len(words)}I", *words)))
