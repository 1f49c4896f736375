"""Three updates of each of some runs; rank 0 writes what is left. Started by the test.

A run has the name of its loss, or of its network. The network of the former has no BatchNorm, whose
statistics are those of a rank's own images; the others have ``--sync-bn``. A rank of ``arcface:3``
computes its batch in three parts; ``softmax`` has its gradients clipped. ``arcface+teacher`` has a
teacher.
"""

from __future__ import annotations

import sys

import numpy as np

import backbones
from backbones.model import FACE_SIZE, Backbone
from backbones.options import BackboneOptions
from data.batches.loader import Batch
from parallel.world import HorovodWorld, World, allgather_numpy
from partial_fc.head import PartialFC
from partial_fc.optimizers import SGD
from partial_fc.options import HeadOptions
from runtime.mxnet import mx
from tests.training.checkpoint.test_resume import make_backbone
from training.config.schedule import OptimizerOptions
from training.update.face_step import FaceStep
from training.update.optimizer import BackboneOptimizer
from training.update.teacher import Teacher

GLOBAL_BATCH, NUM_CLASSES, EMBEDDING, UPDATES = 12, 31, 16, 3
SIDE, LR = 8, 0.05
# Small: where rounding puts a number on the other side of a PReLU's bend, the gradient jumps.
# Another rounding of the images alone changes gradients of mbf by a hundredth in some tensors.
NETWORK_LR = 2e-5
# Of the run whose gradients are clipped: a tenth of their norms or less.
CLIP_NORM = 5.0


def train(world: World, run: str) -> dict[str, np.ndarray]:
    """Train; returns what is left, on rank 0."""
    run, _, teacher = run.partition("+")
    run, _, parts = run.partition(":")
    is_network = run in backbones.names()
    if is_network:
        backbone = Backbone.create(BackboneOptions(network=run, embedding_size=EMBEDDING), seed=3)
        if world.size > 1:
            backbone.synchronize(world)
    else:
        backbone = make_backbone()
    if parts:
        backbone.accumulate(int(parts))
    side, lr = (FACE_SIZE[0], NETWORK_LR) if is_network else (SIDE, LR)
    backbone.hybridize()
    options = HeadOptions("cosface", scale=16.0) if is_network else HeadOptions(run)
    head = PartialFC.create(
        options, (NUM_CLASSES, EMBEDDING), world, mx.cpu(),
        optimizer=SGD(momentum=0.9, weight_decay=5e-4), seed=7,
    )  # fmt: skip
    sgd = OptimizerOptions(0.9, 5e-4, clip_norm=CLIP_NORM if run == "softmax" else None)
    optimizer = BackboneOptimizer(sgd, backbone.parameters, world, dtype="float32")
    step = FaceStep(backbone, head, optimizer, center_lr_factor=2.0)
    if teacher:
        step.learn_from(Teacher(make_backbone(seed=2).inference(), 20.0, world))

    generator = np.random.default_rng(1)
    batch = GLOBAL_BATCH // world.size
    own = slice(world.rank * batch, (world.rank + 1) * batch)
    losses = []
    for update in range(UPDATES):
        images = generator.integers(256, size=(GLOBAL_BATCH, 3, side, side)).astype(np.uint8)
        labels = generator.integers(NUM_CLASSES, size=GLOBAL_BATCH)
        losses.append(step(Batch(images[own], labels[own]), update, lr).asscalar())

    centers = allgather_numpy(world, head.rows.export()["centers"], "test.centers")
    arrays = {name: value.data().asnumpy() for name, value in backbone.parameters.items()}
    return {"centers": centers, "losses": np.array(losses), **arrays}


def main(output: str, *runs: str) -> None:
    world = HorovodWorld()
    found = {f"{run}/{name}": array for run in runs for name, array in train(world, run).items()}
    if world.rank == 0:
        np.savez(output, **found)
    world.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
