"""The best model of a run, beside its last one.

The last model of a run is often not its best, and what has been trained since is lost if only the
last is kept. What counts is in the checkpoint: a run that goes on makes the updates after its
checkpoint again, so it also judges again what was verified since, and comes to the same model. The
file may then be of a later update than the checkpoint, never of an earlier one: it is on the disk
before a checkpoint that knows of it is begun.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Callable, Optional

from typing_extensions import override

from backbones.network import Network
from parallel.world import World
from runtime.state import Saved, State, Stateful
from training.model_saver import BEST, ModelSaver

_log = logging.getLogger(__name__)


class BestModel(Stateful):
    """Verifies, and keeps the model in ``model-best-*`` if none was better before.

    Models are compared by the accuracy on one set, or by the mean over all sets. Of equal ones the
    earlier stays.

    Attributes:
        accuracies: of the model that is kept, by set; empty before the first.
    """

    def __init__(
        self,
        network: Network,
        world: World,
        folder: Path,
        verify: Callable[[int], Mapping[str, float]],
        deciding: Optional[str] = None,
    ) -> None:
        """Assemble it.

        Args:
            network: what is kept.
            world: the ranks, which verify together.
            folder: of the run; rank 0 writes there.
            verify: verifies the network after so many updates, and returns accuracies by set.
            deciding: the set that counts; without it the mean of all.
        """
        self._saver = ModelSaver(network, world, folder, BEST)
        self._world, self._verify, self._deciding = world, verify, deciding
        self.accuracies: dict[str, float] = {}

    def verify(self, update: int) -> None:
        """Verify after ``update`` updates, and keep the best model; all ranks together.

        Raises:
            DataError: the files cannot be written.
        """
        # Processors of several kinds may round an accuracy differently; rank 0's is everybody's.
        found = self._world.broadcast_object(dict(self._verify(update)), "best.accuracies")
        if self._is_best(found, update):
            self._saver.save(update)
            self.accuracies = found

    @override
    def export_state(self, update: int) -> State:
        return State(values={"accuracies": dict(self.accuracies)})

    @override
    def load_state(self, saved: Saved) -> None:
        if saved.has("accuracies"):
            self.accuracies = saved.numbers("accuracies")
        if self.accuracies and self._saver.is_gone():
            self.accuracies = {}

    def _is_best(self, found: Mapping[str, float], update: int) -> bool:
        names = [self._deciding] if self._deciding is not None else [*found]
        if not found or not found.keys() >= set(names):
            return False
        if not self.accuracies.keys() >= set(names):
            if self.accuracies:
                _log.warning(
                    "the best model was verified on %s, not on %s: that of update %d takes its "
                    "place, without a comparison",
                    *(", ".join(self.accuracies), ", ".join(names), update),
                )
            return True
        now, before = (
            sum(accuracies[name] for name in names) for accuracies in (found, self.accuracies)
        )
        return now > before
