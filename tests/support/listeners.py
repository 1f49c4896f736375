"""The sockets on which processes listen, from /proc: what ``ss -ltnp`` prints."""

from __future__ import annotations

import ipaddress
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_LISTEN = "0A"  # TCP_LISTEN, net/tcp_states.h


def listeners(process: int) -> set[tuple[str, int]]:
    """Addresses and ports on which a process listens."""
    owned = set()
    with suppress(OSError):
        for path in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):
                owned.add(os.readlink(path))
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
