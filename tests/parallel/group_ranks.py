"""What each rank of a world of groups gets from its collectives; started by the test.

Arguments: the folder for the answers, and the groups, as in 0,2 1,3.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from parallel.world import HorovodWorld
from runtime.mxnet import mx


def main(folder: Path, groups: list[list[int]]) -> None:
    number = int(os.environ["HOROVOD_RANK"])
    world = HorovodWorld(groups)
    total = mx.nd.array([number])
    world.allreduce(total, "total")
    several = [mx.nd.array([number, 1]), mx.nd.array([2.0 * number])]
    world.allreduce_all(several, "several")
    first = mx.nd.array([number])
    world.broadcast(first, "first")
    told = {
        "rank": [world.rank, world.size],
        "total": total.asscalar().item(),
        "several": np.concatenate([array.asnumpy() for array in several]).tolist(),
        "gathered": world.allgather(mx.nd.array([number]), "gathered").asnumpy().tolist(),
        "first": first.asscalar().item(),
        "object": world.broadcast_object({"from": number}, "object"),
    }
    (folder / str(number)).write_text(json.dumps(told))
    world.barrier()
    # The end of one rank is that of all groups.
    while not all((folder / str(other)).exists() for group in groups for other in group):
        time.sleep(0.05)
    world.close()


main(Path(sys.argv[1]), [list(map(int, group.split(","))) for group in sys.argv[2:]])
