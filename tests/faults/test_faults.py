"""Three kills of one run; ``make faults`` does more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import campaign


@pytest.mark.launcher
@pytest.mark.timeout(1200)
def test_a_killed_run_goes_on_and_ends_equal(tmp_path: Path) -> None:
    (line,) = campaign.run(1, 7, tmp_path, kills_each=3)
    assert line.endswith(": equal"), line
