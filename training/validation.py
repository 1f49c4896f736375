"""Verification and validation while training, and the network that is saved: last and best.

All ranks share the sets. Parameters start equal and get equal updates. BatchNorm's running
statistics do not: each rank has those of its own images. They are averaged before the network is
verified or saved, so that every rank verifies, and rank 0 saves, the same network.

What counts of the best model is in the checkpoint: a run that goes on makes the updates after its
checkpoint again, so it also judges again what was verified since, and comes to the same model. The
file may then be of a later update than the checkpoint, never of an earlier one: it is on the disk
before a checkpoint that knows of it is begun.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Optional

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from backbones.inference import Infer
from backbones.model import Backbone
from backbones.network import Network, checkpoint_paths
from data.batches.image_loader import BROKEN
from data.batches.loader import Batch
from data.verification.bin_file import VerificationSet
from evaluation import verification
from evaluation.features import FaceNetwork
from parallel.world import World
from runtime.errors import DataError
from runtime.mxnet import mx
from runtime.state import Saved, State, Stateful
from training.log.run_log import RunLog
from training.update.optimizer import make_equal

if TYPE_CHECKING:
    from training.update.classify_step import EpochCounts

_log = logging.getLogger(__name__)

# The names of the files before "-symbol.json" and "-0000.params".
LAST, BEST = "model", "model-best"
# The set of ``classify.py``.
_VALIDATION = "validation"
_TOP = 5


def average_statistics(backbone: Network, world: World) -> None:
    """Give every rank the mean of all ranks' BatchNorm statistics."""
    world.allreduce_all(backbone.statistics, "backbone.statistics", op="mean")


class ModelSaver:
    """Writes ``model-symbol.json`` and ``model-0000.params`` into the run's folder, from rank 0."""

    def __init__(
        self, backbone: Network, world: World, models_root: Path, name: str = LAST
    ) -> None:
        """Args: what to save, over which ranks, in which folder, under which name."""
        self._backbone, self.world = backbone, world
        self._prefix = models_root / name

    def save(self, update: int) -> None:
        """Save the network after ``update`` updates; returns when it is on disk, on all ranks."""
        average_statistics(self._backbone, self.world)
        if self.world.rank == 0:
            self._backbone.export(self._prefix)
            _log.info("update %d: model saved in %s-*", update, self._prefix)
        self.world.barrier()


class BestModel(ModelSaver, Stateful):
    """Keeps the model in ``model-best-*`` if none was better before.

    Models are compared by the accuracy on one set, or by the mean over all sets. Of equal ones the
    earlier stays.

    Attributes:
        accuracies: of the model that is kept, by set; empty before the first.
    """

    def __init__(
        self, network: Network, world: World, folder: Path, deciding: Optional[str] = None
    ) -> None:
        """Keep a network in the folder of a run; the ``deciding`` set counts, or all of them."""
        super().__init__(network, world, folder, BEST)
        self._deciding = deciding
        self.accuracies: dict[str, float] = {}

    def keep(self, update: int, found: Mapping[str, float]) -> Mapping[str, float]:
        """Keep the model of an update if it is the best; all ranks together, rank 0 writes.

        ``found`` has its accuracies by set; returns those of the model that is kept.

        Raises:
            DataError: the files cannot be written.
        """
        # Processors of several kinds may round an accuracy differently, and workers that have come
        # into this world with other groups do not know what was best: rank 0 says it.
        both = dict(found), self.accuracies
        found, self.accuracies = self.world.broadcast_object(both, "best.accuracies")
        if found and self._is_best(found):
            self.save(update)
            self.accuracies = dict(found)
        return self.accuracies

    def load(self, read: Callable[[Path, int], object]) -> None:
        """Give every rank the kept network, if any, which rank 0 reads.

        Raises:
            DataError: the file is broken or of another network.
        """
        if not self.accuracies:
            return
        if self.world.rank == 0:
            read(self._prefix, 0)
        parameters = self._backbone.parameters.values()
        make_equal([parameter.data() for parameter in parameters], self.world)
        _log.info("going on from the network in %s-*", self._prefix)

    @override
    def export_state(self, update: int) -> State:
        return State(values={"accuracies": dict(self.accuracies)})

    @override
    def load_state(self, saved: Saved) -> None:
        self.accuracies = saved.numbers("accuracies")
        path = checkpoint_paths(self._prefix, 0)[1]
        if self.world.broadcast_object(not path.is_file(), "saved.gone") and self.accuracies:
            _log.warning("%s is gone: the run goes on without it", path)
            self.accuracies = {}

    def _is_best(self, found: Mapping[str, float]) -> bool:
        names = [*found] if self._deciding is None else [self._deciding]
        if not self.accuracies.keys() >= {*names}:
            # The kept one cannot be compared, as it was not verified on these sets.
            return True
        now, before = (
            sum(accuracies[name] for name in names) for accuracies in (found, self.accuracies)
        )
        return now > before


