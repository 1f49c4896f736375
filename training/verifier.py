"""Verification while training: every set, all ranks, best accuracy so far."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from typing_extensions import override

from backbones.model import Backbone
from data.verification.bin_file import VerificationSet
from evaluation import verification
from evaluation.features import NotFiniteError
from parallel.world import World, allgather_numpy
from runtime.errors import DataError
from runtime.state import Saved, State, Stateful
from training.log.run_log import RunLog
from training.model_saver import average_statistics

_log = logging.getLogger(__name__)


class Verifier(Stateful):
    """Verifies the backbone on each target and remembers the untrained and the best accuracies."""

    def __init__(
        self,
        backbone: Backbone,
        targets: Sequence[VerificationSet],
        world: World,
        log: RunLog,
        *,
        batch_size: int,
        image_size: tuple[int, int],
    ) -> None:
        self._backbone, self._targets = backbone, targets
        self._world, self._log = world, log
        self._batch_size, self._image_size = batch_size, image_size
        self.first: dict[str, float] = {}
        self.best: dict[str, float] = {}
        self.last: dict[str, float] = {}

    def verify(self, update: int) -> dict[str, float]:
        """Verify every target, report and remember the accuracies, and return them by name.

        Raises:
            DataError: a set is broken, or the network has diverged.
        """
        average_statistics(self._backbone, self._world)
        gather = partial(allgather_numpy, self._world)
        ranks = verification.EmbeddingRanks(self._world.rank, self._world.size, gather)
        extract = self._backbone.inference()
        for target in self._targets:
            try:
                result = verification.evaluate(
                    extract,
                    target,
                    batch_size=self._batch_size,
                    ranks=ranks,
                    image_size=self._image_size,
                )
            except NotFiniteError:
                remedy = "lower --lr" if update else "give another epoch as --pretrained"
                raise DataError(
                    f"verification {target.name} at update {update}: the network gives embeddings "
                    f"that are not finite; it has diverged: {remedy}"
                ) from None
            if not update:
                self.first[target.name] = result.accuracy
            self.last[target.name] = result.accuracy
            self.best[target.name] = max(self.best.get(target.name, 0.0), result.accuracy)
            self._log.verification(target.name, result, best=self.best[target.name], update=update)
        return {target.name: self.last[target.name] for target in self._targets}

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
