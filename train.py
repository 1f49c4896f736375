"""Train a face recognition network with Partial FC, on one rank or many.

    python train.py --dataset synthetic
    horovodrun -np 8 -H localhost:8 bash config.sh

Every rank runs this program from top to bottom: its own part of each global batch goes through its
copy of the backbone, its own shard of the class centers makes its part of the softmax.
"""

from __future__ import annotations

from pathlib import Path

from runtime import environment, launchers
from runtime.errors import run_program
from runtime.stopping import StopRequest
from training import dry_run
from training.config import faces
from training.config.faces import FaceConfig


def main() -> int:
    """Understand the command line; plan the run, or train."""
    config = faces.parse()
    if config.dry_run.dry_run:
        print(dry_run.describe(config))
        return 0
    return train(config)


def train(config: FaceConfig) -> int:
    """Build the parts of this rank and fit; returns the exit status."""
    launchers.refuse_foreign_launcher()
    request = StopRequest()
    request.listen()
    environment.prepare_stall_check(config.run.stall_timeout)
    # MXNet and Horovod are imported here, so that a wrong option does not have to wait for them.
    from backbones.model import Backbone
    from parallel.world import HorovodWorld
    from partial_fc import optimizers
    from partial_fc.head import PartialFC
    from training import devices, face_data
    from training.agreed_stop import AgreedStop
    from training.log.run_log import RunLog
    from training.log.timed_world import TimedWorld
    from training.loop import Interlude, fit
    from training.model_saver import ModelSaver
    from training.run import begin
    from training.run_folder import claimed
    from training.update.face_step import FaceStep
    from training.update.finite_guard import FiniteGuard
    from training.update.optimizer import BackboneOptimizer
    from training.verifier import Verifier

    world = HorovodWorld()
    device = devices.choose(world.local_rank, config.backbone.dtype)
    models_root = Path(config.run.models_root)
    with (
        claimed(models_root, world, is_owner=world.rank == 0),
        RunLog(
            models_root,
            rank=world.rank,
            world_size=world.size,
            frequent=config.run.frequent,
            stall_timeout=config.run.stall_timeout,
        ) as log,
        face_data.open_batches(config.data, config.run.seed, world) as batches,
    ):
        run = begin(
            config,
            faces.values(config),
            batches,
            world,
            num_classes=batches.num_classes,
            image_size=batches.image_size,
            fixed=faces.IDENTITY,
        )
        progress = run.progress
        backbone = Backbone.create(
            config.backbone, image_size=batches.image_size, seed=config.run.seed, ctx=device
        )
        backbone.hybridize()
        timed_world = TimedWorld(world, log.stopwatch)
        head = PartialFC.create(
            config.head,
            (batches.num_classes, config.backbone.embedding_size),
            timed_world,
            device,
            optimizer=optimizers.build(
                config.optimizer.rule,
                momentum=config.optimizer.momentum,
                weight_decay=config.optimizer.wd,
            ),
            seed=config.run.seed,
        )
        optimizer = BackboneOptimizer(
            config.optimizer,
            backbone.parameters,
            timed_world,
            dtype=config.backbone.dtype,
            stopwatch=log.stopwatch,
        )
        verifier = Verifier(
            backbone,
            face_data.open_targets(config.data),
            world,
            log,
            batch_size=config.data.batch_size,
            image_size=batches.image_size,
        )
        saver = ModelSaver(backbone, world, models_root)
        schedule = progress.shifted(config.schedule.build(progress.schedule_updates))
        with run.restore(
            {
                "backbone": backbone,
                "optimizer": optimizer,
                "head": head,
                "verifier": verifier,
            }
        ) as checkpointer:
            step = FaceStep(
                backbone,
                head,
                optimizer,
                center_lr_factor=config.center_lr_factor,
                stopwatch=log.stopwatch,
                guard=FiniteGuard(config.run.on_nan, checkpointer.last_good),
            )
            if run.is_new:
                with log.paused():
                    verifier.verify(0)
            status = fit(
                step,
                batches.batches(progress.start_update, progress.start),
                schedule,
                log,
                total_updates=progress.total_updates,
                images_per_update=batches.global_batch,
                start_update=progress.start_update,
                interludes=[
                    Interlude(verifier.verify, config.run.verbose),
                    Interlude(saver.save, config.run.save_interval),
                    Interlude(checkpointer.save, config.run.save_interval, on_stop=True),
                ],
                stop=AgreedStop(request, world),
            )
        log.summarize(debug=config.data.debug)
        verifier.summarize()
    return status


if __name__ == "__main__":
    run_program(main)
