"""Finds the checkpoint from which a run resumes, and restores the parts of training from it.

It is the newest checkpoint that is complete, intact and of the same model. All ranks verify it
together, each some of its files, so that they agree. A broken one is logged and renamed, and the
one before it is tried.
"""

from __future__ import annotations

import logging
import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Optional

from numpy.typing import NDArray
from typing_extensions import override

from parallel.world import World
from runtime.errors import ConfigError, DataError
from runtime.mxnet import mx
from runtime.options import option
from runtime.state import OWN, REPLICATED, SHARDED, Saved, Stateful
from training.checkpoint import files
from training.checkpoint.layout import Checkpoint
from training.config.run import AUTO, NEVER

_log = logging.getLogger(__name__)


class SavedPart(Saved):
    """One part's state in a checkpoint, for one rank."""

    def __init__(self, checkpoint: Checkpoint, part: str, rank: int, world_size: int) -> None:
        self._checkpoint = checkpoint
        self._part = part
        self._rank = rank
        self._world_size = world_size
        values = checkpoint.manifest.values.get(part, {})
        self._values: Mapping[str, Any] = values if isinstance(values, dict) else {}

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
        return self._checkpoint.own(full, self._rank, self._world_size)

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
        found = entry.shape[1:] if entry.kind == SHARDED else entry.shape
        if entry.kind != kind or found != tuple(shape):
            raise self._wrong(f"has {full!r} {entry.kind} of shape {found}, not {kind} of {shape}")
        return full

    def _wrong(self, what: str) -> DataError:
        return DataError(f"{self._checkpoint.path} {what}; it belongs to another kind of run")


class SavedRun:
    """The run to resume, for one rank."""

    def __init__(self, checkpoint: Checkpoint, world: World) -> None:
        """Args: checkpoint: an intact one; world: the ranks that resume."""
        self.path = checkpoint.path
        self._checkpoint = checkpoint
        self._world = world

    def section(self, part: str) -> SavedPart:
        """The state of one part of training."""
        return SavedPart(self._checkpoint, part, self._world.rank, self._world.size)

    def restore(self, parts: Mapping[str, Stateful]) -> None:
        """Load the state of every part.

        Raises:
            DataError: the checkpoint lacks something.
        """
        for name, part in parts.items():
            part.load_state(self.section(name))
        before, now = self._checkpoint.manifest.world_size, self._world.size
        _log.info(
            "resumed at update %d from %s%s",
            *(self._checkpoint.manifest.update, self.path),
            "" if before == now else f", written by {before} ranks and re-cut for {now}",
        )


def find(
    resume: str, models_root: Path, about: Mapping[str, Any], world: World
) -> Optional[SavedRun]:
    """Find the run to resume; all ranks call it together and get the same.

    Args:
        resume: auto, never, or the folder of a checkpoint.
        models_root: the folder of the run.
        about: this run, see ``describe``; options that have changed are logged.
        world: the ranks.

    Returns:
        The run, or None to start from the beginning.

    Raises:
        ConfigError: the checkpoint belongs to another model; with all differences.
        DataError: the checkpoint that ``resume`` names is missing or broken.
    """
    if resume == NEVER:
        return None
    root = models_root / files.FOLDER
    if world.rank == 0:
        files.recover(root)
    named = [Path(resume)] if resume != AUTO else files.candidates(root)
    for path in world.broadcast_object(named, "resume.candidates"):
        checkpoint, error = _open(path, world)
        if checkpoint is not None:
            _compare(checkpoint, about)
            return SavedRun(checkpoint, world)
        if resume != AUTO:
            raise error or DataError(f"{path} is broken, as another rank found; use another one")
        _set_aside(path, error, world)
    _log.info("no checkpoint in %s: starting anew", root)
    return None


def describe(
    configuration: Mapping[str, Any],
    *,
    num_classes: int,
    image_size: tuple[int, int],
    fixed: Sequence[str],
) -> dict[str, Any]:
    """Describe a run for its checkpoints, so that a later run can tell whether it may resume.

    Returns:
        ``identity``, which a resumed run must not change (the options ``fixed`` and the data);
        ``configuration``, all options; ``versions``.
    """
    identity = {option(name): configuration[name] for name in fixed}
    identity.update({"classes": num_classes, "image size": "x".join(map(str, image_size))})
    versions = {name: metadata.version(name) for name in ("numpy", "numba", "horovod")}
    return {
        "identity": identity,
        "configuration": dict(configuration),
        "versions": {"python": platform.python_version(), "mxnet": mx.__version__, **versions},
    }


def _open(path: Path, world: World) -> tuple[Optional[Checkpoint], Optional[DataError]]:
    """Read a checkpoint and verify some of its files; None if any rank has found it broken."""
    checkpoint, error = None, None
    try:
        checkpoint = Checkpoint(path)
        for rank in range(world.rank, checkpoint.manifest.world_size, world.size):
            checkpoint.verify(rank)
    except DataError as found:
        error = found
    broken = world.allreduce(mx.nd.array([error is not None]), "resume.broken", "max").asscalar()
    return (None if broken else checkpoint), error


def _set_aside(path: Path, error: Optional[DataError], world: World) -> None:
    if error is not None:
        _log.warning("BROKEN CHECKPOINT: %s", error)
    world.barrier()
    if world.rank == 0:
        try:
            _log.warning("renamed to %s; trying the checkpoint before it", files.set_aside(path))
        except OSError as refused:
            _log.warning("%s cannot be renamed (%s)", path, refused.strerror)


def _compare(checkpoint: Checkpoint, about: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of another model, and log the other options that have changed."""
    identity, before = about["identity"], checkpoint.manifest.about.get("identity")
    before = before if isinstance(before, dict) else {}
    names = [*identity, *(name for name in before if name not in identity)]
    differences = [
        f"{name} {before.get(name)} there and {identity.get(name)} here"
        for name in names
        if before.get(name) != identity.get(name)
    ]
    if differences:
        raise ConfigError(
            f"{checkpoint.path} belongs to another model: {', '.join(differences)}; use "
            "the same options, or another --models-root, or start anew with --resume never"
        )
    _log_changes(checkpoint.manifest.about.get("configuration"), about["configuration"])


def _log_changes(before: Any, now: Mapping[str, Any]) -> None:
    for name, value in now.items():
        if isinstance(before, dict) and name in before and before[name] != value:
            _log.info("%s was %s and is %s", option(name), before[name], value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
