"""Refuses hosts whose copies of the data differ, and runs that go on with other images.

Ranks on other data would train on other images under the same numbers, see epochs of another
length, or wait for each other forever, without an error that names the reason. A run that goes on
with other images would go on as if nothing had happened.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data import contents
from data.contents import Images, find_other_host, fingerprint
from parallel.world import World
from runtime.errors import ConfigError
from training.checkpoint.reader import SavedRun
from training.config.run import ANYWAY
from training.run_folder import gather

_log = logging.getLogger(__name__)


def check(paths: Sequence[Path], world: World) -> None:
    """Compare the files of all hosts; all ranks call it together, with the same paths.

    The first rank of each host reads them.

    Raises:
        ConfigError: a host has other files; the same on every rank.
    """
    if world.size == 1 or not paths:
        return
    own = (os.uname().nodename, fingerprint(paths)) if world.local_rank == 0 else None
    found = gather(world, own, "data.files")
    difference = find_other_host([each for each in found if each])
    if difference:
        raise ConfigError(f"{difference}; copy the data set from one host to the others")


def describe(images: Images, world: World) -> dict[str, Any]:
    """Describe the images of a run, for its checkpoints; all ranks together, rank 0 reads them."""
    own = contents.describe(images) if world.rank == 0 else None
    described: dict[str, Any] = world.broadcast_object(own, "data.contents")
    return described


def check_saved(saved: SavedRun, described: Mapping[str, Any], *, insists: bool) -> None:
    """Compare the images of a run, as ``describe`` says them, with those of its checkpoint.

    With ``insists`` other images give a warning instead of an error.

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