class Verifier(Stateful):
    """Verifies the backbone on each target and remembers the untrained and the best accuracies."""

    def __init__(
        self,
        backbone: Backbone,
        targets: Sequence[VerificationSet],
        log: RunLog,
        best_model: BestModel,
        *,
        batch_size: int,
        image_size: tuple[int, int],
    ) -> None:
        self._backbone, self._targets = backbone, targets
        self._world, self._log, self._best_model = best_model.world, log, best_model
        self._batch_size, self._image_size = batch_size, image_size
        self.first: dict[str, float] = {}
        self.best: dict[str, float] = {}
        self.last: dict[str, float] = {}

    def verify(self, update: int) -> None:
        """Verify every target, report and remember the accuracies, and keep the best model.

        Raises:
            DataError: a set is broken, or the network has diverged.
        """
        average_statistics(self._backbone, self._world)
        network = FaceNetwork(self._backbone.inference(), self._image_size, self._batch_size)
        for target in self._targets:
            result = verification.evaluate(network, target, self._world)
            if not update:
                self.first[target.name] = result.accuracy
            self.last[target.name] = result.accuracy
            self.best[target.name] = max(self.best.get(target.name, 0.0), result.accuracy)
            self._log.verification(target.name, result, best=self.best[target.name], update=update)
        found = {target.name: self.last[target.name] for target in self._targets}
        self._best_model.keep(update, found)

    @override
    def export_state(self, update: int) -> State:
        values = {"first": self.first, "best": self.best, "last": self.last}
        return State(values={name: dict(accuracies) for name, accuracies in values.items()})

    @override
    def load_state(self, saved: Saved) -> None:
        for name in ("first", "best", "last"):
            getattr(self, name).update(saved.numbers(name))

    def summarize(self) -> None:
        """Log how far each target has come, from the untrained network if that was verified."""
        for name in (target.name for target in self._targets if target.name in self.last):
            untrained = f"untrained {self.first[name]:.4f}, " if name in self.first else ""
            _log.info(
                "verification %s: accuracy %strained %.4f, best %.4f",
                *(name, untrained, self.last[name], self.best[name]),
            )


class Validator:
    """Validates a classifier on every image once, over all ranks."""

    def __init__(
        self,
        classifier: Network,
        batches: Callable[[], Iterator[Batch]],
        epoch_counts: EpochCounts,
        world: World,
        log: RunLog,
        best: BestModel,
    ) -> None:
        """Assemble it; ``batches`` returns this rank's share of the set, anew with each call."""
        self._classifier, self._batches, self._epoch_counts = classifier, batches, epoch_counts
        self._world, self._log, self._best = world, log, best

    def validate(self, update: int) -> None:
        """Validate, report the epoch, and keep the best model."""
        average_statistics(self._classifier, self._world)
        infer = self._classifier.inference()
        counted = [count(infer, batch) for batch in self._batches()]
        sums = mx.nd.array(np.sum(counted or [np.zeros(5)], axis=0), dtype="float64")
        self._world.allreduce(sums, "validation.counts")
        loss, correct, correct_of_top, total, broken = sums.asnumpy().tolist()
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
        best = self._best.keep(update, {_VALIDATION: accuracy})
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
            "best": best[_VALIDATION],
        }
        _log.info(
            "epoch %(epoch)g: training loss %(training_loss).4f, accuracy %(training_accuracy).4f; "
            "validation loss %(loss).4f, accuracy %(accuracy).4f (%(correct)d of %(total)d), top-5 "
            "%(top_5).4f, best %(best).4f",
            numbers,
        )
        self._log.record(update, numbers, target=_VALIDATION)


def count(infer: Infer, batch: Batch) -> NDArray[np.float64]:
    """Return sum of losses, hits, hits among the first five, images, and broken images of a batch.

    A hit is an image whose class has a larger logit [b, classes] than every other; what is not a
    number is larger than nothing.
    """
    is_image = batch.labels >= 0
    labels, logits = batch.labels[is_image], infer(batch.images)[is_image].astype(np.float64)
    largest = logits.max(axis=1)
    of_label = logits[np.arange(len(labels)), labels]
    losses = np.log(np.exp(logits - largest[:, None]).sum(axis=1)) + largest - of_label
    ranks = (~(logits < of_label[:, None])).sum(axis=1) - 1
    hits, hits_of_top = (ranks == 0).sum(), (ranks < _TOP).sum()
    return np.array([losses.sum(), hits, hits_of_top, len(labels), (batch.labels == BROKEN).sum()])
