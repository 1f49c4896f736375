"""A benchmark's worker without a process of its own: its subject lives in the test's process."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from typing import Any


class NearWorker:
    """As ``benchmarks.worker.Worker``, whose own tests cover processes and memory."""

    def __init__(self, target: str, threads: int, python: str = "") -> None:
        del threads, python
        module, _, name = target.partition(":")
        self._factory = getattr(importlib.import_module(module), name)

    def create(self, arguments: Mapping[str, Any]) -> None:
        self._subject = self._factory(**arguments)

    def step(self) -> float:
        start = time.perf_counter()
        self._subject.step()
        return time.perf_counter() - start

    def peak_memory(self) -> int:
        return 2**20

    def __enter__(self) -> NearWorker:
        return self

    def __exit__(self, *error: object) -> None:
        pass
