"""Two kills of one run; ``make faults`` does more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import campaign


@pytest.mark.launcher
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "setup",
    [
        campaign.Setup(ranks=2, kills=2),
        campaign.Setup(ranks=2, stored=True, kills=2),
    ],
    ids=["in memory", "a store"],
)
def test_a_killed_run_goes_on_and_ends_equal(tmp_path: Path, setup: campaign.Setup) -> None:
    (line,) = campaign.run(1, 7, tmp_path, setup)
    assert line.endswith(": equal"), line
