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
from pathlib import Path
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
    return _described("model name", cpuinfo) or platform.machine()


@functools.lru_cache(maxsize=None)
def request_tiles() -> bool:
    """Request the matrix tiles (AMX), which make bfloat16 products fast; returns success.

    In a process that Linux has not granted the tiles, the first tile instruction is an illegal
    instruction. oneDNN, which computes MXNet's products, makes no request of its own and must be
    allowed to use tiles (``DNNL_MAX_CPU_ISA``) only after this function has returned True.
    """
    if not _AMX_FLAGS <= _flags():
        return False
    syscall = ctypes.CDLL(None).syscall
    return bool(syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0)


def has_avx512() -> bool:
    """Return whether oneDNN finds registers of 512 bits, that is of 16 float32 numbers."""
    return _AVX512_FLAGS <= _flags()


def has_bfloat16_vectors() -> bool:
    """Return whether those registers multiply bfloat16 numbers, twice as many as float32."""
    return _AVX512_FLAGS | {_BFLOAT16_FLAG} <= _flags()


def cgroup_quota(groups: Path = Path("/sys/fs/cgroup")) -> Optional[float]:
    """Return the quota of the container, in processors; None without one.

    A container sees its own control group as the outermost. Version 1 has two files, version 2 one.
    """
    for names in (("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"), ("cpu.max",)):
        words = " ".join(line for name in names for line in _read_lines(groups / name)).split()
        # -1 in version 1 and "max" in version 2 stand for no limit.
        if len(words) == 2 and all(map(str.isdecimal, words)):
            return int(words[0]) / int(words[1])
    return None


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []


def _flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> set[str]:
    """Return the names of what the first processor has; empty on others than x86."""
    return set(_described("flags", cpuinfo).split())


def _described(what: str, cpuinfo: Path) -> str:
    """Return the value of a field of the first processor in cpuinfo; empty without it."""
    lines = (line.partition(":") for line in _read_lines(cpuinfo))
    return next((value.strip() for name, _, value in lines if name.strip() == what), "")


if __name__ == "__main__":
    print(available())
