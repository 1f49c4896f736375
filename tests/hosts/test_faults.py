"""Each fault between two hosts once; ``make hostfaults`` does more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts import faults
from tests.hosts.faults import FAULTS, Round
from tests.support import hosts, relay

WHY_NOT = hosts.missing() or (None if Path(relay.DEVICE).exists() else f"needs {relay.DEVICE}")


@pytest.mark.hosts
@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
@pytest.mark.timeout(1800)
def test_each_fault_ends_right(tmp_path: Path) -> None:
    # As the launchers take turns, each has two faults.
    rounds = [
        Round(name, one.launchers[number % len(one.launchers)], number % 2, 8 + number, 0.1)
        for number, (name, one) in enumerate(FAULTS.items())
    ]
    with faults.two_hosts(tmp_path) as (two, disk):
        lines = faults.run(rounds, two, disk)
    assert len(lines) == len(FAULTS) and all(map(faults.is_right, lines)), lines
