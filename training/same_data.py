"""Refuses hosts whose copies of the data differ.

Ranks on other data would train on other images under the same numbers, see epochs of another
length, or wait for each other forever, without an error that names the reason.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from data.contents import find_other_host, fingerprint
from parallel.world import World
from runtime.errors import ConfigError
from training.run_folder import gather


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
