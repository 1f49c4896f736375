"""Finds the checkpoint from which a run resumes.

It is the newest checkpoint that is complete, intact and of the same model. All ranks verify it
together, each some of its files, so that they agree. A broken one is logged and renamed, and the
one before it is tried.

Its files may be in the folders of several hosts. A rank needs its own file, or those of all ranks
if another number of them resumes, in the folder of its host: the run ends with the command that
copies what is on another host. A checkpoint of which a host of this job has not written its part is
not complete: the run was killed while it was being saved.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

from runtime.errors import ConfigError, DataError
from runtime.mxnet import mx
from runtime.options import option
from training.checkpoint import files, layout
from training.checkpoint.layout import Part, RankFile
from training.checkpoint.reader import Checkpoint, SavedRun
from training.config.options import ANYWAY, AUTO, NEVER
from training.run_folder import Storage, explained

_log = logging.getLogger(__name__)


def find(resume: str, storage: Storage, about: Mapping[str, Any]) -> Optional[SavedRun]:
    """Find the run to resume; all ranks call it together and get the same.

    Args:
        resume: auto, never, or the folder of a checkpoint, which then has to be intact.
        storage: the folder of the run.
        about: the ``identity`` of this run, which has to be that of the checkpoint, and its
            ``configuration``, whose changes are logged.

    Raises:
        ConfigError: the checkpoint belongs to another model; with all differences.
        DataError: ``resume`` is broken, or a file is not in the folder of a rank that needs it.
    """
    if resume == NEVER:
        return None
    root, is_named = storage.root / files.FOLDER, resume != AUTO
    for found in _survey(Path(resume) if is_named else None, storage):
        if not is_named and found.is_unfinished(storage):
            if storage.is_first:
                lacking = layout.lacking(found.whole.missing, found.whole.hosts)
                _log.warning("%s is not complete: it lacks %s", found.title, lacking)
            _rename(found, storage)
            continue
        if found.lacks(storage):
            raise _refusal(found, storage)
        checkpoint, error = _open(found, storage)
        if checkpoint is not None:
            saved = SavedRun(checkpoint, storage.world, storage.root)
            _compare(saved, about)
            return saved
        if is_named:
            raise error or DataError(f"{resume} is broken, as another rank found; use another one")
        if error is not None:
            _log.warning("BROKEN CHECKPOINT: %s", error)
        # Others may still be reading.
        storage.world.barrier()
        _rename(found, storage)
    if is_named:
        raise DataError(f"{resume} does not exist; name the folder of a checkpoint")
    _log.info("no checkpoint in %s: starting anew", root)
    return None


def check_images(saved: SavedRun, described: Mapping[str, Any], *, insists: bool) -> None:
    """Compare the images of a run, as ``contents.describe`` says them, with its checkpoint's.

    A run that goes on with other images would go on as if nothing had happened. With ``insists``
    others give a warning.

    Raises:
        ConfigError: the images are others; the same on every rank.
    """
    found = saved.checkpoint.manifest.about.get("data")
    before = found if isinstance(found, dict) else {}
    if found is None or described.items() <= before.items():
        return
    if insists:
        _log.warning(
            "training goes on with other images than %s was trained on; in the rest of this epoch "
            "some may come twice, and some not at all",
            saved.path,
        )
        return
    raise ConfigError(
        f"{saved.path} was trained on other images: {before.get('images')} images there, "
        f"{described['images']} here; give the data of that run, or another --models-root, or go "
        f"on with these images by --resume {ANYWAY}"
    )


class _Found:
    """A checkpoint, or what there is of one, in the folders of one or several hosts.

    Attributes:
        paths: where it is, by the first rank that has the folder.
        parts: what is there, without the tables of arrays; of no ranks if it cannot be read.
        whole: all parts together.
    """

    def __init__(self, places: Mapping[int, tuple[Path, Part]]) -> None:
        self.paths = {first: path for first, (path, _) in places.items()}
        self.parts = {first: part for first, (_, part) in places.items()}
        files = {rank: file for part in self.parts.values() for rank, file in part.files.items()}
        self.whole = replace(next(iter(self.parts.values())), files=files)
        self.title = f"the checkpoint of update {self.whole.update}"

    def is_unfinished(self, storage: Storage) -> bool:
        """True if the hosts of this run have not written all of it: the run was killed."""
        hosts = {self.whole.hosts[rank] for rank in self.whole.missing}
        return bool(hosts) and hosts <= {*storage.hosts}

    def lacks(self, storage: Storage) -> dict[int, list[int]]:
        """Return the files to copy into each folder of the run that lacks some, by its first."""
        found = {}
        is_same = storage.world.size == self.whole.world_size
        for first in sorted(set(storage.firsts)):
            here = self.parts[first].files if first in self.parts else ()
            needed = storage.members(first) if is_same else range(self.whole.world_size)
            if lacking := [rank for rank in needed if rank not in here]:
                found[first] = lacking
        return found


def _refusal(found: _Found, storage: Storage) -> DataError:
    """Name what folders lack, and the command that brings it there."""
    hosts, any_path = dict(enumerate(found.whole.hosts)), next(iter(found.paths.values()))
    for first, part in found.parts.items():
        hosts.update(dict.fromkeys(part.files, storage.hosts[first]))
    remedies = [
        f"{storage.hosts[first]} lacks {layout.lacking(ranks, hosts)}, type there: "
        + layout.rsync([hosts[rank] for rank in ranks], found.paths.get(first, any_path))
        for first, ranks in found.lacks(storage).items()
    ]
    return DataError(
        f"{found.title} is on other hosts than this run: {'; '.join(remedies)}; or "
        "start as many ranks on the same hosts in the same order, or anew with --resume never"
    )


def _survey(named: Optional[Path], storage: Storage) -> list[_Found]:
    """Join what the folders have, broken ones first, then the newest; all ranks get the same.

    The first rank of each folder looks there for the checkpoints of the run, or for the one that
    the user has ``named``.
    """
    own: list[tuple[Path, Part]] = []
    if storage.is_first and named is None:
        own = files.candidates(storage.root / files.FOLDER)
    elif storage.is_first and named is not None and named.is_dir():
        own = [(named, files.part_in(named))]
    joined: dict[Any, dict[int, tuple[Path, Part]]] = {}
    summaries = [(path, _summary(part)) for path, part in own]
    for first, listed in storage.gather(summaries, "resume.candidates").items():
        for path, part in listed:
            key = (part.serial, part.update, part.save) if part.world_size else (first, path)
            joined.setdefault(key, {})[first] = path, part
    return sorted(map(_Found, joined.values()), key=lambda one: one.whole.age, reverse=True)


def _summary(part: Part) -> Part:
    return replace(part, files=dict.fromkeys(part.files, RankFile(0, ())), values={}, about={})


def _open(found: _Found, storage: Storage) -> tuple[Optional[Checkpoint], Optional[DataError]]:
    """Read a checkpoint and verify some of its files; None if any rank has found it broken."""
    world, here = storage.world, found.paths.get(storage.own)
    checkpoint, error = None, None
    try:
        if here is not None:
            checkpoint = Checkpoint(here)
            members = storage.members(storage.own)
            own = sorted(checkpoint.manifest.files)
            for rank in own[members.index(world.rank) :: len(members)]:
                checkpoint.verify(rank)
    except DataError as caught:
        error = caught
    broken = world.allreduce(mx.nd.array([error is not None]), "resume.broken", "max").asscalar()
    return (None if broken else checkpoint), error


def _rename(found: _Found, storage: Storage) -> None:
    """Put aside what each folder has of a checkpoint; the first rank of the folder does it."""
    here = found.paths.get(storage.world.rank)
    if here is not None:
        with explained(storage.root):
            aside = files.set_aside(here)
        _log.warning("renamed to %s; trying the checkpoint before it", aside)


def _compare(saved: SavedRun, about: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of another model, and log the other options that have changed."""
    identity, before = about["identity"], saved.checkpoint.manifest.about.get("identity")
    before = before if isinstance(before, dict) else {}
    differences = [
        f"{name} {before.get(name)} there and {identity.get(name)} here"
        for name in {**identity, **before}
        if before.get(name) != identity.get(name)
    ]
    if differences:
        raise ConfigError(
            f"{saved.path} belongs to another model: {', '.join(differences)}; use "
            "the same options, or another --models-root, or start anew with --resume never"
        )
    options = saved.configuration
    for name, value in about["configuration"].items():
        if name in options and options[name] != value:
            _log.info("%s was %s and is %s", option(name), options[name], value)
