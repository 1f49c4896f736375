"""Validation of a classifier: every image counted once, over all ranks, and the best accuracy."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Callable

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from backbones.inference import Infer
from backbones.network import Network
from data.batches.image_loader import BROKEN
from data.batches.loader import Batch
from parallel.world import World
from runtime.errors import DataError
from runtime.mxnet import mx
from runtime.state import Saved, State, Stateful
from training.log.run_log import RunLog
from training.model_saver import ModelSaver, average_statistics
from training.update.classify_step import EpochCounts

_log = logging.getLogger(__name__)

_TOP = 5


class Validator(Stateful):
    """Validates the classifier and remembers the best accuracy."""

    def __init__(
        self,
        classifier: Network,
        batches: Callable[[], Iterator[Batch]],
        epoch_counts: EpochCounts,
        world: World,
        log: RunLog,
        best_model: ModelSaver,
    ) -> None:
        """Assemble it; ``batches`` returns this rank's share of the set, anew with each call."""
        self._classifier, self._batches, self._epoch_counts = classifier, batches, epoch_counts
        self._world, self._log = world, log
        self._best_model = best_model
        self.best = 0.0

    def validate(self, update: int) -> None:
        """Validate, and report the epoch."""
        average_statistics(self._classifier, self._world)
        infer = self._classifier.inference()
        counted = [count_batch(infer, batch) for batch in self._batches()]
        sums = np.sum(counted or [np.zeros(5)], axis=0)
        found = self._over_ranks(sums.tolist(), "validation.counts")
        loss, correct, correct_of_top, total, broken = found
        if not total:
            raise DataError(
                f"none of the {broken:.0f} images to validate on can be read; the log of each rank "
                "names them"
            )
        if broken and self._world.rank == 0:
            _log.warning(
                "%d of %d images to validate on cannot be read, and do not count",
                *(broken, broken + total),
            )
        accuracy = correct / total
        # Ranks that have come into this world with other groups do not know what was best.
        (self.best,) = self._over_ranks([self.best], "validation.best", "max")
        is_best = accuracy > self.best
        self.best = max(self.best, accuracy)
        training = self._epoch_counts.averages()
        numbers = {
            "epoch": self._epoch_counts.epochs(update),
            "training_loss": training["mean_loss"],
            "training_accuracy": training["accuracy"],
            "loss": loss / total,
            "accuracy": accuracy,
            "top_5": correct_of_top / total,
            "correct": correct,
            "total": total,
            "best": self.best,
        }
        _log.info(
            "epoch %(epoch)g: training loss %(training_loss).4f, accuracy %(training_accuracy).4f; "
            "validation loss %(loss).4f, accuracy %(accuracy).4f (%(correct)d of %(total)d), top-5 "
            "%(top_5).4f, best %(best).4f",
            numbers,
        )
        self._log.record(update, numbers, target="validation")
        if is_best:
            self._best_model.save(update)

    @override
    def export_state(self, update: int) -> State:
        return State(values={"accuracy": {"best": self.best}})

    @override
    def load_state(self, saved: Saved) -> None:
        self.best = saved.numbers("accuracy").get("best", 0.0)
        if self.best and self._best_model.is_gone():
            self.best = 0.0

    def _over_ranks(self, numbers: list[float], name: str, op: str = "sum") -> list[float]:
        array = mx.nd.array(numbers, dtype="float64")
        self._world.allreduce(array, name, op)
        reduced: list[float] = array.asnumpy().tolist()
        return reduced


def count_batch(infer: Infer, batch: Batch) -> NDArray[np.float64]:
    """Return what ``count`` does, of the rows with images; and how many images are broken."""
    counted = batch.labels >= 0
    sums = count(infer(batch.images)[counted], batch.labels[counted])
    return np.append(sums, (batch.labels == BROKEN).sum())


def count(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the sum of losses, the hits, the hits among the first five, and the images.

    A hit is an image whose class has a larger logit [b, classes] than every other; what is not a
    number is larger than nothing.
    """
    wide = logits.astype(np.float64)
    largest = wide.max(axis=1)
    of_label = wide[np.arange(len(labels)), labels]
    losses = np.log(np.exp(wide - largest[:, None]).sum(axis=1)) + largest - of_label
    ranks = (~(wide < of_label[:, None])).sum(axis=1) - 1
    return np.array([losses.sum(), (ranks == 0).sum(), (ranks < _TOP).sum(), len(labels)])
