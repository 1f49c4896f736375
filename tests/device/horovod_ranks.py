"""A few updates on a device by ranks of Horovod; each writes what it has. Started by the test."""

from __future__ import annotations

import sys

import numpy as np

from parallel.world import HorovodWorld
from tests.device.host_syncs import counted_host_syncs
from tests.device.updates import DEVICE, UPDATES, Faces, FaceUpdates, followed

COUNTED = 4


def main() -> None:
    """Write ``FOLDER/rank.npz``: losses, arrays, and the waits of further updates."""
    folder, *losses = sys.argv[1:]
    world = HorovodWorld()
    found = {}
    for loss in losses:
        run = FaceUpdates(Faces(loss), DEVICE, world)
        for update, updated in enumerate(followed(run)):
            named = {"loss": np.array(updated.loss), **updated.arrays}
            found.update({f"{loss}/{update}/{name}": value for name, value in named.items()})
        with counted_host_syncs() as syncs:
            for update in range(UPDATES, UPDATES + COUNTED):
                run.step(run.batch(update), update, 0.01)
        run.step.finish()
        found[f"{loss}/syncs"] = np.array([f"{sync.function} {sync.site}" for sync in syncs])
    np.savez(f"{folder}/{world.rank}.npz", **found)
    world.barrier()


if __name__ == "__main__":
    main()
