"""One of several processes that train copies of a classifier; it writes how long its updates took.

    python -m benchmarks.scaling_worker --kv-store SCHEME MODEL BATCH UPDATES FOLDER

SCHEME is ``horovod``, under ``horovodrun`` or alone, or ``dist_sync``, under ``parallel.launch``;
gradients are exchanged as in training. The batch is made once, so that reading costs nothing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from backbones.classifiers import Normalization
from backbones.classifiers.classifier import Classifier
from backbones.options import ClassifierOptions
from parallel.parameter_server import assignment
from parallel.parameter_server.exchange import Exchange
from parallel.parameter_server.schemes import SCHEMES
from parallel.world import PLAIN, HorovodWorld, LoneWorld
from runtime.mxnet import mx
from runtime.stopwatch import Stopwatch
from training.config.exchange import HOROVOD
from training.config.schedule import OptimizerOptions
from training.exchange.server_optimizer import ServerOptimizer
from training.update.optimizer import BackboneOptimizer, Optimizer

WARM_UP_UPDATES = 2
_CLASSES = 10
_IMAGE_SHAPE = (3, 32, 32)
_LR, _MOMENTUM = 1e-3, 0.9


def main() -> None:
    """Train, and write ``<process id>.json``: the seconds of the updates, and the parameters."""
    scheme, model = sys.argv[2:4]
    batch, updates = map(int, sys.argv[4:6])
    classifier = Classifier.create(
        ClassifierOptions(model=model),
        classes=_CLASSES,
        image_shape=_IMAGE_SHAPE,
        normalization=Normalization((0.5,) * 3, (0.25,) * 3),
    )
    classifier.hybridize()
    trained = [p for p in classifier.parameters.values() if p.grad_req != "null"]
    workers, optimizer = (_horovod if scheme == HOROVOD else _dist_sync)(classifier)
    seconds = _train(classifier, optimizer, batch, workers, WARM_UP_UPDATES + updates)
    result = {
        "seconds": seconds[WARM_UP_UPDATES:],
        "parameter_bytes": sum(4 * int(np.prod(p.shape)) for p in trained),
    }
    Path(sys.argv[6], f"{os.getpid()}.json").write_text(json.dumps(result))
    if scheme != HOROVOD:
        # At the regular end of a process MXNet ends the servers, which may still serve others.
        os._exit(0)


def _horovod(classifier: Classifier) -> tuple[int, Optimizer]:
    """The number of ranks, and an optimizer with Horovod's Allreduce."""
    world = HorovodWorld()
    optimizer = BackboneOptimizer(
        OptimizerOptions(momentum=_MOMENTUM, wd=0.0), classifier.parameters, world, dtype="float32"
    )
    return world.size, optimizer


def _dist_sync(classifier: Classifier) -> tuple[int, Optimizer]:
    """The number of workers, and an optimizer on the parameter servers."""
    here = assignment.find(os.environ)
    assert here is not None, "python -m benchmarks.scaling starts this program"
    alone = LoneWorld(here.local_worker)
    exchange = Exchange(SCHEMES["dist_sync"], here, alone, staleness=None, images_per_step=0)
    optimizer = ServerOptimizer(classifier.parameters, exchange, alone, Stopwatch(), PLAIN)
    optimizer.start(momentum=_MOMENTUM, weight_decay=0.0, version=0)
    return here.num_workers, optimizer


def _train(
    classifier: Classifier, optimizer: Optimizer, batch: int, workers: int, updates: int
) -> list[float]:
    """Return the seconds of each update, from one that is done to the next."""
    rng = np.random.default_rng(0)
    images: Any = mx.nd.array(rng.integers(0, 256, (batch, *_IMAGE_SHAPE), np.uint8), dtype="uint8")
    labels = mx.nd.array(rng.integers(0, _CLASSES, batch))
    measure = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    seconds = []
    for number in range(updates):
        begin = time.perf_counter()
        with mx.autograd.record():
            loss = measure(classifier(images), labels).sum() / (batch * workers)
        loss.backward()
        optimizer.reduce(number)
        optimizer.update(number, _LR)
        mx.nd.waitall()
        seconds.append(time.perf_counter() - begin)
    return seconds


if __name__ == "__main__":
    main()
