"""The parts of a plan in words, for a terminal of 100 columns, and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

COMPUTED, ESTIMATED = "computed", "estimated"
JSON_VERSION = 2
"""The version of the JSON of ``--json``; raised when a name changes or goes."""
PROGRAM_BYTES = 350 * 2**20
"""Python, MXNet, Horovod and Numba before training starts, measured on a CPU."""


class Item(NamedTuple):
    """A part of the memory: a key that does not change, words, a size, and how it is known."""

    key: str
    label: str
    num_bytes: int
    basis: str


def total(items: Sequence[Item]) -> int:
    """Return the sum of the items in bytes."""
    return sum(item.num_bytes for item in items)


def lines_of_memory(items: Sequence[Item], copy: int, *, gpu: bool = False) -> list[str]:
    """Return the items of rank 0, their sum, and the copy for checkpoints, which the host has."""
    everything = total(items)
    with_copy = "copy for checkpoints, on the host" if gpu else "with the copy for checkpoints"
    return [
        "memory of rank 0" + " on a GPU" * gpu,
        *(row(item.label, item.num_bytes) + f"  {item.basis}" for item in items),
        row("everything together", everything),
        row(with_copy, copy if gpu else everything + copy),
    ]


def lines_of_collectives(sizes: dict[str, int]) -> list[str]:
    """Return the size of each collective."""
    return ["bytes per collective and update", *(row(*item) for item in sizes.items())]


def memory_as_json(items: Sequence[Item], copy: int) -> dict[str, Any]:
    """Return the items of rank 0, their sum, and the copy for checkpoints."""
    listed = [{"name": one.key, "bytes": one.num_bytes, "basis": one.basis} for one in items]
    return {"items": listed, "bytes": total(items), "checkpoint_bytes": copy}


def collectives_as_json(sizes: dict[str, int]) -> list[dict[str, Any]]:
    """Return the size of each collective."""
    return [{"name": name, "bytes": size} for name, size in sizes.items()]


def row(name: str, size: int) -> str:
    """Return a size in words and in bytes."""
    return f"  {name:<34}{readable(size):>12}  {size:>18,}"


def readable(size: float) -> str:
    """Return a size in the unit that fits."""
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        del units[0]
    return f"{value:.1f} {units[0]}"
