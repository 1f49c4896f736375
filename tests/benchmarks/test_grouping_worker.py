"""A slowed worker rests in proportion to its own work."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmarks.grouping_worker import SlowedStep


class Machine:
    """Clocks that steps and sleeping move on."""

    def __init__(self, idling: float) -> None:
        self.seconds = self.processor = 100.0
        self.idling = idling
        self.rests: list[float] = []

    def step(self, batch: object, update: int, lr: float) -> None:
        """A tenth of a second of work, and as long a wait for others."""
        self.seconds += 0.2
        self.processor += 0.1 + 0.2 * self.idling

    def sleep(self, seconds: float) -> None:
        self.rests.append(seconds)
        self.seconds += seconds
        self.processor += seconds * self.idling


@pytest.mark.parametrize("idling", [0.0, 0.3])
def test_rests_are_the_work_times_the_factor_less_one(
    tmp_path: Path, monkeypatch, idling: float
) -> None:
    machine = Machine(idling)
    for name in ("monotonic", "process_time"):
        which = "seconds" if name == "monotonic" else "processor"
        monkeypatch.setattr(time, name, lambda which=which: getattr(machine, which))
    monkeypatch.setattr(time, "sleep", machine.sleep)
    step = SlowedStep(machine.step, tmp_path, worker=1, factor=4)
    for update in range(5):
        step(None, update, 0.1)
    # What idles away is known from the first rest on.
    first = 3 * (0.1 + 0.2 * idling)
    assert machine.rests == pytest.approx([first, 0.3, 0.3, 0.3])
    assert len((tmp_path / "steps-1").read_text().split()) == 6


def test_a_fast_worker_does_not_rest(tmp_path: Path, monkeypatch) -> None:
    machine = Machine(0.3)
    monkeypatch.setattr(time, "sleep", machine.sleep)
    step = SlowedStep(machine.step, tmp_path, worker=1, factor=1)
    for update in range(3):
        step(None, update, 0.1)
    assert machine.rests == []
