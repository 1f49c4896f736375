"""A plan in words, for a terminal of 100 columns, and as JSON, for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

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


@dataclass(frozen=True)
class Plan:
    """The plan of a run; docs/scaling.md has the names of its JSON."""

    facts: Mapping[str, Any]
    """Numbers by their names in JSON, among them the ``device``."""
    memory: Sequence[Item]
    """The items of rank 0."""
    checkpoint: int
    """Bytes of the copy for checkpoints, which is on the host."""
    collectives: Mapping[str, int]
    """Bytes of each collective."""
    before: Sequence[Sequence[str]]
    """Sections of lines before memory and collectives."""
    after: Sequence[Sequence[str]] = ()
    """Those after them."""

    def as_text(self) -> str:
        """Return the plan for a reader."""
        rows = [row(*item) for item in self.collectives.items()]
        collectives = ["bytes per collective and update", *rows]
        sections = [*self.before, self._memory_lines(), collectives, *self.after]
        return "\n\n".join("\n".join(section) for section in sections)

    def as_json(self) -> str:
        """Return the plan for a program: one table."""
        items = [
            {"name": item.key, "bytes": item.num_bytes, "basis": item.basis} for item in self.memory
        ]
        memory = {"items": items, "bytes": total(self.memory), "checkpoint_bytes": self.checkpoint}
        sizes = [{"name": name, "bytes": size} for name, size in self.collectives.items()]
        content = {"version": JSON_VERSION, **self.facts, "memory": memory, "collectives": sizes}
        return json.dumps(content, indent=1)

    def _memory_lines(self) -> list[str]:
        gpu, everything = self.facts["device"] == "gpu", total(self.memory)
        with_copy = "copy for checkpoints, on the host" if gpu else "with the copy for checkpoints"
        return [
            "memory of rank 0" + " on a GPU" * gpu,
            *(row(item.label, item.num_bytes) + f"  {item.basis}" for item in self.memory),
            row("everything together", everything),
            row(with_copy, self.checkpoint if gpu else everything + self.checkpoint),
        ]


def lines_of_length(
    batch_size: int, ranks: int, per_epoch: Optional[int], updates: Optional[int]
) -> list[str]:
    """Return the lines of the global batch and of the length of a run, if that is known."""
    batch = f"global batch {batch_size * ranks:,} ({ranks:,} ranks x {batch_size:,} images)"
    if per_epoch is None or updates is None:
        return [batch, "updates per epoch unknown: add --num-images to have them counted"]
    epochs = f" ({updates / per_epoch:.1f} epochs)" if per_epoch else ""
    return [batch, f"{per_epoch:,} updates per epoch, {updates:,} in all{epochs}"]


def total(items: Sequence[Item]) -> int:
    """Return the sum of the items in bytes."""
    return sum(item.num_bytes for item in items)


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
