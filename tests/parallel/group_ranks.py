"""What each rank of a world of groups gets from its collectives; started by the test.

Arguments: the folder for the answers, the groups, as in 0,2 1,3, and after the word "then" others
that they become. The answers are those of the last groups.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from parallel.world import HorovodWorld, World
from runtime.mxnet import mx


def answers(world: World, number: int) -> dict[str, Any]:
    total, first = mx.nd.array([number]), mx.nd.array([number])
    world.allreduce(total, "total")
    several = [mx.nd.array([number, 1]), mx.nd.array([2.0 * number])]
    world.allreduce_all(several, "several")
    world.broadcast(first, "first")
    return {
        "rank": [world.rank, world.size],
        "total": total.asscalar().item(),
        "several": np.concatenate([array.asnumpy() for array in several]).tolist(),
        "gathered": world.allgather(mx.nd.array([number]), "gathered").asnumpy().tolist(),
        "first": first.asscalar().item(),
        "object": world.broadcast_object({"from": number}, "object"),
    }


def main(folder: Path, words: str) -> None:
    number = int(os.environ["HOROVOD_RANK"])
    first, *others = (
        [list(map(int, group.split(","))) for group in groups.split()]
        for groups in words.split("then")
    )
    world = HorovodWorld(first, regroups=bool(others))
    answers(world, number)
    for groups in others:
        world.all_ranks().barrier()
        world.regroup(groups)
        result = answers(world, number)
    result["all"] = answers(world.all_ranks(), number)["gathered"]
    world.barrier()
    # The end of one rank is that of all groups: no rank may be in a collective any more.
    (folder / str(number)).write_text(json.dumps(result))
    while not all((folder / str(int(other))).exists() for other in result["all"]):
        time.sleep(0.05)
    world.close()


main(Path(sys.argv[1]), " ".join(sys.argv[2:]))
