"""Train an image classifier, data-parallel: MNIST, CIFAR-10, ImageNet, or drawn images.

    python classify.py --dataset synthetic
    horovodrun -np 2 python classify.py --dataset mnist --data-dir mnist

Every rank runs this program from top to bottom on its own part of each global batch; the gradients
are summed over the ranks, or exchanged over parameter servers (--kv-store).
docs/from-one-process-to-many.md tells how a program for one process becomes this one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from runtime import environment, launchers
from runtime.errors import run_program
from runtime.stopping import StopRequest
from training.config import images
from training.config.images import ImageConfig

if TYPE_CHECKING:
    from backbones.classifiers.classifier import Classifier
    from training.exchange.rebalancing import Leg
    from training.exchange.workers import Workers
    from training.image_data import ImageData
    from training.log.run_log import RunLog
    from training.loop import Step


def main() -> int:
    """Understand the command line and train."""
    return classify(images.parse())


def classify(config: ImageConfig, dress: Callable[[Step], Step] = lambda step: step) -> int:
    """Build the parts of this rank and fit; returns the exit status.

    Args:
        config: all choices.
        dress: what a benchmark puts around the step.
    """
    launchers.refuse_foreign_launcher()
    request = StopRequest()
    request.listen()
    environment.prepare_stall_check(config.run.stall_timeout)
    # MXNet and Horovod are imported here, so that a wrong option does not have to wait for them.
    from backbones.classifiers.classifier import Classifier
    from training import devices
    from training.exchange.rebalancing import Leg
    from training.exchange.workers import join
    from training.image_data import open_images
    from training.log.run_log import RunLog
    from training.run_folder import claimed

    workers = join(config)
    device = devices.choose(workers.world.local_rank, config.classifier.dtype)
    dataset = open_images(config.data, config.run.seed)
    count = dataset.num_examples(config.data)
    models_root = Path(config.run.models_root)
    with (
        claimed(models_root, workers.world, is_owner=workers.number == 0),
        RunLog(
            models_root,
            rank=workers.number,
            world_size=workers.size,
            frequent=config.run.frequent,
            stall_timeout=config.run.stall_timeout,
            others=workers.others,
        ) as log,
    ):
        classifier = Classifier.create(
            config.classifier,
            classes=dataset.num_classes,
            image_shape=dataset.shape,
            normalization=dataset.normalization,
            seed=config.run.seed,
            ctx=device,
        )
        classifier.hybridize()
        # One leg is the whole run, unless --rebalance has the workers meet between several.
        leg: Optional[Leg] = Leg()
        while leg is not None:
            status, leg = train(
                config, leg, workers, dataset, count, classifier, log, request, dress
            )
        log.summarize(debug=False)
    return workers.leave(status)


def train(
    config: ImageConfig,
    leg: Leg,
    workers: Workers,
    dataset: ImageData,
    count: int,
    classifier: Classifier,
    log: RunLog,
    request: StopRequest,
    dress: Callable[[Step], Step],
) -> tuple[int, Optional[Leg]]:
    """Train until the leg ends; an epoch has ``count`` images.

    Returns:
        The exit status, and the next leg if there is one.
    """
    from training.exchange.rebalancing import Leg
    from training.loop import Interlude, fit
    from training.model_saver import ModelSaver
    from training.run import begin
    from training.update.classify_step import ClassifyStep
    from training.update.epoch_counts import EpochCounts
    from training.update.finite_guard import FiniteGuard
    from training.validator import Validator

    world = workers.world
    models_root = Path(config.run.models_root)
    with dataset.open_loader(config.data, config.run.seed, workers.epoch_part(count)) as loader:
        run = begin(
            config,
            images.values(config),
            loader,
            world,
            num_classes=dataset.num_classes,
            image_size=dataset.shape[1:],
            fixed=images.IDENTITY,
            saves=workers.saves,
            leg=leg,
        )
        progress, epoch_plan = run.progress, run.progress.epoch_plan
        optimizer = workers.optimizer(classifier.parameters, log.stopwatch)
        epoch_counts = EpochCounts(epoch_plan)
        validator = Validator(
            classifier,
            partial(dataset.validation_batches, config.data, world),
            epoch_counts,
            world,
            log,
            epoch_plan=epoch_plan,
            best=leg.best,
            save_best=ModelSaver(classifier, world, models_root, "best").save,
        )
        saver = ModelSaver(classifier, world, models_root)
        with run.restore(
            {
                "classifier": classifier,
                "optimizer": optimizer,
                "validator": validator,
            }
        ) as checkpointer:
            step = ClassifyStep(
                classifier,
                optimizer,
                world,
                epoch_counts,
                contributors=workers.contributors,
                num_classes=dataset.num_classes,
                label_smoothing=config.loss.label_smoothing,
                mixup=config.loss.mixup,
                seed=config.run.seed,
                stopwatch=log.stopwatch,
                guard=FiniteGuard("stop", checkpointer.last_good, remedy="lower --lr"),
            )
            epoch, origin = epoch_plan.updates_per_epoch, epoch_plan.origin
            between_saves = config.run.save_frequency * epoch
            savers_interludes = [
                Interlude(validator.validate, config.run.eval_frequency * epoch, origin=origin),
                Interlude(saver.save, between_saves, origin=origin),
                Interlude(checkpointer.save, between_saves, on_stop=True, origin=origin),
            ]
            interludes = [Interlude(workers.settle, 0)]
            for interlude in savers_interludes:
                # The others may wait meanwhile, and have to know why.
                interludes += [replace(interlude, action=workers.pause)]
                interludes += [interlude] if workers.saves else []
            updates_per_epoch = workers.updates_per_epoch(count)
            schedule = config.schedule.build(workers.contributors, updates_per_epoch)
            end = progress.leg_end(config.exchange.rebalance)
            workers.start(progress, count)
            status = fit(
                dress(step),
                loader.batches(progress.start_update, progress.start),
                workers.schedule(schedule, progress),
                log,
                total_updates=end,
                images_per_update=config.data.batch_size * workers.contributors,
                start_update=progress.start_update,
                averages=lambda: {**epoch_counts.averages(), **workers.numbers()},
                interludes=interludes,
                stop=workers.stop(request),
            )
    if status or end == progress.total_updates:
        return status, None
    here = Leg(epoch_plan.at(end).epoch, end, validator.best, checkpointer.last)
    with log.paused():
        return status, workers.next_leg(here, log.total(), count)


if __name__ == "__main__":
    run_program(main)
