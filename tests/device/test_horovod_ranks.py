"""Two ranks of Horovod compute what two ranks as threads do: on one device, or on two GPUs."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel.world import HorovodWorld
from runtime.mxnet import mx
from tests.device.test_updates import assert_equal_updates
from tests.device.updates import DEVICE, ON_GPU, UPDATES, Faces, FaceUpdates, Updated
from tests.support.launch import finish, ranks
from tests.support.thread_world import run_ranks

LOSSES = ("adaface", "curricularface")


@pytest.mark.thorough
@pytest.mark.launcher
@pytest.mark.skipif(ON_GPU and mx.context.num_gpus() < 2, reason="there is one GPU")
@pytest.mark.parametrize("launcher", ["--gloo", pytest.param("--mpi", marks=pytest.mark.device)])
def test_ranks_of_horovod(launcher: str, tmp_path: Path) -> None:
    finish(*ranks(launcher, 2), sys.executable, "-m", "tests.device.test_horovod_ranks", tmp_path)
    of_ranks = [dict(np.load(tmp_path / f"{rank}.npz")) for rank in range(2)]
    for loss in LOSSES:
        for found, (before, expected) in zip(of_ranks, run_ranks(2, partial(as_thread, loss))):
            updates = [updated(found, f"{loss}/{number}/") for number in range(UPDATES)]
            assert_equal_updates(updates, expected, before)


def updated(found: dict[str, Any], start: str) -> Updated:
    """What a rank's update ended with."""
    arrays = {n.removeprefix(start): values for n, values in found.items() if n.startswith(start)}
    return Updated(float(arrays.pop("loss")), arrays)


def as_thread(loss: str, world: Any) -> tuple[dict[str, Any], list[Updated]]:
    run = FaceUpdates(Faces(loss), DEVICE, world)
    return run.arrays(), run.followed()


def main() -> None:
    """Write ``FOLDER/rank.npz``: losses and arrays of this rank's updates."""
    world, found = HorovodWorld(), {}
    device = mx.gpu(world.rank) if ON_GPU else DEVICE
    for loss in LOSSES:
        for number, one in enumerate(FaceUpdates(Faces(loss), device, world).followed()):
            named = {"loss": np.array(one.loss), **one.arrays}
            found.update({f"{loss}/{number}/{name}": value for name, value in named.items()})
    np.savez(f"{sys.argv[1]}/{world.rank}.npz", **found)
    world.barrier()


if __name__ == "__main__":
    main()
