"""What the parts of a run (backbone, head, optimizer, ...) keep between updates, for checkpoints.

A checkpoint does not know what a head or an optimizer is. Each part exports named arrays and small
values, and loads them again, possibly on another number of ranks. So another kind of training has
other parts and the same checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Optional, Protocol

from numpy.typing import NDArray

# The same on all ranks; each rank's own; rows divided among the ranks.
REPLICATED, OWN, SHARDED = "replicated", "own", "sharded"


class Stored(NamedTuple):
    """An array of a rank, and how it relates to those of the other ranks.

    Attributes:
        kind: ``REPLICATED``, ``OWN`` or ``SHARDED``.
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
    """The state of a part after an update, in memory that no later update changes.

    Attributes:
        arrays: by name.
        values: numbers and words that JSON can hold.
        when_saved: called when a checkpoint of it exists on all ranks, with the updates of all
            checkpoints that exist.
    """

    arrays: Mapping[str, Stored] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    when_saved: Optional[Callable[[Sequence[int]], None]] = None


class Saved(Protocol):
    """The saved state of a part, as one rank reads it.

    Its methods raise ``DataError`` for an array or value that is missing or of another shape or
    type.
    """

    @property
    def update(self) -> int:
        """How many updates were finished."""

    @property
    def run(self) -> Path:
        """The folder of the run that goes on, which may be another than the checkpoint's."""

    def values_in(self, run: Path) -> list[Mapping[str, Any]]:
        """The values of this part in all checkpoints in the folder of a run."""

    def names(self) -> list[str]:
        """The names of the arrays."""

    def replicated(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """An array that is the same on all ranks."""

    def own(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """This rank's array; the mean of all if another number of ranks has written them."""

    def pieces(
        self, name: str, start: int, stop: int, total: int, row_shape: tuple[int, ...]
    ) -> Iterator[tuple[int, NDArray[Any]]]:
        """The rows ``[start, stop)`` of an array of ``total``, with the first row of each piece."""

    def has(self, name: str) -> bool:
        """True if there is a value of this name."""

    def count(self, name: str) -> int:
        """A value that is a whole number and not negative."""

    def number(self, name: str) -> float:
        """A value that is a finite number."""

    def numbers(self, name: str) -> dict[str, float]:
        """A value that is a table of finite numbers."""


class Stateful(Protocol):
    """A part of a run that has state between updates."""

    def export_state(self, update: int) -> State:
        """Return the state after ``update`` finished updates."""

    def load_state(self, saved: Saved) -> None:
        """Restore what ``export_state`` returned, possibly on another number of ranks.

        Raises:
            DataError: something is missing, broken, or of another shape.
        """

    def begin(self, run: Path) -> None:
        """Begin a run that goes on from no checkpoint; instead of ``load_state``.

        Args:
            run: its folder, which names it.

        Raises:
            ConfigError: something outside of checkpoints belongs to another run.
        """
        return
