"""One of several processes that train copies of a classifier; it prints how long its updates took.

    python -m benchmarks.scaling_worker --kv-store SCHEME MODEL BATCH UPDATES [FOLDER PROCESSES]

SCHEME is ``horovod``, under ``horovodrun``; ``dist_sync``, under ``parallel.launch``; or ``none``,
one of several processes that meet in a folder and exchange nothing. Gradients are exchanged as in
training. The batch is made once, so that reading costs nothing. The result is a line of the
standard output, which launchers bring from every host.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from backbones.classifiers import Normalization
from backbones.model import Classifier
from backbones.options import ClassifierOptions
from benchmarks.scaling import NONE, RESULT
from parallel.parameter_server import assignment
from parallel.parameter_server.assignment import SCHEMES
from parallel.parameter_server.exchange import Exchange
from parallel.world import PLAIN, HorovodWorld, LoneWorld, World
from runtime.mxnet import mx
from runtime.stopwatch import Stopwatch
from training.config.images import HOROVOD
from training.config.options import OptimizerOptions
from training.update.optimizer import BackboneOptimizer, Optimizer, ServerOptimizer

WARM_UP_UPDATES = 2
_EXCHANGES = 15
_CLASSES = 10
_IMAGE_SHAPE = (3, 32, 32)
_LR, _MOMENTUM = 1e-3, 0.9


def main() -> None:
    """Train, and print what ``benchmarks.scaling`` reads, as JSON."""
    scheme, model = sys.argv[2:4]
    batch, updates = map(int, sys.argv[4:6])
    classifier = Classifier.create(
        ClassifierOptions(model=model),
        classes=_CLASSES,
        image_shape=_IMAGE_SHAPE,
        normalization=Normalization((0.5,) * 3, (0.25,) * 3),
        seed=0,
    )
    classifier.hybridize()
    workers, optimizer, world = _exchange(scheme, classifier)
    if scheme == NONE:
        _meet(Path(sys.argv[6]), int(sys.argv[7]))
    ends = _train(classifier, optimizer, batch, workers, WARM_UP_UPDATES + updates)

    def exchange() -> None:
        """What an update sends, without the computation that may hide it."""
        optimizer.reduce(0)
        if scheme != HOROVOD:
            optimizer.update(0, _LR)

    result = {
        # One clock for all processes of a host.
        "ends": ends[WARM_UP_UPDATES:],
        "exchange": 0.0 if scheme == NONE else _seconds(world, exchange),
    }
    # In one piece, or launchers may put their prefix into it.
    sys.stdout.write(f"{RESULT}{json.dumps(result)}\n")
    sys.stdout.flush()
    if scheme not in (HOROVOD, NONE):
        # At the regular end of a process MXNet ends the servers, which may still serve others.
        os._exit(0)


def _meet(folder: Path, processes: int) -> None:
    """Wait until as many processes have come to the folder."""
    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) < processes:
        time.sleep(0.01)


def _exchange(scheme: str, classifier: Classifier) -> tuple[int, Optimizer, World]:
    """The number of workers, an optimizer that exchanges gradients with them, and the ranks."""
    if scheme in (HOROVOD, NONE):
        world = HorovodWorld() if scheme == HOROVOD else LoneWorld()
        options = OptimizerOptions(momentum=_MOMENTUM, wd=0.0)
        optimizer = BackboneOptimizer(options, classifier.parameters, world, dtype="float32")
        return world.size, optimizer, world
    here = assignment.find(os.environ)
    assert here is not None, "python -m benchmarks.scaling starts this program"
    alone = LoneWorld(here.local_worker)
    exchange = Exchange(SCHEMES[scheme], here, alone, staleness=None, batch_size=0)
    on_servers = ServerOptimizer(classifier.parameters, exchange, alone, Stopwatch(), PLAIN)
    on_servers.start(momentum=_MOMENTUM, weight_decay=0.0, version=0)
    return here.num_workers, on_servers, alone


def _train(
    classifier: Classifier, optimizer: Optimizer, batch: int, workers: int, updates: int
) -> list[float]:
    """Return the clock before the first update and after each, in seconds."""
    rng = np.random.default_rng(0)
    images: Any = mx.nd.array(rng.integers(0, 256, (batch, *_IMAGE_SHAPE), np.uint8), dtype="uint8")
    labels = mx.nd.array(rng.integers(0, _CLASSES, batch))
    measure = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    ends = [time.monotonic()]
    for number in range(updates):
        with mx.autograd.record():
            loss = measure(classifier(images), labels).sum() / (batch * workers)
        loss.backward()
        optimizer.reduce(number)
        optimizer.update(number, _LR)
        mx.nd.waitall()
        ends.append(time.monotonic())
    return ends


def _seconds(world: World, run: Callable[[], None]) -> float:
    """The median seconds of what the ranks begin together."""
    seconds = []
    for _ in range(_EXCHANGES):
        world.barrier()
        begin = time.monotonic()
        run()
        mx.nd.waitall()
        seconds.append(time.monotonic() - begin)
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
