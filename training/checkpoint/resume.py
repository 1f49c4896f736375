"""Which checkpoint a run goes on from, and whether it fits.

The newest one that is complete and intact. All ranks check it together, each its share of the
files, since the last thing a run on many ranks needs is one of them with another opinion. A broken
one is named and set aside, and the one before has its turn.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Optional

from parallel.world import World
from runtime.errors import ConfigError, DataError
from runtime.mxnet import mx
from runtime.options import option
from runtime.state import Stateful
from training.checkpoint import files
from training.checkpoint.reader import Checkpoint, Section
from training.config.run import AUTO, NEVER

_log = logging.getLogger(__name__)


class SavedRun:
    """A run to go on from, as one rank sees it."""

    def __init__(self, checkpoint: Checkpoint, world: World) -> None:
        """Args: what was saved, and the ranks that go on."""
        self.path = checkpoint.path
        self._checkpoint = checkpoint
        self._world = world

    def section(self, part: str) -> Section:
        """What a part of training remembers."""
        return Section(self._checkpoint, part, self._world.rank, self._world.size)

    def restore(self, parts: Mapping[str, Stateful]) -> None:
        """Give every part what it remembered.

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
    """The run to go on from, the same on every rank; None to start anew.

    Args:
        resume: auto, never, or the folder of a checkpoint.
        models_root: the folder of the run.
        about: this run, see ``describe``; what has changed since the checkpoint is logged.
        world: the ranks.

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
    """What a checkpoint tells of the run that writes it.

    Args:
        configuration: all options.
        num_classes: of the data.
        image_size: height and width.
        fixed: the options that no run that goes on from it may change.

    Returns:
        ``identity``, which no run that goes on from it may change; ``configuration``; ``versions``.
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
    """Read a checkpoint and verify this rank's share of it; None if any rank found it broken."""
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
    """Refuse a checkpoint of another model, and log what else has changed."""
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
            f"{checkpoint.path} belongs to another model: {', '.join(differences)}; go on with "
            "the same, or take another --models-root, or start anew with --resume never"
        )
    _log_changes(checkpoint.manifest.about.get("configuration"), about["configuration"])


def _log_changes(before: Any, now: Mapping[str, Any]) -> None:
    for name, value in now.items():
        if isinstance(before, dict) and name in before and before[name] != value:
            _log.info("%s was %s and is %s", option(name), before[name], value)
