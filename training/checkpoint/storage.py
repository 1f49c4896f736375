"""Which ranks of a run write into the same folder, and which have one of their own.

Hosts may share the file system of ``--models-root``, all of them or some, or none: each then has a
folder of that name for itself. Nobody has to say so. Every rank makes a file and looks for those of
the ranks before it; the ranks that see the same file form a group, whose first rank does for their
folder what belongs to a folder and not to a rank: it locks it, publishes checkpoints and removes
old ones.

On a file system between hosts, a new file may take a while to be seen. On one that a host has for
itself it is seen at once, or never.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from parallel.world import World
from runtime.errors import ConfigError
from runtime.files import create
from runtime.mxnet import mx

_PROBE = ".storage-"
# How long another host may take to see a new file.
_VISIBLE_SECONDS = 30.0
_POLL_SECONDS = 0.1
# Types of file systems that one host has for itself.
_OF_ONE_HOST = frozenset("btrfs ext2 ext3 ext4 f2fs overlay ramfs tmpfs xfs zfs".split())


@dataclass(frozen=True)
class Storage:
    """The folder of a run, as one rank sees it."""

    root: Path
    """The same path on all hosts."""
    world: World
    hosts: tuple[str, ...]
    """The name of each rank's host."""
    firsts: tuple[int, ...]
    """For each rank, the first one that has the same folder."""

    @classmethod
    def find(cls, root: Path, world: World) -> Storage:
        """Find out who shares the folder, and make it; the ranks call this together."""
        host = os.uname().nodename
        if world.size == 1:
            return cls(root, world, (host,), (0,))
        word = world.broadcast_object(uuid.uuid4().hex[:12], "storage.word")
        probes = [root / f"{_PROBE}{word}-{rank}" for rank in range(world.size)]
        own = probes[world.rank]
        try:
            root.mkdir(parents=True, exist_ok=True)
            create(own).close()
        except OSError as error:
            raise ConfigError(
                f"--models-root {root} on {host} cannot be written ({error.strerror}); "
                "give a folder in which you may write"
            ) from None
        world.barrier()
        found = gather(world, [host, _first_seen(probes[: world.rank])], "storage.found")
        # All have looked.
        with suppress(OSError):
            own.unlink()
        hosts, seen = zip(*found)
        return cls(root, world, hosts, _joined(seen))

    @property
    def is_spread(self) -> bool:
        """True if some ranks have another folder than others."""
        return any(self.firsts)

    @property
    def own(self) -> int:
        """The first rank that has this rank's folder."""
        return self.firsts[self.world.rank]

    @property
    def is_first(self) -> bool:
        """True if this rank is the one that takes care of its folder."""
        return self.own == self.world.rank

    def members(self, first: int) -> list[int]:
        """The ranks that have the folder of the rank ``first``."""
        return [rank for rank, other in enumerate(self.firsts) if other == first]

    def gather(self, value: Any, name: str) -> dict[int, Any]:
        """Return the value of the first rank of each folder, on every rank; JSON can hold it."""
        values = gather(self.world, value if self.is_first else None, name)
        return {first: values[first] for first in sorted(set(self.firsts))}

    def sweep(self) -> None:
        """Remove what runs that were killed at their very beginning have left."""
        for left in self.root.glob(f"{_PROBE}*"):
            left.unlink(missing_ok=True)


def gather(world: World, value: Any, name: str) -> list[Any]:
    """The values of all ranks, which JSON can hold; blocks."""
    content = np.frombuffer(json.dumps(value).encode(), np.uint8)
    length = mx.nd.array([content.size], dtype="int64")
    lengths = world.allgather_uneven(length, f"{name}.lengths").asnumpy()
    joined = world.allgather_uneven(mx.nd.array(content, dtype="uint8"), name).asnumpy()
    pieces = np.split(joined, np.cumsum(lengths)[:-1])
    return [json.loads(piece.tobytes()) for piece in pieces]


def _first_seen(earlier: Sequence[Path]) -> int:
    """The number of the first of these files that exists, or of the one that follows them.

    The first rank's file may be late although that of a rank in between is there already.
    """
    deadline = time.monotonic() + _VISIBLE_SECONDS
    while True:
        seen = next((rank for rank, probe in enumerate(earlier) if probe.exists()), len(earlier))
        if not seen or _is_of_one_host(earlier[0].parent) or time.monotonic() > deadline:
            return seen
        time.sleep(_POLL_SECONDS)


def _joined(seen: Sequence[int]) -> tuple[int, ...]:
    """For each rank the first one of its group: what a rank does not see, another may have seen."""
    firsts: list[int] = []
    for rank, first in enumerate(seen):
        firsts.append(firsts[first] if first < rank else rank)
    return tuple(firsts)


def _is_of_one_host(folder: Path) -> bool:
    """Return True if no other host can have this folder."""
    mounted = {one.mountpoint: one.fstype for one in psutil.disk_partitions(all=True)}
    place = folder.resolve()
    types = (mounted.get(str(one)) for one in (place, *place.parents))
    return next(filter(None, types), "") in _OF_ONE_HOST
