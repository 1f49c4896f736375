"""A worker of ``classify.py`` on a machine that is some times slower, and what it keeps of its way.

    python -m benchmarks.grouping_worker FOLDER FACTOR,FACTOR,... OPTIONS...

Worker k is FACTOR k times slower than it could be: before each step it rests for its own last
step's processor time, as measured, times the factor less 1. It writes when its steps ended into
``steps-k`` (seconds of the clock on the wall; the first line is the beginning). Worker 0 also keeps
the weights that it has after every few steps, to be judged when the time of nobody is measured.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import classify
from parallel.parameter_server import place
from runtime.errors import run_program
from training import classify_config

STEPS_BETWEEN_WEIGHTS = 5


class HinderedStep:
    """A step of the training loop on a slower machine."""

    def __init__(self, step: Any, folder: Path, worker: int, factor: float) -> None:
        """Args: step: a ``ClassifyStep``; folder: of the records; factor: of slowness."""
        self._step, self._folder, self._worker, self._factor = step, folder, worker, factor
        self._lines = open(folder / f"steps-{worker}", "w", buffering=1)
        self._steps = 0
        self._work_began = 0.0

    def __call__(self, batch: Any, update: int, lr: float) -> Any:
        """See ``training.loop.Step``."""
        if self._steps:
            time.sleep((self._factor - 1) * (time.process_time() - self._work_began))
        else:
            self._note()
        self._work_began = time.process_time()
        loss = self._step(batch, update, lr)
        self._steps += 1
        moment = self._note()
        if self._worker == 0 and self._steps % STEPS_BETWEEN_WEIGHTS == 0:
            self._keep(moment)
        return loss

    def _note(self) -> float:
        moment = time.time()
        self._lines.write(f"{moment:.6f}\n")
        return moment

    def _keep(self, moment: float) -> None:
        np.save(self._folder / f"{moment:.6f}.npy", flatten(self._step.classifier))


def flatten(classifier: Any) -> Any:
    """All parameters of a classifier as one array, float32 [n]."""
    values = [parameter.data() for parameter in classifier.parameters.values()]
    return np.concatenate([value.asnumpy().ravel() for value in values])


def main() -> int:
    """Train."""
    folder = Path(sys.argv[1])
    factors = [float(word) for word in sys.argv[2].split(",")]
    here = place.find(os.environ)
    assert here is not None, "python -m benchmarks.grouping starts this program"
    worker = here.worker
    return classify.classify(
        classify_config.parse(sys.argv[3:]),
        dress=lambda step: HinderedStep(step, folder, worker, factors[worker]),
    )


if __name__ == "__main__":
    run_program(main)
