"""The matrix tiles (AMX) of some processors, which make bfloat16 products fast.

Linux lets a process use tiles only after it has asked: the first tile instruction of one that has
not is an illegal instruction. oneDNN, the library of MXNet's products, does not ask, so it must be
told of the tiles (``DNNL_MAX_CPU_ISA``, see ``runtime.environment``) only when this module has been
granted them.
"""

from __future__ import annotations

import ctypes
import functools
import platform
from pathlib import Path

_NEEDED_FLAGS = {"amx_tile", "amx_bf16"}
# From Linux' documentation of x86 "XSTATE" features: arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA).
_ARCH_PRCTL = 158
_REQUEST_PERMISSION = 0x1023
_TILE_DATA = 18


@functools.lru_cache(maxsize=None)
def request_tiles() -> bool:
    """Ask for the tiles; returns whether this process may use them."""
    return _processor_has_tiles() and _ask_kernel() == 0


def _processor_has_tiles(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    if platform.machine() != "x86_64" or not cpuinfo.exists():
        return False
    for line in cpuinfo.read_text(encoding="utf-8").splitlines():
        name, _, flags = line.partition(":")
        if name.strip() == "flags":
            return _NEEDED_FLAGS <= set(flags.split())
    return False


def _ask_kernel() -> int:
    """The status of the system call: 0, or -1 where the kernel does not know or refuses it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return int(libc.syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA))
