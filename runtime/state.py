"""What the parts of training remember, and how they get it back.

A checkpoint does not know what a head or an optimizer is. Each part gives named arrays and small
values, and takes them back; an array is the same on all ranks, each rank's own, or rows cut over
the ranks. Another kind of training has other parts and the same checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

# The same on all ranks; each rank's own; rows cut over the ranks.
REPLICATED, OWN, SHARDED = "replicated", "own", "sharded"


class Stored(NamedTuple):
    """An array of a rank, and how it relates to those of the other ranks.

    Attributes:
        kind: "replicated", "own" or "sharded".
        array: on the host.
        start: the first row of a sharded array that this rank holds.
        total: the rows of a sharded array on all ranks.
    """

    kind: str
    array: NDArray[Any]
    start: int = 0
    total: int = 0


@dataclass(frozen=True)
class State:
    """What a part remembers after an update, in memory that does not change any more.

    Attributes:
        arrays: by name.
        values: numbers and words that JSON can hold.
    """

    arrays: Mapping[str, Stored] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)


class Saved(Protocol):
    """What a part has remembered, as one rank reads it.

    Its methods raise a ``DataError`` for what is missing or of another shape or type.
    """

    def names(self) -> list[str]:
        """The arrays of the part."""

    def replicated(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """An array that is the same on all ranks."""

    def own(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """This rank's array; the mean of all where another number of ranks has written them."""

    def pieces(
        self, name: str, start: int, stop: int, total: int, row_shape: tuple[int, ...]
    ) -> Iterator[tuple[int, NDArray[Any]]]:
        """The rows ``[start, stop)`` of an array of ``total``, with the first row of each piece."""

    def count(self, name: str) -> int:
        """A value that is a whole number and not negative."""

    def number(self, name: str) -> float:
        """A value that is a finite number."""

    def numbers(self, name: str) -> dict[str, float]:
        """A value that is a table of finite numbers."""


class Stateful(Protocol):
    """A part of training that remembers something between updates."""

    def export_state(self, update: int) -> State:
        """What it remembers after ``update`` finished updates."""

    def load_state(self, saved: Saved) -> None:
        """Remember what ``export_state`` gave, possibly on another number of ranks.

        Raises:
            DataError: something is missing, broken, or of another shape.
        """
