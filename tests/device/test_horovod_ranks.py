"""Two ranks of Horovod on a device compute what two ranks as threads do, and wait as little."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.device.horovod_ranks import COUNTED
from tests.device.queued_world import run_queued_ranks
from tests.device.test_updates import assert_equal_updates
from tests.device.updates import DEVICE, UPDATES, Faces, FaceUpdates, Updated, followed
from tests.support.launch import clean_environment

ROOT = Path(__file__).resolve().parents[2]
HOROVODRUN = Path(sys.executable).with_name("horovodrun")
LOSSES = ("cosface", "adaface", "curricularface", "magface")


@pytest.mark.launcher
@pytest.mark.parametrize("launcher", ["--gloo", pytest.param("--mpi", marks=pytest.mark.device)])
def test_ranks_of_horovod(launcher: str, tmp_path: Path) -> None:
    result = subprocess.run(
        [
            *(str(HOROVODRUN), launcher, "-np", "2", "-H", "localhost:2"),
            *(sys.executable, "-m", "tests.device.horovod_ranks", str(tmp_path), *LOSSES),
        ],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    for loss in LOSSES:
        as_threads = run_queued_ranks(2, partial(as_thread, loss))
        for rank, expected in enumerate(as_threads):
            found = dict(np.load(tmp_path / f"{rank}.npz"))
            assert_equal_updates(updates_of(found, loss), expected)
            # The world holds what Horovod writes into until it has, two updates later. The loss of
            # that update has been read by then, so there is nothing to wait for.
            syncs = [sync for sync in found[f"{loss}/syncs"] if "parallel/world.py" not in sync]
            assert len(syncs) <= COUNTED, syncs


def updates_of(found: dict[str, Any], loss: str) -> list[Updated]:
    """What a rank's updates with a loss ended with."""
    updates = []
    for update in range(UPDATES):
        start = f"{loss}/{update}/"
        arrays = {n[len(start) :]: values for n, values in found.items() if n.startswith(start)}
        updates.append(Updated(float(arrays.pop("loss")), arrays))
    return updates


def as_thread(loss: str, world: Any) -> list[Updated]:
    return followed(FaceUpdates(Faces(loss), DEVICE, world))
