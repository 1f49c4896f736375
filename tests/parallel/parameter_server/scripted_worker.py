"""A worker that pulls and pushes in a given order, and writes what it got.

Arguments: the folder, then for each turn the number of the worker whose turn it is. All pull in the
beginning; whose turn it is pushes a gradient of 1 at the rate of 1, and pulls.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from parallel.parameter_server import assignment
from parallel.parameter_server.exchange import Exchange
from parallel.parameter_server.schemes import SCHEMES
from parallel.world import LoneWorld
from runtime.mxnet import mx


def main() -> None:
    folder, turns = Path(sys.argv[1]), list(map(int, sys.argv[2:]))
    own = assignment.find(os.environ)
    assert own is not None
    exchange = Exchange(SCHEMES["dist_async"], own, LoneWorld(), staleness=None, images_per_step=1)
    parameters = [mx.nd.zeros((3, 2)), mx.nd.full((5,), 10)]
    gradients = [mx.nd.ones((3, 2)), mx.nd.ones((5,))]
    exchange.start(parameters, [1.0, 0.0], momentum=0.5, weight_decay=0.125, version=0)
    # No worker pushes before all have pulled.
    (folder / f"ready-{own.worker}").touch()
    while len(list(folder.glob("ready-*"))) < own.num_workers:
        time.sleep(0.01)
    for turn, worker in enumerate(turns):
        while worker == own.worker and not all((folder / str(n)).exists() for n in range(turn)):
            time.sleep(0.01)
        if worker == own.worker:
            exchange.step(gradients, lr=1.0)
            result = {
                "version": exchange.version,
                "weights": [parameter.asnumpy().ravel().tolist() for parameter in parameters],
                "numbers": exchange.numbers(),
            }
            (folder / f"{turn}.part").write_text(json.dumps(result))
            (folder / f"{turn}.part").rename(folder / str(turn))
    sys.stdout.flush()
    os._exit(0)


main()
