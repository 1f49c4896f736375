"""Finds the checkpoint from which a run resumes, and restores the parts of training from it.

It is the newest checkpoint that is complete, intact and of the same model. All ranks verify it
together, each some of its files, so that they agree. A broken one is logged and renamed, and the
one before it is tried.

Its files may be in the folders of several hosts, in any order. One of which a host of this job
has not written its part is not complete: the run was killed while it was being saved. One whose
files are on a host that does not take part is an error, since a whole one may be there.
"""

from __future__ import annotations

import logging
import math
import os
import platform
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from training.checkpoint import files, layout
from training.checkpoint.layout import Part
from training.checkpoint.reader import Checkpoint
from training.checkpoint.spread import SpreadCheckpoint
from training.checkpoint.storage import Storage
from training.config.run import AUTO, NEVER

_log = logging.getLogger(__name__)


class SavedPart(Saved):
    """One part's state in a checkpoint, for one rank."""

    def __init__(self, checkpoint: Checkpoint, part: str, world: World, run: Path) -> None:
        self._checkpoint = checkpoint
        self._part = part
        self._rank, self._world_size = world.rank, world.size
        self._run = run
        self._values = _values(checkpoint.manifest.values, part)

    @property
    @override
    def update(self) -> int:
        return self._checkpoint.manifest.update

    @property
    @override
    def run(self) -> Path:
        return self._run

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
        found = entry.shape[1:] if entry.kind == SHARDED else entry.shape
        if entry.kind != kind or found != tuple(shape):
            raise self._wrong(f"has {full!r} {entry.kind} of shape {found}, not {kind} of {shape}")
        return full

    def _wrong(self, what: str) -> DataError:
        return DataError(f"{self._checkpoint.path} {what}; it belongs to another kind of run")


class SavedRun:
    """The run to resume, for one rank."""

    def __init__(self, checkpoint: Checkpoint, world: World, run: Path) -> None:
        """Take an intact checkpoint for the run in the folder ``run``; all ranks together."""
        self.path = checkpoint.path
        self._checkpoint = checkpoint
        self._world, self._run = world, run

    @property
    def configuration(self) -> Mapping[str, Any]:
        """All options of the run that has written it; none if they are missing."""
        found = self._checkpoint.manifest.about.get("configuration")
        return found if isinstance(found, dict) else {}

    @property
    def data(self) -> Any:
        """Description of the run's images (``data.contents``); None if there is none."""
        return self._checkpoint.manifest.about.get("data")

    def section(self, part: str) -> SavedPart:
        """The state of one part of training."""
        return SavedPart(self._checkpoint, part, self._world, self._run)

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


def find(resume: str, storage: Storage, about: Mapping[str, Any]) -> Optional[SavedRun]:
    """Find the run to resume; all ranks call it together and get the same.

    Args:
        resume: auto, never, or the folder of a checkpoint.
        storage: the folder of the run.
        about: this run, see ``describe``; options that have changed are logged.

    Returns:
        The run, or None to start from the beginning.

    Raises:
        ConfigError: the checkpoint belongs to another model; with all differences.
        DataError: the checkpoint that ``resume`` names is missing or broken, or the newest one has
            files on a host that does not take part.
    """
    if resume == NEVER:
        return None
    root = storage.root / files.FOLDER
    for found in _named(Path(resume), storage) if resume != AUTO else _newest(root, storage):
        checkpoint, error = _open(found, storage)
        if checkpoint is not None:
            _compare(checkpoint, about)
            return SavedRun(checkpoint, storage.world, storage.root)
        if resume != AUTO:
            raise error or DataError(f"{resume} is broken, as another rank found; use another one")
        _set_aside(found, error, storage)
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


@dataclass(frozen=True)
class _Found:
    """A checkpoint, or what there is of one, in the folders of one or several hosts."""

    paths: Mapping[int, Path]
    """By the first rank that has each folder."""
    files_of: Mapping[int, frozenset[int]]
    """The ranks whose files are in each; empty if a manifest cannot be read."""
    age: tuple[int, int] = (0, 0)
    """Serial and update; larger for a newer one."""
    hosts: Sequence[str] = ()
    """Which host wrote the file of each rank, unless one folder had all."""

    @property
    def missing(self) -> list[int]:
        """The ranks whose files are in none of the folders."""
        present = frozenset[int]().union(*self.files_of.values())
        return [rank for rank in range(len(self.hosts)) if rank not in present]


def _newest(root: Path, storage: Storage) -> list[_Found]:
    """The checkpoints of a run, the newest first, and before them what is broken.

    Of those that a killed run has not written on all hosts, which are none, the older are removed
    and the newest renamed.

    Raises:
        DataError: the newest has files on a host that does not take part.
    """
    if storage.is_first:
        files.recover(root)
    found = _survey(files.candidates(root) if storage.is_first else [], storage)
    if not any(one.missing for one in found):
        return found
    is_newest = True
    for one in found:
        if one.missing:
            _drop_incomplete(one, storage, is_newest)
        elif one.files_of:
            is_newest = False
    storage.world.barrier()
    if storage.is_first:
        # What they replaced.
        files.recover(root)
    found = _survey(files.candidates(root) if storage.is_first else [], storage)
    return [one for one in found if not one.missing]


