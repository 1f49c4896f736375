"""Train an image classifier, data-parallel: MNIST, CIFAR, ImageNet, or drawn images.

    python classify.py --dataset synthetic
    horovodrun -np 2 python classify.py --dataset mnist --data-dir mnist

Every rank runs this program from top to bottom on its own part of each global batch; the gradients
are summed over the ranks, or exchanged over parameter servers (--kv-store).
docs/from-one-process-to-many.md tells how a program for one process becomes this one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from runtime import launchers
from runtime.errors import run_program
from training.config import images
from training.config.images import ImageConfig
from training.plan import images as plan

if TYPE_CHECKING:
    from training.loop import Step


def main() -> int:
    """Understand the command line; plan the run, or train."""
    config = images.parse()
    if config.dry_run.dry_run:
        print(plan.describe(config))
        return 0
    return classify(config)


def classify(config: ImageConfig, wrap: Callable[[Step], Step] = lambda step: step) -> int:
    """Build and fit the parts of this rank; a benchmark may ``wrap`` the step. Returns a status."""
    request = launchers.begin_rank(config.run.stall_timeout)
    # MXNet and Horovod are imported here, so that a wrong option does not have to wait for them.
    from backbones.model import Classifier
    from runtime import devices
    from training.exchange import workers
    from training.image_data import open_images
    from training.loop import Every
    from training.run import open_run
    from training.update.classify_step import ClassifyStep, EpochCounts, SoftTargets
    from training.update.gradients import FiniteGuard
    from training.validation import BestModel, ModelSaver, Validator

    data, seed = config.data, config.run.seed
    dataset = open_images(data, seed)
    ranks = workers.join(config, dataset.num_examples(data), dataset.files)
    device = devices.choose(ranks.world, config.classifier.dtype)
    with (
        open_run(config, ranks, device, request) as run,
        dataset.open_loader(data, seed, ranks.epoch_part()) as batches,
    ):
        classifier = Classifier.create(
            config.classifier,
            classes=batches.num_classes,
            image_shape=dataset.training.shape,
            normalization=dataset.normalization,
            seed=seed,
            ctx=device,
        )
        classifier.hybridize()
        if config.classifier.sync_bn:
            classifier.synchronize(run.timed_world)
        dataset.warn(ranks.number)
        run.plan(batches, dataset.training.dataset)
        optimizer = ranks.optimizer(classifier.parameters, run.stopwatch)
        counts, clock = EpochCounts(run.world, run.epoch_plan), run.stopwatch
        best = BestModel(classifier, run.world, run.folder)
        saver = ModelSaver(classifier, run.world, run.folder)
        validation = partial(dataset.validation_batches, data, run.world)
        validator = Validator(classifier, validation, counts, run.world, run.log, best)
        load_best = partial(best.load, classifier.load_pretrained)
        # Named as in checkpoints of version 0.1.0.
        run.restore(load_best, classifier=classifier, optimizer=optimizer, validator=best)
        targets = SoftTargets(config.loss, batches.num_classes, seed)
        guard = FiniteGuard("stop", run.last_checkpoint)
        step = ClassifyStep(classifier, optimizer, targets, counts, stopwatch=clock, guard=guard)
        status = run.fit(
            wrap(step),
            [
                Every(validator.validate, epochs=config.run.eval_frequency),
                Every(saver.save, epochs=config.run.save_frequency),
                Every(run.save_checkpoint, epochs=config.run.save_frequency, on_stop=True),
            ],
            counts.averages,
        )
        run.log.summarize()
    return ranks.leave(status)


if __name__ == "__main__":
    run_program(main)
