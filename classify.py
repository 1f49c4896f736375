"""Train an image classifier, data-parallel: MNIST, CIFAR-10, ImageNet, or drawn pictures.

    python classify.py --dataset synthetic
    horovodrun -np 2 python classify.py --dataset mnist --data-dir mnist

Every rank runs this program from top to bottom on its own part of each global batch; the gradients
are summed over the ranks. docs/from-one-process-to-many.md tells how a program for one process
becomes this one.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from runtime import environment
from runtime.errors import run_program
from runtime.stopping import StopRequest
from training import classify_config, schedules
from training.classify_config import ClassifyConfig


def main() -> int:
    """Understand the command line and train."""
    return classify(classify_config.parse())


def classify(config: ClassifyConfig) -> int:
    """Build the parts of this rank and fit; returns the exit status."""
    request = StopRequest()
    request.listen()
    environment.prepare_stall_check(config.stall_timeout)
    # MXNet and Horovod are imported here, so that a wrong option does not have to wait for them.
    from backbones.classifiers.classifier import Classifier
    from parallel.world import HorovodWorld, Wire
    from training import devices
    from training.classify_step import ClassifyStep
    from training.ending import AgreedStop
    from training.finite import FiniteGuard
    from training.logs import RunLog
    from training.loop import Interlude, fit
    from training.model_state import BackboneState
    from training.optimizer import BackboneOptimizer
    from training.pictures import open_pictures
    from training.replicas import ModelSaver
    from training.run import begin
    from training.tally import Tally
    from training.timed_world import TimedWorld
    from training.validator import Validator

    world = HorovodWorld()
    device = devices.choose(world.local_rank, config.dtype)
    models_root = Path(config.models_root)
    pictures = open_pictures(config)
    with RunLog(
        models_root,
        rank=world.rank,
        world_size=world.size,
        frequent=config.frequent,
        stall_timeout=config.stall_timeout,
    ) as log, pictures.open_loader(config, world) as loader:
        classifier = Classifier.create(
            config.model,
            classes=pictures.num_classes,
            image_shape=pictures.shape,
            normalization=pictures.normalization,
            dtype=config.dtype,
            has_zero_last_gammas=config.last_gamma,
            seed=config.seed,
            ctx=device,
        )
        classifier.hybridize()
        timed_world = TimedWorld(world, log.stopwatch)
        optimizer = BackboneOptimizer(
            classifier.parameters,
            timed_world,
            name="sgd",
            momentum=config.momentum,
            weight_decay=config.wd,
            dtype=config.dtype,
            wire=Wire(config.fp16_allreduce, config.gradient_predivide_factor),
        )
        epoch = loader.updates_per_epoch
        tally = Tally(epoch)
        validator = Validator(
            classifier,
            partial(pictures.validation_batches, config, world),
            tally,
            world,
            log,
            updates_per_epoch=epoch,
            save_best=ModelSaver(classifier, world, models_root, "best").save,
        )
        saver = ModelSaver(classifier, world, models_root)

        run = begin(
            config,
            classify_config.values(config),
            {
                "classifier": BackboneState(classifier),
                "optimizer": optimizer,
                "validator": validator,
            },
            loader,
            world,
            num_classes=pictures.num_classes,
            image_size=pictures.shape[1:],
            fixed=classify_config.IDENTITY,
        )
        progress = run.progress
        schedule = progress.shifted(
            schedules.build(
                config.lr_schedule,
                lr=config.peak_lr(world.size),
                total_updates=progress.schedule_updates,
                warmup=round(config.warmup_epochs * epoch),
                steps=[step * epoch for step in config.lr_steps],
            )
        )
        with run.checkpointer as checkpointer:
            step = ClassifyStep(
                classifier,
                optimizer,
                world,
                tally,
                num_classes=pictures.num_classes,
                label_smoothing=config.label_smoothing,
                mixup=config.mixup,
                seed=config.seed,
                stopwatch=log.stopwatch,
                guard=FiniteGuard("stop", checkpointer.last_good, remedy="lower --lr"),
            )
            status = fit(
                step,
                loader.batches(progress.start_update, progress.start),
                schedule,
                log,
                total_updates=progress.total_updates,
                images_per_update=loader.global_batch,
                start_update=progress.start_update,
                averages=tally.averages,
                interludes=[
                    Interlude(validator.validate, config.eval_frequency * epoch),
                    Interlude(saver.save, config.save_frequency * epoch),
                    Interlude(checkpointer.save, config.save_frequency * epoch, on_stop=True),
                ],
                stop=AgreedStop(request, world),
            )
        log.summarize(debug=False)
    return status


if __name__ == "__main__":
    run_program(main)
