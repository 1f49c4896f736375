"""Each fault between two hosts once, and a host that is gone; ``make hostfaults`` does more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.hosts import faults
from tests.hosts.faults import FAULTS, OPTIONS, UPDATES, Round
from tests.support import hosts, relay
from tests.support.host_job import HostJob
from tests.support.hosts import TwoHosts
from training.checkpoint.__main__ import merge
from training.checkpoint.layout import Checkpoint

WHY_NOT = hosts.missing() or (None if Path(relay.DEVICE).exists() else f"needs {relay.DEVICE}")
pytestmark = [
    pytest.mark.hosts,
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
    pytest.mark.timeout(1800),
]
# As the launchers take turns, each has two faults.
ROUNDS = [
    Round(name, fault.launchers[number % len(fault.launchers)], number % 2, 6 + number, 0.1)
    for number, (name, fault) in enumerate(FAULTS.items())
]


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with faults.small_disk(tmp_path_factory.mktemp("small") / "disk") as folder:
        yield folder


@pytest.fixture(scope="module")
def two(disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    with TwoHosts(tmp_path_factory.mktemp("hosts") / "hosts", relayed=True) as started:
        yield started


def test_each_fault_ends_right(two: TwoHosts, disk: Path) -> None:
    lines = faults.run(ROUNDS, two, disk)
    assert len(lines) == len(FAULTS) and all(map(faults.is_right, lines)), lines


def arrays(checkpoint: Path, output: Path) -> dict[str, Any]:
    """Of all ranks, as one would hold them."""
    merge(Checkpoint(checkpoint), output)
    with np.load(output) as archive:
        return dict(archive)


def test_a_run_goes_on_without_a_host_that_is_gone(
    two: TwoHosts, disk: Path, tmp_path: Path
) -> None:
    """With the centers of both ranks: nothing is left to train, so they are what they were."""
    models = disk / "gone"
    with HostJob(two, "run.sh", models, *OPTIONS) as job:
        assert job.process.wait(300) == 0, job.said()
    path = models / f"checkpoints/update-{UPDATES:08d}"
    before = Checkpoint(path).manifest, arrays(path, tmp_path / "merged.npz")
    two.disturb(loss=1)
    try:
        with HostJob(two, "run.sh", models, *OPTIONS, "--restarts", 1) as job:
            assert job.process.wait(300) == 0, job.said()
            said = job.said()
    finally:
        two.disturb()
    line = "run.sh: host2 cannot be reached by ssh; the run goes on without, on host1:1\n"
    assert line in said
    after = Checkpoint(path).manifest, arrays(path, tmp_path / "merged.npz")
    assert (before[0].world_size, after[0].world_size) == (2, 1)
    assert before[0].values["progress"] == after[0].values["progress"]
    assert before[1].keys() == after[1].keys()
    assert all(np.array_equal(before[1][name], after[1][name]) for name in before[1])
