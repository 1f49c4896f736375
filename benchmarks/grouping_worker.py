"""A worker of ``classify.py`` on a machine that is some times slower, and what it keeps of its way.

    python -m benchmarks.grouping_worker FOLDER FACTOR,FACTOR,... OPTIONS...

Worker k is FACTOR k times slower than it could be: before each step it rests for the processor time
of its own last step, as measured, times the factor less 1. What the threads of Horovod take all the
time, also while it rests, is not of the step: a slower machine would not have more of it.

It writes when its steps ended into ``steps-k`` (seconds of the clock on the wall; the first line is
the beginning). Worker 0 also keeps the weights that it has after every few steps, to be judged when
the time of nobody is measured.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import classify
from parallel.parameter_server import assignment
from runtime.errors import run_program
from training.config import images

STEPS_BETWEEN_WEIGHTS = 5


class _Moment(NamedTuple):
    """A point in time, or the distance between two."""

    seconds: float
    processor: float
    """Of all threads of this process."""

    @classmethod
    def now(cls) -> _Moment:
        return cls(time.monotonic(), time.process_time())

    def __sub__(self, other: _Moment) -> _Moment:
        return _Moment(self.seconds - other.seconds, self.processor - other.processor)


class HinderedStep:
    """A step of the training loop on a slower machine."""

    def __init__(self, step: Any, folder: Path, worker: int, factor: float) -> None:
        """Args: step: a ``ClassifyStep``; folder: of the records; factor: of slowness."""
        self._step, self._folder, self._worker, self._factor = step, folder, worker, factor
        self._lines = open(folder / f"steps-{worker}", "w", buffering=1)
        self._steps = 0
        # Processor time of the last step, and per second of rest.
        self._work = self._idling = 0.0

    def __call__(self, batch: Any, update: int, lr: float) -> Any:
        """See ``training.loop.Step``."""
        if self._steps:
            self._rest((self._factor - 1) * self._work)
        else:
            self._note()
        began = _Moment.now()
        loss = self._step(batch, update, lr)
        taken = _Moment.now() - began
        self._work = max(taken.processor - self._idling * taken.seconds, 0.0)
        self._steps += 1
        moment = self._note()
        if self._worker == 0 and self._steps % STEPS_BETWEEN_WEIGHTS == 0:
            self._keep(moment)
        return loss

    def _rest(self, seconds: float) -> None:
        if seconds > 0:
            began = _Moment.now()
            time.sleep(seconds)
            taken = _Moment.now() - began
            self._idling = taken.processor / taken.seconds

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
    here = assignment.find(os.environ)
    assert here is not None, "python -m benchmarks.grouping starts this program"
    worker = here.worker
    return classify.classify(
        images.parse(sys.argv[3:]),
        wrap=lambda step: HinderedStep(step, folder, worker, factors[worker]),
    )


if __name__ == "__main__":
    run_program(main)
