"""What the parts of training remember, and how they get it back.

A checkpoint does not know what a head or an optimizer is. Each part gives named arrays and small
values, and takes them back from its section of a checkpoint; an array is the same on all ranks,
each rank's own, or rows cut over the ranks. Another kind of training has other parts and the same
checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from runtime.errors import DataError
from training.checkpoint_files import Checkpoint
from training.checkpoint_manifest import OWN, REPLICATED, SHARDED, Stored


@dataclass(frozen=True)
class State:
    """What a part remembers after an update, in memory that nobody changes any more.

    Attributes:
        arrays: by name.
        values: numbers and words that JSON can hold.
    """

    arrays: Mapping[str, Stored] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)


class Stateful(Protocol):
    """A part of training that remembers something between updates."""

    def export_state(self, update: int) -> State:
        """What it remembers after ``update`` finished updates."""

    def load_state(self, saved: Section) -> None:
        """Remember what ``export_state`` gave, possibly on another number of ranks.

        Raises:
            DataError: something is missing, broken, or of another shape.
        """


class Section:
    """One part's share of a checkpoint, as one rank reads it.

    Its methods raise a ``DataError`` for what is missing or of another shape or type.
    """

    def __init__(self, checkpoint: Checkpoint, part: str, rank: int, world_size: int) -> None:
        """Args: the checkpoint, the name of the part, and who reads."""
        self._checkpoint = checkpoint
        self._part = part
        self._rank = rank
        self._world_size = world_size
        values = checkpoint.manifest.values.get(part, {})
        self._values: Mapping[str, Any] = values if isinstance(values, dict) else {}

    def names(self) -> list[str]:
        """The arrays of this part."""
        prefix = f"{self._part}/"
        return [name[len(prefix) :] for name in self._checkpoint.names(prefix)]

    def replicated(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """An array that is the same on all ranks."""
        full = self._check(name, REPLICATED, shape)
        return self._checkpoint.replicated(full)

    def own(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """This rank's array; the mean of all where another number of ranks has written them."""
        full = self._check(name, OWN, shape)
        return self._checkpoint.own(full, self._rank, self._world_size)

    def pieces(
        self, name: str, start: int, stop: int, total: int, row_shape: tuple[int, ...]
    ) -> Iterator[tuple[int, NDArray[Any]]]:
        """The rows ``[start, stop)`` of an array of ``total``; see ``Checkpoint.pieces``."""
        full = self._check(name, SHARDED, row_shape)
        rows = self._checkpoint.entry(full).total
        if rows != total:
            raise self._wrong(f"has {rows} rows of {full!r}, not {total}")
        return self._checkpoint.pieces(full, start, stop)

    def count(self, name: str) -> int:
        """A value that is a whole number and not negative."""
        value = self._values.get(name)
        if type(value) is not int or value < 0:
            raise self._wrong(f"has no count {self._part}/{name}")
        return value

    def number(self, name: str) -> float:
        """A value that is a finite number."""
        value = self._values.get(name)
        if not _is_number(value):
            raise self._wrong(f"has no number {self._part}/{name}")
        return float(value)  # type: ignore[arg-type]

    def numbers(self, name: str) -> dict[str, float]:
        """A value that is a table of finite numbers."""
        table = self._values.get(name)
        if not isinstance(table, dict) or not all(map(_is_number, table.values())):
            raise self._wrong(f"has no numbers {self._part}/{name}")
        return {str(key): float(value) for key, value in table.items()}

    def _check(self, name: str, kind: str, shape: tuple[int, ...]) -> str:
        """Refuse an array of another kind or shape; a sharded one's is that of a row."""
        full = f"{self._part}/{name}"
        entry = self._checkpoint.entry(full)
        found = entry.shape[1:] if entry.kind == SHARDED else entry.shape
        if entry.kind != kind or found != tuple(shape):
            raise self._wrong(f"has {full!r} {entry.kind} of shape {found}, not {kind} of {shape}")
        return full

    def _wrong(self, what: str) -> DataError:
        return DataError(f"{self._checkpoint.path} {what}; it belongs to another kind of run")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
