"""Refuses hosts whose copies of the data differ, before the first update.

Ranks on other data would train on other images under the same numbers, see epochs of another
length, or wait for each other forever, without an error that names the reason.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data.fingerprint import find_difference, fingerprint
from parallel.world import World
from runtime.errors import ConfigError
from runtime.mxnet import mx


def check(paths: Sequence[Path], world: World) -> None:
    """Compare the files of all hosts; all ranks call it together, with the same paths.

    The first rank of each host reads them.

    Raises:
        ConfigError: a host has other files; the same on every rank.
    """
    if world.size == 1 or not paths:
        return
    # An array without elements is one of unknown shape to MXNet.
    line = "\n"
    if world.local_rank == 0:
        line = json.dumps([os.uname().nodename, fingerprint(paths)]) + line
    sent = mx.nd.array(np.frombuffer(line.encode(), np.uint8), dtype="uint8")
    gathered = world.allgather_uneven(sent, "data.files").asnumpy().tobytes().decode()
    difference = find_difference([tuple(json.loads(each)) for each in gathered.split("\n") if each])
    if difference:
        raise ConfigError(f"{difference}; copy the data set from one host to the others")
