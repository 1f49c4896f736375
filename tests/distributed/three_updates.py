"""Three updates with each of some losses; rank 0 writes what is left. Started by the test.

The network has no BatchNorm: its batch statistics are those of a rank's own images, so a network
with it is by definition another one on another number of ranks.
"""

from __future__ import annotations

import sys

import numpy as np

from backbones import layers
from backbones.model import Backbone
from data.batches.loader import Batch
from parallel.world import HorovodWorld, allgather_numpy
from partial_fc.head import PartialFC
from partial_fc.optimizers import SGD
from partial_fc.options import HeadOptions
from runtime.mxnet import mx
from training.config.schedule import OptimizerOptions
from training.update.face_step import FaceStep
from training.update.optimizer import BackboneOptimizer

GLOBAL_BATCH, NUM_CLASSES, EMBEDDING, UPDATES = 12, 31, 16, 3


def make_backbone() -> Backbone:
    x = layers.relu(layers.convolution(layers.pixels("float32"), "conv0", 4, kernel=3), "relu0")
    x = layers.relu(layers.convolution(x, "conv1", 8, kernel=3, stride=2), "relu1")
    symbol = mx.sym.FullyConnected(x, num_hidden=EMBEDDING, name="fc1")
    generator = np.random.default_rng(0)
    shapes = dict(zip(symbol.list_arguments(), symbol.infer_shape(data=(1, 3, 8, 8))[0]))
    del shapes["data"]
    weights = {
        name: mx.nd.array(generator.normal(size=shape) * 0.1) for name, shape in shapes.items()
    }
    return Backbone(symbol, symbol, weights, mx.cpu())


def train(world: HorovodWorld, loss: str) -> dict[str, np.ndarray]:
    """Train with a loss; returns what is left, on rank 0."""
    backbone = make_backbone()
    backbone.hybridize()
    head = PartialFC.create(
        HeadOptions(loss), (NUM_CLASSES, EMBEDDING), world, mx.cpu(),
        optimizer=SGD(momentum=0.9, weight_decay=5e-4), seed=7,
    )  # fmt: skip
    optimizer = BackboneOptimizer(
        OptimizerOptions(momentum=0.9, wd=5e-4), backbone.parameters, world, dtype="float32"
    )
    step = FaceStep(backbone, head, optimizer, center_lr_factor=2.0)

    generator = np.random.default_rng(1)
    batch = GLOBAL_BATCH // world.size
    own = slice(world.rank * batch, (world.rank + 1) * batch)
    losses = []
    for update in range(UPDATES):
        images = generator.integers(256, size=(GLOBAL_BATCH, 3, 8, 8)).astype(np.uint8)
        labels = generator.integers(NUM_CLASSES, size=GLOBAL_BATCH)
        losses.append(step(Batch(images[own], labels[own]), update, lr=0.05).asscalar())

    centers = allgather_numpy(world, head.rows.export()["centers"], "test.centers")
    arrays = {name: value.data().asnumpy() for name, value in backbone.parameters.items()}
    return {"centers": centers, "losses": np.array(losses), **arrays}


def main(output: str, *losses: str) -> None:
    world = HorovodWorld()
    found = {
        f"{loss}/{name}": array for loss in losses for name, array in train(world, loss).items()
    }
    if world.rank == 0:
        np.savez(output, **found)
    world.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
