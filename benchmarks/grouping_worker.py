"""A worker of ``classify.py`` on a simulated slow machine, which records its steps and weights.

    python -m benchmarks.grouping_worker FOLDER FACTOR,FACTOR,... OPTIONS...

Worker k is slowed down FACTOR k times: before each step it sleeps for the processor time of its
last step times the factor less 1. The processor time that other threads (of Horovod) take all the
time, also while it sleeps, is subtracted: a slower machine would not have more of it.

It writes the ends of its steps into ``steps-k`` (wall-clock seconds; the first line is the
beginning). Worker 0 also saves its weights after every few steps, for an evaluation after the job.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

import classify
from parallel.parameter_server import assignment
from runtime.errors import run_program
from training.config import images
from training.loop import Step

STEPS_BETWEEN_WEIGHTS = 5


def _clocks() -> tuple[float, float]:
    """Seconds, and seconds of processor time of all threads of this process."""
    return time.monotonic(), time.process_time()


class SlowedStep(Step):
    """A step of the training loop on a simulated slow machine."""

    def __init__(self, step: Any, folder: Path, worker: int, factor: float) -> None:
        """Args: step: a ``ClassifyStep``; folder: of the records; factor: how many times slower."""
        self._step, self._folder, self._worker, self._factor = step, folder, worker, factor
        self._lines = open(folder / f"steps-{worker}", "w", buffering=1)
        self._steps = 0
        # Processor time of the last step, and per second of sleep.
        self._work = self._idling = 0.0

    @override
    def __call__(self, batch: Any, update: int, lr: float) -> Any:
        if self._steps:
            self._rest((self._factor - 1) * self._work)
        else:
            self._note()
        began = _clocks()
        loss = self._step(batch, update, lr)
        seconds, processor = (now - then for now, then in zip(_clocks(), began))
        self._work = max(processor - self._idling * seconds, 0.0)
        self._steps += 1
        moment = self._note()
        if self._worker == 0 and self._steps % STEPS_BETWEEN_WEIGHTS == 0:
            self._keep(moment)
        return loss

    @override
    def finish(self) -> None:
        self._step.finish()

    def _rest(self, seconds: float) -> None:
        if seconds > 0:
            began = _clocks()
            time.sleep(seconds)
            slept, processor = (now - then for now, then in zip(_clocks(), began))
            self._idling = processor / slept

    def _note(self) -> float:
        moment = time.time()
        self._lines.write(f"{moment:.6f}\n")
        return moment

    def _keep(self, moment: float) -> None:
        parameters = self._step.classifier.parameters
        weights = {name: parameter.data().asnumpy() for name, parameter in parameters.items()}
        np.savez(self._folder / f"{moment:.6f}.npz", **weights)


def main() -> int:
    """Train."""
    folder = Path(sys.argv[1])
    factors = [float(word) for word in sys.argv[2].split(",")]
    here = assignment.find(os.environ)
    assert here is not None, "python -m benchmarks.grouping starts this program"
    worker = here.worker
    return classify.classify(
        images.parse(sys.argv[3:]),
        wrap=lambda step: SlowedStep(step, folder, worker, factors[worker]),
    )


if __name__ == "__main__":
    run_program(main)
