"""Train a face recognition network with Partial FC, on one rank or many.

    python train.py --dataset synthetic
    horovodrun -np 8 -H localhost:8 bash config.sh

Every rank runs this program from top to bottom: its own part of each global batch goes through its
copy of the backbone, its own shard of the class centers makes its part of the softmax.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runtime import launchers
from runtime.errors import run_program
from training.config.faces import FaceConfig, parse
from training.plan import faces as plan

if TYPE_CHECKING:
    from training.face_data import Batches
    from training.run import Run


def main() -> int:
    """Understand the command line; plan the run, or train."""
    config = parse()
    if config.dry_run.dry_run:
        print(plan.describe(config))
        return 0
    return train(config)


def train(config: FaceConfig) -> int:
    """Open what this rank needs and train; returns the exit status."""
    request = launchers.begin_rank(config.run.stall_timeout)
    # MXNet and Horovod are imported here, so that a wrong option does not have to wait for them.
    from parallel.world import join_ranks
    from runtime import devices
    from training import face_data
    from training.exchange.ranks import Ranks
    from training.run import open_run

    world = join_ranks()
    device = devices.choose(world, config.backbone.dtype)
    with (
        open_run(config, Ranks(world), device, request) as run,
        face_data.open_batches(config.data, config.run.seed, world) as faces,
    ):
        run.plan(faces, face_data.compared_images(config.data, config.run.seed, faces))
        return fit(config, run, faces, device)


def fit(config: FaceConfig, run: Run, faces: Batches, device: Any) -> int:
    """Build the parts of this rank and train them; returns the exit status."""
    from backbones.model import Backbone
    from partial_fc import optimizers
    from partial_fc.head import PartialFC
    from training import face_data
    from training.loop import Every
    from training.update.face_step import FaceStep, Teacher
    from training.update.gradients import FiniteGuard
    from training.update.optimizer import BackboneOptimizer
    from training.validation import BestModel, ModelSaver, Verifier

    data, seed, dtype = config.data, config.run.seed, config.backbone.dtype
    world, clock = run.timed_world, run.stopwatch
    size, centers = faces.image_size, (faces.num_classes, config.backbone.embedding_size)
    # The whole backbone on every rank, a shard of the class centers on each.
    backbone = Backbone.create(config.backbone, image_size=size, seed=seed, ctx=device)
    backbone.hybridize()
    if config.backbone.sync_bn:
        backbone.synchronize(world)
    chosen = config.optimizer
    rule = optimizers.build(chosen.optimizer, chosen.momentum, chosen.wd)
    head = PartialFC.create(config.head, centers, world, device, optimizer=rule, seed=seed)
    # Every rank begins with the weights of rank 0, and updates them by summed gradients.
    optimizer = BackboneOptimizer(chosen, backbone.parameters, world, dtype=dtype, stopwatch=clock)
    targets = face_data.open_targets(data, config.run.best)
    best = BestModel(backbone, run.world, run.folder, config.run.best)
    verifier = Verifier(
        backbone, targets, run.log, best, batch_size=data.batch_size, image_size=size
    )
    run.restore(backbone=backbone, optimizer=optimizer, head=head, verifier=verifier, best=best)
    if run.is_new:
        with run.log.paused():
            if config.head.starts_from_means:
                face_data.start_from_means(head, backbone, faces, run.log.end_updates)
            verifier.verify(0)
    guard, factor = FiniteGuard(config.run.on_nan, run.last_checkpoint), config.center_lr_factor
    saver = ModelSaver(backbone, run.world, run.folder)
    teacher = Teacher.create(config.teacher, backbone, size, run.world)
    step = FaceStep(backbone, head, optimizer, factor, stopwatch=clock, guard=guard)
    step.learn_from(teacher)
    status = run.fit(
        step,
        [
            Every(verifier.verify, updates=config.run.verbose),
            Every(saver.save, updates=config.run.save_interval),
            Every(run.save_checkpoint, updates=config.run.save_interval, on_stop=True),
        ],
        lambda: {**head.rows.averages(), **(teacher.averages() if teacher is not None else {})},
    )
    head.rows.close()
    run.log.summarize()
    verifier.summarize()
    return status


if __name__ == "__main__":
    run_program(main)
