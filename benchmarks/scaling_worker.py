"""One of several processes that train copies of a classifier; it writes how long its updates took.

    python -m benchmarks.scaling_worker EXCHANGE MODEL BATCH UPDATES FOLDER

EXCHANGE is ``allreduce``, under ``horovodrun``, or ``dist_sync``, with MXNet's parameter servers,
which the environment names. The batch is made once: its input costs nothing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from backbones.classifiers import Normalization
from backbones.classifiers.classifier import Classifier
from parallel.world import HorovodWorld
from runtime.mxnet import mx
from training.optimizer import BackboneOptimizer

WARM_UP_UPDATES = 2
_CLASSES = 10
_IMAGE_SHAPE = (3, 32, 32)
_LR, _MOMENTUM = 1e-3, 0.9

Update = Callable[[int], None]
"""Takes the number of an update; exchanges gradients and changes the weights."""


def main() -> None:
    """Train, and write ``<process id>.json``: the seconds of the updates, and the parameters."""
    exchange, model = sys.argv[1:3]
    batch, updates = map(int, sys.argv[3:5])
    classifier = Classifier.create(
        model,
        classes=_CLASSES,
        image_shape=_IMAGE_SHAPE,
        normalization=Normalization((0.5,) * 3, (0.25,) * 3),
    )
    classifier.hybridize()
    trained = [p for p in classifier.parameters.values() if p.grad_req != "null"]
    workers, update = (_allreduce if exchange == "allreduce" else _dist_sync)(classifier)
    seconds = _train(classifier, update, batch, workers, WARM_UP_UPDATES + updates)
    result = {
        "seconds": seconds[WARM_UP_UPDATES:],
        "parameter_bytes": sum(4 * int(np.prod(p.shape)) for p in trained),
    }
    Path(sys.argv[5], f"{os.getpid()}.json").write_text(json.dumps(result))


def _allreduce(classifier: Classifier) -> tuple[int, Update]:
    """The number of ranks, and the update by Horovod, as training does it."""
    world = HorovodWorld()
    optimizer = BackboneOptimizer(
        classifier.parameters,
        world,
        name="sgd",
        momentum=_MOMENTUM,
        weight_decay=0.0,
        dtype="float32",
    )
    return world.size, lambda number: optimizer.step(number, _LR)


def _dist_sync(classifier: Classifier) -> tuple[int, Update]:
    """The number of workers, and the update on the servers: gradients go, weights come back."""
    store = mx.kv.create("dist_sync")
    trainer = mx.gluon.Trainer(
        classifier.parameters,
        mx.optimizer.SGD(learning_rate=_LR, momentum=_MOMENTUM),
        kvstore=store,
        update_on_kvstore=True,
    )
    # The loss is divided by the global batch already.
    return store.num_workers, lambda _: trainer.step(1)


def _train(
    classifier: Classifier, update: Update, batch: int, workers: int, updates: int
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
        update(number)
        mx.nd.waitall()
        seconds.append(time.perf_counter() - begin)
    return seconds


if __name__ == "__main__":
    main()
