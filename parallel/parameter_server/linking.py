"""Replacement of functions that a loaded shared library imports.

A compiled library whose sockets no option reaches can still be given other functions to open them
with: the dynamic linker keeps the address of every imported function in a slot of the library, and
its code jumps to the address in the slot. Only calls of this one library change.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Mapping
from typing import Any

_RTLD_DI_LINKMAP = 2  # dlfcn.h
# elf.h: tags of the dynamic section.
_NULL, _PLTRELSZ, _STRTAB, _SYMTAB, _JMPREL = 0, 2, 5, 6, 23
_DYNAMIC_BYTES, _SYMBOL_BYTES = 16, 24
_RELOCATION = struct.Struct("QQq")  # Elf64_Rela: offset, symbol << 32 | type, addend
_READ_AND_WRITE = mmap.PROT_READ | mmap.PROT_WRITE

_kept: list[Any] = []
"""Functions of Python that libraries call; an unreferenced one would be freed."""


class _LinkMap(ctypes.Structure):
    """The beginning of glibc's record of a loaded library, link.h."""

    _fields_ = [  # noqa: RUF012 (ctypes reads it)
        ("base", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("dynamic", ctypes.c_size_t),
    ]


def replace_imports(library: ctypes.CDLL, functions: Mapping[str, Any]) -> None:
    """Have a library call these functions, until the process ends, for those that it imports.

    Args:
        library: a loaded one, for 64-bit Linux with glibc.
        functions: ctypes' callbacks by the names of the imported functions.

    Raises:
        OSError: it does not import one of them, or is linked in another way.
    """
    slots = _slots(library)
    for name, function in functions.items():
        if name not in slots:
            raise OSError(f"{library._name} does not import {name}()")
        _kept.append(function)
        _make_writable(slots[name])
        address = ctypes.cast(function, ctypes.c_void_p).value
        ctypes.c_void_p.from_address(slots[name]).value = address


def _slots(library: ctypes.CDLL) -> dict[str, int]:
    """Return the address of the slot of every imported function, by name."""
    record = ctypes.POINTER(_LinkMap)()
    libc = ctypes.CDLL(None)
    if libc.dlinfo(ctypes.c_void_p(library._handle), _RTLD_DI_LINKMAP, ctypes.byref(record)):
        raise OSError(f"the dynamic linker does not know {library._name}")
    table: dict[int, int] = {}
    address = record.contents.dynamic
    while _NULL not in table:
        tag, value = struct.unpack("qQ", ctypes.string_at(address, _DYNAMIC_BYTES))
        table[tag] = value
        address += _DYNAMIC_BYTES
    slots = {}
    relocations = ctypes.string_at(table[_JMPREL], table[_PLTRELSZ])
    for offset, info, _ in _RELOCATION.iter_unpack(relocations):
        symbol = table[_SYMTAB] + (info >> 32) * _SYMBOL_BYTES
        name = ctypes.string_at(table[_STRTAB] + ctypes.c_uint32.from_address(symbol).value)
        slots[name.decode()] = record.contents.base + offset
    return slots


def _make_writable(slot: int) -> None:
    """Allow writes to a slot, which some libraries forbid once they are loaded."""
    page = slot - slot % mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), _READ_AND_WRITE):
        raise OSError(ctypes.get_errno(), "mprotect")
