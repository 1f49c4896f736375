"""The processors of this process: how many threads it may keep busy, and what they multiply fast.

Not all processors of the machine count: the system can bind a process to some of them (``taskset``,
batch systems), and a container can have a quota of processor time (``docker --cpus=2``, Kubernetes'
limits) that leaves all processors visible. Threads beyond the quota only wait for each other,
because the kernel stops all of them for the rest of each period. Only the standard library is
imported: the installer runs ``python -m runtime.processors`` before it has installed any package.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Optional

_AMX_FLAGS = {"amx_tile", "amx_bf16"}
# What oneDNN asks for before it uses registers of 512 bits (``avx512_core``).
_AVX512_FLAGS = {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
_BFLOAT16_FLAG = "avx512_bf16"
# From Linux' documentation of x86 "XSTATE" features: arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA).
_ARCH_PRCTL = 158
_REQUEST_PERMISSION = 0x1023
_TILE_DATA = 18


def available() -> int:
    """Return the number of processors, at least 1; part of a processor counts as one."""
    bound = len(os.sched_getaffinity(0))
    quota = cgroup_quota()
    return bound if quota is None else max(1, min(bound, math.ceil(quota)))


def model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name of the first processor, or its architecture if the system has no name."""
    lines = (line.partition(":") for line in _read_lines(cpuinfo))
    names = (value.strip() for name, _, value in lines if name.strip() == "model name")
    return next(names, platform.machine())


@functools.lru_cache(maxsize=None)
def request_tiles() -> bool:
    """Request the matrix tiles (AMX), which make bfloat16 products fast; returns success.

    In a process that Linux has not granted the tiles, the first tile instruction is an illegal
    instruction. oneDNN, which computes MXNet's products, makes no request of its own and must be
    allowed to use tiles (``DNNL_MAX_CPU_ISA``) only after this function has returned True.
    """
    return _has_tiles() and _request_tiles_from_kernel() == 0


def has_avx512() -> bool:
    """Return whether oneDNN finds registers of 512 bits, that is of 16 float32 numbers."""
    return _AVX512_FLAGS <= _flags()


def has_bfloat16_vectors() -> bool:
    """Return whether those registers multiply bfloat16 numbers, twice as many as float32."""
    return _AVX512_FLAGS | {_BFLOAT16_FLAG} <= _flags()


def cgroup_quota(root: Path = Path("/")) -> Optional[float]:
    """Return the smallest quota of the process's control groups, in processors; None without one.

    In both versions of control groups, it reads the group of the process and all visible groups
    that contain it.

    Args:
        root: where ``proc`` and the mount points are.
    """
    quotas = [_read_quota(folder, version) for folder, version in _group_folders(root)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _read_quota(folder: Path, version: int) -> Optional[float]:
    try:
        if version == 2:
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        # Without a limit: "max" in version 2, -1 in version 1.
        processors = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
    return processors if processors > 0 else None


def _group_folders(root: Path) -> Iterator[tuple[Path, int]]:
    """The folders that can limit the process's processor time, with their control-group version."""
    groups = _groups_by_controller(_read_lines(root / "proc/self/cgroup"))
    for line in _read_lines(root / "proc/self/mountinfo"):
        mount, _, filesystem = line.partition(" - ")
        fields, kind = mount.split(), filesystem.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        version = 2 if kind[0] == "cgroup2" else 1
        if version == 1 and not (kind[0] == "cgroup" and "cpu" in kind[2].split(",")):
            continue
        mounted_group, mount_point = (_unescape(field) for field in fields[3:5])
        group = groups.get("" if version == 2 else "cpu", PurePosixPath("/"))
        group = _below(group, mounted_group)
        for folder in (group, *group.parents):
            yield root / mount_point.lstrip("/") / folder.relative_to("/"), version


def _groups_by_controller(lines: list[str]) -> dict[str, PurePosixPath]:
    """The process's group of each controller; in version 2 the controller is ""."""
    groups = {}
    for line in lines:
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        for controller in controllers.split(","):
            groups[controller] = PurePosixPath(path)
    return groups


def _below(group: PurePosixPath, mounted_group: str) -> PurePosixPath:
    """The path of a group below the mounted group, which in a container is not the root group."""
    try:
        path = group.relative_to(mounted_group)
    except ValueError:
        return PurePosixPath("/")
    return PurePosixPath("/") if ".." in path.parts else "/" / path


def _unescape(field: str) -> str:
    """Decode mountinfo's three octal digits behind a backslash, which stand for a space."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), field)


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []


def _has_tiles(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    return _AMX_FLAGS <= _flags(cpuinfo)


def _flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> set[str]:
    """The names of what the first processor has; empty on others than x86."""
    if platform.machine() != "x86_64":
        return set()
    lines = (line.partition(":") for line in _read_lines(cpuinfo))
    return set(next((flags for name, _, flags in lines if name.strip() == "flags"), "").split())


def _request_tiles_from_kernel() -> int:
    """The status of the system call: 0, or -1 if the kernel does not know or refuses it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return int(libc.syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA))


if __name__ == "__main__":
    print(available())
