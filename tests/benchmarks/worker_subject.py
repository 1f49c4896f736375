"""What the worker of the tests measures: a step of a known size, with the threads it was given."""

from __future__ import annotations

import os

import numpy as np


class Subject:
    def __init__(self, mebibytes: int, threads: int) -> None:
        assert os.environ["OMP_NUM_THREADS"] == os.environ["NUMBA_NUM_THREADS"] == str(threads)
        self._kept = np.ones(mebibytes << 17)
        self._steps = 0

    def step(self) -> None:
        print("a library that prints")
        self._steps += 1
        assert self._steps < 3, "tired"
        self._kept + 1
