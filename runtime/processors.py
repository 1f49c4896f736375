"""How many processors this process may keep busy.

Not all that the machine has: the system can bind a process to some of them (``taskset``, batch
systems), and a container gets a quota of time (``docker --cpus=2``, Kubernetes' limits) that leaves
all processors visible. Threads beyond the quota only wait for each other, because the kernel stops
all of them for the rest of each period. Nothing but the standard library is imported: the installer
asks before any package is there.

    python -m runtime.processors
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

_ROOT = Path("/")


def available() -> int:
    """Return the number of processors, at least 1; part of a processor counts as one."""
    bound = len(os.sched_getaffinity(0))
    quota = cgroup_quota()
    return bound if quota is None else max(1, min(bound, math.ceil(quota)))


def cgroup_quota(root: Path = _ROOT) -> float | None:
    """Return the smallest quota of the process's control groups, in processors; None without one.

    Both versions of control groups are looked at, and in each the group of the process with all
    groups that contain it, as far as they are visible.

    Args:
        root: where ``proc`` and the mount points are.
    """
    quotas = [
        quota
        for hierarchy in _hierarchies(root)
        for folder in hierarchy.folders()
        if (quota := hierarchy.read_quota(folder)) is not None
    ]
    return min(quotas, default=None)


class _Hierarchy(NamedTuple):
    """Control groups that can limit processor time, as mounted.

    Attributes:
        mount: the folder of the outermost visible group.
        group: the path of the process's group below it.
        is_version_2: whether the limit is in ``cpu.max``, otherwise in ``cpu.cfs_quota_us``.
    """

    mount: Path
    group: PurePosixPath
    is_version_2: bool

    def folders(self) -> Iterator[Path]:
        """The folders of the process's group and of all that contain it."""
        for group in (self.group, *self.group.parents):
            yield self.mount / group.relative_to("/")

    def read_quota(self, folder: Path) -> float | None:
        """The quota of one group, in processors."""
        try:
            if self.is_version_2:
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota = (folder / "cpu.cfs_quota_us").read_text()
                period = (folder / "cpu.cfs_period_us").read_text()
            # Without a limit: "max" in version 2, -1 in version 1.
            processors = int(quota) / int(period)
        except (OSError, ValueError, ZeroDivisionError):
            return None
        return processors if processors > 0 else None


def _hierarchies(root: Path) -> Iterator[_Hierarchy]:
    groups = _groups(_read_lines(root / "proc/self/cgroup"))
    for line in _read_lines(root / "proc/self/mountinfo"):
        mount, _, filesystem = line.partition(" - ")
        fields, kind = mount.split(), filesystem.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        is_version_2 = kind[0] == "cgroup2"
        if not is_version_2 and not (kind[0] == "cgroup" and "cpu" in kind[2].split(",")):
            continue
        group = groups.get("" if is_version_2 else "cpu", PurePosixPath("/"))
        top, mount_point = (_unescape(field) for field in fields[3:5])
        yield _Hierarchy(root / mount_point.lstrip("/"), _below(group, top), is_version_2)


def _groups(lines: list[str]) -> dict[str, PurePosixPath]:
    """The process's group by controller; version 2 has the controller ""."""
    found = {}
    for line in lines:
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        for controller in controllers.split(","):
            found[controller] = PurePosixPath(path)
    return found


def _below(group: PurePosixPath, top: str) -> PurePosixPath:
    """The path of a group as seen from the group that is mounted; a container mounts its own."""
    try:
        inside = group.relative_to(top)
    except ValueError:
        return PurePosixPath("/")
    return PurePosixPath("/") if ".." in inside.parts else "/" / inside


def _unescape(field: str) -> str:
    """Spaces and the like stand in mountinfo as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), field)


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []


if __name__ == "__main__":
    print(available())
