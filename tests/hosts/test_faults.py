"""Each fault between two hosts once, and a host that is gone; ``make hostfaults`` does more."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.hosts import faults
from tests.hosts.faults import FAULTS, HOST_TIMEOUT, OPTIONS, UPDATES, HostJob, Round
from tests.support import hosts, relay
from tests.support.hosts import TwoHosts

WHY_NOT = hosts.missing() or (None if Path(relay.DEVICE).exists() else f"needs {relay.DEVICE}")
pytestmark = [
    pytest.mark.hosts,
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
    pytest.mark.timeout(1800),
]
# As the launchers take turns, each has two faults.
ROUNDS = {
    number: Round(name, fault.launchers[number % len(fault.launchers)], number % 2, 8 + number, 0.1)
    for number, (name, fault) in enumerate(FAULTS.items())
}


@pytest.fixture(scope="module")
def hosts_and_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TwoHosts, Path]]:
    with faults.two_hosts(tmp_path_factory.mktemp("hosts")) as started:
        yield started


def test_each_fault_ends_right(hosts_and_disk: tuple[TwoHosts, Path]) -> None:
    lines = faults.run(ROUNDS, *hosts_and_disk)
    assert len(lines) == len(FAULTS) and all(map(faults.is_right, lines)), lines


def arrays(models: Path, output: Path) -> dict[str, Any]:
    """Of all ranks in the last checkpoint, as one would hold them."""
    path = models / f"checkpoints/update-{UPDATES:08d}"
    command = [sys.executable, "-m", "training.checkpoint", "merge", str(path)]
    subprocess.run([*command, "--output", str(output)], check=True)
    with np.load(output) as archive:
        return dict(archive)


def test_a_run_goes_on_without_a_host_that_is_gone(
    hosts_and_disk: tuple[TwoHosts, Path], tmp_path: Path
) -> None:
    """With the centers of both ranks: nothing is left to train, so they are what they were.

    The host goes while the run starts; before the first start, it would be a user's error.
    """
    two, disk = hosts_and_disk
    models = disk / "gone"
    with HostJob(two, "run.sh", models, *OPTIONS) as job:
        assert job.process.wait(300) == 0, job.said()
    before = arrays(models, tmp_path / "before.npz")
    # In a folder of its own, the run writes the checkpoint again from which it goes on.
    alone, resume = disk / "alone", ("--resume", models / f"checkpoints/update-{UPDATES:08d}")
    try:
        with HostJob(two, "run.sh", alone, *OPTIONS, *resume, "--restarts", 1) as job:
            job.wait_until(lambda: any(one.is_rank for one in job.processes()), 120)
            two.disturb(loss=1)
            assert job.process.wait(300) == 0, job.said()
    finally:
        two.disturb()
    line = "run.sh: host2 cannot be reached by ssh; the run goes on without, on host1:1\n"
    assert line in job.said()
    assert f"update {UPDATES} of {UPDATES} is finished already" in job.said()
    written = alone.glob(f"checkpoints/update-{UPDATES:08d}/rank-*.bin")
    assert [path.name for path in written] == ["rank-0000.bin"]
    after = arrays(alone, tmp_path / "after.npz")
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert np.array_equal(value, after[name]), name


def test_a_host_that_is_gone_before_the_first_start_is_a_users_error(
    hosts_and_disk: tuple[TwoHosts, Path],
) -> None:
    two, disk = hosts_and_disk
    two.disturb(loss=1)
    try:
        began = time.monotonic()
        with HostJob(two, "run.sh", disk / "never", *OPTIONS, "--restarts", 3) as job:
            assert job.process.wait(300) == 2, job.said()
    finally:
        two.disturb()
    assert time.monotonic() - began < HOST_TIMEOUT + 60
    assert job.said().startswith("error: host host2: no connection by ssh (")
    assert len(job.said().splitlines()) == 1
