"""The folder of a run: which ranks share it, and the lock that keeps other runs out.

Hosts may share the file system of ``--models-root``, all of them or some, or none: each then has a
folder of that name for itself. Nobody has to say so. Every rank tries to make the same file, which
succeeds for one rank in each folder, also on a file system between hosts, whose server decides it.
The ranks that find the file of the same rank form a group, whose first rank does for their folder
what belongs to a folder and not to a rank: it locks it, publishes checkpoints and removes old ones.

Two runs at once in one folder would remove each other's checkpoints. So the first rank of each
folder locks a file in it for as long as the run lasts. The operating system removes the lock with
the process, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.contents import find_other_host, fingerprint
from parallel.world import World
from runtime.errors import ConfigError, print_line
from runtime.files import as_data_error, open_kept

LOCK = "run.lock"
_LONGEST_HOLDER = 300
# A run that is started again right after its end may find processes of before. A host that died
# keeps its locks on a network file system for a while.
_SECONDS_SAME_HOST, _SECONDS_OTHER_HOST = 10.0, 100.0
_POLL_SECONDS = 0.1


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
        probe = root / f".storage-{word}"
        with explained(root):
            root.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError), open(probe, "x", encoding="utf-8") as file:
                file.write(str(world.rank))
        world.barrier()
        with explained(root):
            maker = probe.read_text(encoding="utf-8")
        hosts, makers = zip(*world.gather_objects((host, maker), "storage.found"))
        # All have read.
        with suppress(OSError):
            probe.unlink()
        return cls(root, world, hosts, tuple(map(makers.index, makers)))

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
        """Return the value of the first rank of each folder, on every rank."""
        values = self.world.gather_objects(value if self.is_first else None, name)
        return {first: values[first] for first in sorted(set(self.firsts))}


def check_data(paths: Sequence[Path], world: World) -> None:
    """Refuse hosts whose copies of the data differ; all ranks call it together, with equal paths.

    Ranks on other data would train on other images under the same numbers, see epochs of another
    length, or wait for each other forever, without an error that names the reason. The first rank
    of each host reads the files.

    Raises:
        ConfigError: a host has other files; the same on every rank.
    """
    if world.size == 1 or not paths:
        return
    own = (os.uname().nodename, fingerprint(paths)) if world.local_rank == 0 else None
    found = world.gather_objects(own, "data.files")
    difference = find_other_host([each for each in found if each])
    if difference:
        raise ConfigError(f"{difference}; copy the data set from one host to the others")


def explained(root: Path) -> AbstractContextManager[None]:
    """Turn an ``OSError`` in the folder of a run into a ``DataError``."""
    what = f"--models-root {root} cannot be written on {os.uname().nodename}"
    return as_data_error(what, "give a folder in which you may write")


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Keep other runs out of a folder, which is made if it does not exist.

    Raises:
        ConfigError: another run uses the folder.
        DataError: it cannot be written.
    """
    with explained(root):
        root.mkdir(parents=True, exist_ok=True)
        file = open(root / LOCK, "a+b", opener=open_kept)
    with file:
        _lock(file.fileno(), root)
        yield


def _lock(descriptor: int, root: Path) -> None:
    """Lock the file and write there who has it; where there are no locks, give a warning."""
    started = time.monotonic()
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except (BlockingIOError, PermissionError):
            held = os.pread(descriptor, _LONGEST_HOLDER, 0).partition(b"\n")[0]
            holder = held.decode(errors="replace") or "unknown host"
        except OSError as error:
            with suppress(OSError):
                print_line(
                    f"warning: {root / LOCK} cannot be locked ({error.strerror}): make sure "
                    "yourself that no other run writes into that folder",
                    file=sys.stderr,
                )
            return
        is_on_this_host = holder.startswith(f"host {os.uname().nodename}, ")
        seconds = _SECONDS_SAME_HOST if is_on_this_host else _SECONDS_OTHER_HOST
        if time.monotonic() - started >= seconds:
            raise ConfigError(
                f"another run writes into --models-root {root}: {holder}; wait for its end, or "
                "give this run a --models-root of its own"
            )
        time.sleep(_POLL_SECONDS)
    command = shlex.join([Path(sys.executable).name, *sys.argv])
    line = f"host {os.uname().nodename}, process {os.getpid()}, {command}\n"
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.write(descriptor, line.encode(errors="replace"))
