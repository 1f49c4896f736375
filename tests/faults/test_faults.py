"""Few kills; ``make faults`` does more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import __main__ as campaign


@pytest.mark.launcher
@pytest.mark.timeout(1200)
def test_a_killed_run_goes_on_and_ends_equal(tmp_path: Path) -> None:
    """With the centers in a store; exercise 5 of the lab does the same without one."""
    uninterrupted = campaign.train(tmp_path / "uninterrupted", campaign.Setup())
    setup = campaign.Setup(stored=True, kills=2)
    (line,) = campaign.run(1, 7, tmp_path / "killed", setup, uninterrupted)
    assert line.endswith(": equal"), line
