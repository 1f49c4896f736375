"""The state of a run in a checkpoint, as its parts read it; see ``runtime.state``."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from typing_extensions import override

from parallel.world import World
from runtime.errors import DataError
from runtime.state import OWN, REPLICATED, SHARDED, Saved, Stateful
from training.checkpoint import files
from training.checkpoint.reader import Checkpoint

_log = logging.getLogger(__name__)


class SavedRun:
    """The run to resume, for one rank.

    Attributes:
        checkpoint: an intact one.
        run: the folder of the run that resumes.
        values: of all parts, by name.
    """

    def __init__(self, checkpoint: Checkpoint, world: World, run: Path) -> None:
        """Take a checkpoint; all ranks together."""
        self.path = checkpoint.path
        self.checkpoint, self.world, self.run = checkpoint, world, run
        # Those of rank 0: a part on another host has what its first rank knew.
        self.values = world.broadcast_object(checkpoint.manifest.values, "resume.values")

    @property
    def configuration(self) -> Mapping[str, Any]:
        """All options of the run that has written it; none if they are missing."""
        found = self.checkpoint.manifest.about.get("configuration")
        return found if isinstance(found, dict) else {}

    @property
    def data(self) -> Any:
        """Description of the run's images (``data.contents``); None if there is none."""
        return self.checkpoint.manifest.about.get("data")

    def section(self, part: str) -> SavedPart:
        """The state of one part of training."""
        return SavedPart(self, part)

    def restore(self, parts: Mapping[str, Stateful]) -> None:
        """Load the state of every part.

        Raises:
            DataError: the checkpoint lacks something.
        """
        for name, part in parts.items():
            part.load_state(self.section(name))
        before, now = self.checkpoint.manifest.world_size, self.world.size
        _log.info(
            "resumed at update %d from %s%s",
            *(self.checkpoint.manifest.update, self.path),
            "" if before == now else f", written by {before} ranks and re-cut for {now}",
        )


class SavedPart(Saved):
    """One part's state in a checkpoint, for one rank."""

    def __init__(self, of: SavedRun, part: str) -> None:
        """Take the state of ``part`` of a run."""
        self._of, self._part = of, part
        self._checkpoint = of.checkpoint
        self._values = _values(of.values, part)

    @property
    @override
    def update(self) -> int:
        return self._checkpoint.manifest.update

    @property
    @override
    def run(self) -> Path:
        return self._of.run

    @override
    def values_in(self, run: Path) -> list[Mapping[str, Any]]:
        found = [part for _, part in files.candidates(run / files.FOLDER) if part]
        return [_values(part.values, self._part) for part in found]

    @override
    def names(self) -> list[str]:
        prefix = f"{self._part}/"
        return [name[len(prefix) :] for name in self._checkpoint.names(prefix)]

    @override
    def replicated(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        return self._checkpoint.replicated(self._check(name, REPLICATED, shape))

    @override
    def own(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        full = self._check(name, OWN, shape)
        return self._checkpoint.own(full, self._of.world.rank, self._of.world.size)

    @override
    def pieces(
        self, name: str, start: int, stop: int, total: int, row_shape: tuple[int, ...]
    ) -> Iterator[tuple[int, NDArray[Any]]]:
        full = self._check(name, SHARDED, row_shape)
        rows = self._checkpoint.entry(full).total
        if rows != total:
            raise self._wrong(f"has {rows} rows of {full!r}, not {total}")
        return self._checkpoint.pieces(full, start, stop)

    @override
    def has(self, name: str) -> bool:
        return name in self._values

    @override
    def count(self, name: str) -> int:
        value = self._values.get(name)
        if type(value) is not int or value < 0:
            raise self._wrong(f"has no count {self._part}/{name}")
        return value

    @override
    def number(self, name: str) -> float:
        value = self._values.get(name)
        if not _is_number(value):
            raise self._wrong(f"has no number {self._part}/{name}")
        return float(value)  # type: ignore[arg-type]

    @override
    def numbers(self, name: str) -> dict[str, float]:
        table = self._values.get(name)
        if not isinstance(table, dict) or not all(map(_is_number, table.values())):
            raise self._wrong(f"has no numbers {self._part}/{name}")
        return {str(key): float(value) for key, value in table.items()}

    def _check(self, name: str, kind: str, shape: tuple[int, ...]) -> str:
        """The full name of an array of this kind and shape (of a row, if it is sharded)."""
        full = f"{self._part}/{name}"
        entry = self._checkpoint.entry(full)
        if entry.kind != kind or entry.inner != tuple(shape):
            raise self._wrong(
                f"has {full!r} {entry.kind} of shape {entry.inner}, not {kind} of {shape}"
            )
        return full

    def _wrong(self, what: str) -> DataError:
        return DataError(f"{self._checkpoint.path} {what}; it belongs to another kind of run")


def _values(parts: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    """The values of a part; none if they are missing."""
    values = parts.get(part)
    return values if isinstance(values, dict) else {}


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