def _drop_incomplete(found: _Found, storage: Storage, is_newest: bool) -> None:
    """Take an incomplete checkpoint out of the way, or refuse to go on without the rest of it."""
    what = f"the checkpoint of update {found.age[1]}"
    lacking = layout.lacking(found.missing, found.hosts)
    absent = [rank for rank in found.missing if found.hosts[rank] not in storage.hosts]
    if absent and is_newest:
        hosts = ",".join(dict.fromkeys([storage.hosts[0], *found.hosts]))
        raise DataError(
            f"{what} lacks {layout.lacking(absent, found.hosts)}, no host of this run: start the "
            "run on the same hosts, or bring the files here with python -m training.checkpoint "
            f"gather -H {hosts} {shlex.quote(str(storage.root))}, or start anew with --resume never"
        )
    path = found.paths.get(storage.own)
    if absent or path is None or not storage.is_first:
        return
    if is_newest:
        _log.warning("%s is not complete: it lacks %s", what, lacking)
        _rename(path)
    else:
        files.remove(path)


def _survey(own: Sequence[tuple[Path, Optional[Part]]], storage: Storage) -> list[_Found]:
    """Join what the folders have; all ranks get the same.

    Args:
        own: in this rank's folder, if it is the first rank that has that.
        storage: all folders.
    """
    lines = [
        [str(path), (part.serial, part.update), part.key, [*part.files], part.hosts]
        if part
        else [str(path)]
        for path, part in own
    ]
    broken: list[_Found] = []
    parts: dict[tuple[int, int, str], dict[int, Any]] = {}
    for first, listed in storage.gather(lines, "resume.candidates").items():
        for path, *about in listed:
            if about:
                age, key, *rest = about
                parts.setdefault((*age, key), {})[first] = (path, *rest)
            else:
                broken.append(_Found({first: Path(path)}, {}))
    found = []
    for (serial, update, _), folders in parts.items():
        paths = {first: Path(path) for first, (path, _, _) in folders.items()}
        files_of = {first: frozenset(ranks) for first, (_, ranks, _) in folders.items()}
        hosts = next(hosts for _, _, hosts in folders.values())
        found.append(_Found(paths, files_of, (serial, update), hosts))
    # gather and scatter leave parts of the same age beside what they have made whole.
    found.sort(key=lambda one: (one.age, not one.missing), reverse=True)
    return broken + found


def _named(path: Path, storage: Storage) -> list[_Found]:
    """The checkpoint that the user has named, in the folders of the hosts that have it."""
    is_listed = storage.is_first and os.path.isdir(path)
    found = _survey([(path, files.part_in(path))] if is_listed else [], storage)
    if not found:
        raise DataError(f"{path} does not exist; name the folder of a checkpoint")
    return found[:1]


def _open(found: _Found, storage: Storage) -> tuple[Optional[Checkpoint], Optional[DataError]]:
    """Read a checkpoint and verify some of its files; None if any rank has found it broken."""
    world, path = storage.world, found.paths.get(storage.own)
    text, checkpoint, error = None, None, None
    try:
        text = layout.read_part(path).dump() if path else None
    except DataError as caught:
        error = caught
    texts = storage.gather(text, "resume.manifests")
    try:
        checkpoint = _joined(found, texts, storage)
        members = storage.members(storage.own)
        own = sorted(found.files_of.get(storage.own, ()))
        for rank in own[members.index(world.rank) :: len(members)]:
            checkpoint.verify(rank)
    except DataError as caught:
        error = error or caught
    broken = world.allreduce(mx.nd.array([error is not None]), "resume.broken", "max").asscalar()
    return (None if broken else checkpoint), error


def _joined(found: _Found, texts: Mapping[int, Optional[str]], storage: Storage) -> Checkpoint:
    """The checkpoint that the manifests of several folders describe."""
    parts = [
        layout.parse(text.encode(), f"{found.paths[first]} on {storage.hosts[first]}")
        for first, text in texts.items()
        if text is not None
    ]
    path = found.paths.get(storage.own, storage.root / files.FOLDER / files.name_of(found.age[1]))
    if not parts:
        raise DataError(f"{path} cannot be read where it is; use another one")
    manifest = layout.join(parts)
    files_of = {first: found.files_of.get(first, frozenset()) for first in texts}
    if all(len(ranks) == manifest.world_size for ranks in files_of.values()):
        return Checkpoint(path, manifest)
    return SpreadCheckpoint(path, manifest, storage, files_of)


def _set_aside(found: _Found, error: Optional[DataError], storage: Storage) -> None:
    if error is not None:
        _log.warning("BROKEN CHECKPOINT: %s", error)
    storage.world.barrier()
    path = found.paths.get(storage.own)
    if storage.is_first and path is not None:
        _rename(path)


def _rename(path: Path) -> None:
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
        f"{name} {_shown(before.get(name))} there and {_shown(identity.get(name))} here"
        for name in names
        if before.get(name) != identity.get(name)
    ]
    if differences:
        raise ConfigError(
            f"{checkpoint.path} belongs to another model: {', '.join(differences)}; use "
            "the same options, or another --models-root, or start anew with --resume never"
        )
    _log_changes(checkpoint.manifest.about.get("configuration"), about["configuration"])


def _shown(value: Any) -> Any:
    return "as it is by default" if value is None else value


def _log_changes(before: Any, now: Mapping[str, Any]) -> None:
    for name, value in now.items():
        if isinstance(before, dict) and name in before and before[name] != value:
            _log.info("%s was %s and is %s", option(name), before[name], value)


def _values(parts: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    """The values of a part; none if they are missing."""
    values = parts.get(part)
    return values if isinstance(values, dict) else {}


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
