"""How the gradients of a classifier become weights: over the ranks of Horovod, or over servers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Union

from data.batches.position import EpochPart
from parallel.parameter_server import assignment
from parallel.world import TimedWorld, Wire, join_ranks
from runtime import environment
from runtime.stopwatch import Stopwatch
from training import same_data
from training.config.exchange import HOROVOD
from training.config.images import ImageConfig
from training.exchange.ranks import Ranks
from training.exchange.server_workers import ServerWorkers
from training.update.optimizer import BackboneOptimizer, Optimizer


def join(
    config: ImageConfig, num_images: int, files: Sequence[Path]
) -> Union[HorovodWorkers, ServerWorkers]:
    """Meet the other workers of a run.

    Args:
        config: checked.
        num_images: of an epoch, over all workers.
        files: what the images are read from, the same on every host.

    Raises:
        ConfigError: a host has other files.
    """
    workers: Union[HorovodWorkers, ServerWorkers]
    if config.exchange.kv_store == HOROVOD:
        workers = HorovodWorkers(config, num_images)
    else:
        own = assignment.find(environment.variables())
        assert own is not None, "check() lets no run without servers pass"
        workers = ServerWorkers(config, own, num_images)
    same_data.check(files, workers.everyone)
    return workers


class HorovodWorkers(Ranks):
    """The ranks of Horovod with their optimizer and each one's part of an epoch."""

    def __init__(self, config: ImageConfig, num_images: int) -> None:
        """Args: see ``join``."""
        super().__init__(join_ranks())
        self._config, self._num_images = config, num_images

    def epoch_part(self) -> EpochPart:
        """Return the part of each epoch that this rank reads."""
        batch_size = self._config.data.batch_size
        return EpochPart.of_rank(self._num_images, batch_size, self.number, self.size)

    def optimizer(self, parameters: Any, stopwatch: Stopwatch) -> Optimizer:
        """The optimizer of a ``gluon.ParameterDict``."""
        options = self._config.exchange
        return BackboneOptimizer(
            self._config.optimizer,
            parameters,
            TimedWorld(self.world, stopwatch),
            dtype=self._config.classifier.dtype,
            wire=Wire(options.fp16_allreduce, options.gradient_predivide_factor),
            stopwatch=stopwatch,
        )
