"""A few updates on a device by ranks of Horovod; each writes what it has. Started by the test."""

from __future__ import annotations

import sys

import numpy as np

from parallel.world import HorovodWorld
from tests.device.host_syncs import counted_host_syncs
from tests.device.updates import DEVICE, Faces, FaceUpdates

UPDATES, COUNTED = 2, 4


def main() -> None:
    """Write ``FOLDER/rank.npz``: losses, arrays, and the waits of further updates."""
    folder, *losses = sys.argv[1:]
    world = HorovodWorld()
    found = {}
    for loss in losses:
        run = FaceUpdates(Faces(loss), DEVICE, world)
        found[f"{loss}/losses"] = np.array(run.train(UPDATES))
        found.update({f"{loss}/{name}": values for name, values in run.arrays().items()})
        with counted_host_syncs() as syncs:
            for update in range(UPDATES, UPDATES + COUNTED):
                run.step(run.batch(update), update, 0.01)
        run.step.finish()
        found[f"{loss}/syncs"] = np.array([f"{sync.function} {sync.site}" for sync in syncs])
    np.savez(f"{folder}/{world.rank}.npz", **found)
    world.barrier()


if __name__ == "__main__":
    main()
