"""Three kills; ``make faults`` does more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import campaign


@pytest.mark.launcher
def test_killed_runs_go_on_and_end_equal(tmp_path: Path) -> None:
    lines = campaign.run(3, 7, tmp_path)
    assert [line.endswith(": equal") for line in lines] == [True] * 3, lines
