"""Each fault between two hosts once; ``make hostfaults`` does more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts import faults
from tests.hosts.faults import FAULTS, Round
from tests.support import relay

pytestmark = pytest.mark.timeout(1800)
# As the launchers take turns, each has two faults.
ROUNDS = {
    number: Round(name, fault.launchers[number % len(fault.launchers)], number % 2, 8 + number, 0.1)
    for number, (name, fault) in enumerate(FAULTS.items())
}


@pytest.mark.skipif(not Path(relay.DEVICE).exists(), reason=f"needs {relay.DEVICE}")
def test_each_fault_ends_right(tmp_path: Path) -> None:
    with faults.two_hosts(tmp_path) as (two, disk):
        lines = faults.run(ROUNDS, two, disk)
    assert len(lines) == len(FAULTS) and all(map(faults.is_right, lines)), lines
