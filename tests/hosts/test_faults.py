"""Each fault between two hosts once, and a host that is gone; ``make hostfaults`` does more."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.hosts import faults
from tests.hosts.faults import FAULTS, OPTIONS, UPDATES, Round
from tests.support import relay
from tests.support.host_job import HostJob
from tests.support.hosts import TwoHosts

pytestmark = [
    pytest.mark.skipif(not Path(relay.DEVICE).exists(), reason=f"needs {relay.DEVICE}"),
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


def arrays(models: Path) -> dict[str, Any]:
    """Of all ranks in the last checkpoint, as one would hold them."""
    path, output = models / f"checkpoints/update-{UPDATES:08d}", models / "merged.npz"
    command = [sys.executable, "-m", "training.checkpoint", "merge", str(path)]
    subprocess.run([*command, "--output", str(output)], check=True)
    with np.load(output) as archive:
        return dict(archive)


def test_a_run_goes_on_without_a_host_that_is_gone(
    hosts_and_disk: tuple[TwoHosts, Path],
) -> None:
    """With the centers of both ranks. The host goes while the run starts."""
    two, disk = hosts_and_disk
    models = disk / "gone"
    with HostJob(two, "run.sh", models, *OPTIONS) as job:
        assert job.process.wait(300) == 0, job.said()
    before = arrays(models)
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
    after = arrays(alone)
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert np.array_equal(value, after[name]), name
