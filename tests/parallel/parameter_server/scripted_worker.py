"""A worker that pulls and pushes in a given order, and writes what it got.

Arguments: the folder, then for each turn the number of the worker whose turn it is. All pull in the
beginning; whose turn it is pushes a gradient of 1 at the rate of 1, and pulls. Without turns, all
workers make three steps together by dist_sync, with gradients of 1, 2, ...
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from parallel.parameter_server import assignment
from parallel.parameter_server.exchange import Exchange
from parallel.parameter_server.schemes import SCHEMES
from parallel.world import LoneWorld
from runtime.mxnet import mx


def wait_for(true: Callable[[], bool]) -> None:
    while not true():
        time.sleep(0.01)


def main() -> None:
    folder, turns = Path(sys.argv[1]), list(map(int, sys.argv[2:]))
    own = assignment.find(os.environ)
    assert own is not None
    scheme = SCHEMES["dist_async" if turns else "dist_sync"]
    exchange = Exchange(scheme, own, LoneWorld(), staleness=None, images_per_step=1)
    parameters = [mx.nd.zeros((3, 2)), mx.nd.full((5,), 10)]
    size = 1 if turns else 1 + own.worker
    gradients = [mx.nd.full((3, 2), size), mx.nd.full((5,), size)]
    exchange.start(parameters, [1.0, 0.0], momentum=0.5, weight_decay=0.125, version=0)

    def step(name: str, lr: float) -> None:
        exchange.step(gradients, lr=lr)
        result = {
            "version": exchange.version,
            "weights": [parameter.asnumpy().ravel().tolist() for parameter in parameters],
            "numbers": exchange.numbers(),
        }
        (folder / f"{name}.part").write_text(json.dumps(result))
        (folder / f"{name}.part").rename(folder / name)

    (folder / f"ready-{own.worker}").touch()
    wait_for(lambda: len(list(folder.glob("ready-*"))) == own.num_workers)
    for turn, worker in enumerate(turns):
        if worker == own.worker:
            before = [folder / str(number) for number in range(turn)]
            wait_for(lambda: all(path.exists() for path in before))  # noqa: B023 (called at once)
            step(str(turn), 1.0)
    for _ in range(0 if turns else 3):
        step(f"of-{own.worker}", 0.25)
    sys.stdout.flush()
    os._exit(0)


main()
