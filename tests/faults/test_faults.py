"""Few kills; ``make faults`` does more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import campaign


@pytest.mark.launcher
@pytest.mark.timeout(1200)
def test_a_killed_run_goes_on_and_ends_equal(tmp_path: Path) -> None:
    uninterrupted = campaign.train(tmp_path / "uninterrupted", campaign.Setup())
    for setup in (campaign.Setup(), campaign.Setup(stored=True, kills=2)):
        folder = tmp_path / str(setup.kills)
        (line,) = campaign.run(1, 7, folder, setup, uninterrupted)
        assert line.endswith(": equal"), line
