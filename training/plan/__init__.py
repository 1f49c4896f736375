"""Plans of runs before they begin: memory of a rank, and the bytes of each collective.

A plan is one table: as JSON for programs, or its rows for a terminal of 100 columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

COMPUTED, ESTIMATED = "computed", "estimated"
PROGRAM_BYTES = 350 * 2**20
"""Python, MXNet, Horovod and Numba before training starts, measured on a CPU."""
_VERSION = 2


class Item(NamedTuple):
    """A part of the memory of a rank: its name, its size, and how that is known."""

    name: str
    bytes: int
    basis: str


def render(
    facts: Mapping[str, Any],
    memory: Sequence[Item],
    checkpoint: int,
    collectives: Mapping[str, int],
    *,
    as_json: bool,
) -> str:
    """Return a plan as text or JSON; docs/scaling.md has its names.

    Args:
        facts: numbers and words; the text leaves out those that are None.
        memory: the items of rank 0.
        checkpoint: bytes of the copy for checkpoints.
        collectives: bytes of each collective.
        as_json: True for programs.
    """
    if as_json:
        items = [item._asdict() for item in memory]
        held = {"items": items, "bytes": total(memory), "checkpoint_bytes": checkpoint}
        sizes = [{"name": name, "bytes": size} for name, size in collectives.items()]
        plan = {"version": _VERSION, **facts, "memory": held, "collectives": sizes}
        return json.dumps(plan, indent=1)
    lines = [_fact(*fact) for fact in facts.items() if fact[1] is not None]
    lines += ["", "memory of rank 0"]
    lines += [f"{row(item.name, item.bytes)}  {item.basis}" for item in memory]
    lines += [row("together", total(memory)), row("checkpoint_bytes, on the host", checkpoint)]
    lines += ["", "bytes per collective and update"]
    return "\n".join([*lines, *(row(*item) for item in collectives.items())])


def total(items: Sequence[Item]) -> int:
    """Return the sum of the items in bytes."""
    return sum(item.bytes for item in items)


def row(name: str, size: float) -> str:
    """Return the line of a size, in the unit that fits and in bytes."""
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        del units[0]
    return f"  {name:<34}{value:>8.1f} {units[0]:<3} {size:>18,}"


def _fact(name: str, value: Any) -> str:
    if isinstance(value, list):
        return f"{name}: {'; '.join(value) or 'nothing'}"
    return f"{name}: {value:,}" if isinstance(value, int) else f"{name}: {value}"
