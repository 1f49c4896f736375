"""One job of a few seconds: the small form of ``make soak``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak import __main__ as soak


@pytest.mark.launcher
def test_a_job_of_some_seconds(tmp_path: Path) -> None:
    """Three servers, through the launcher, until a signal stops it."""
    found = soak.run("asp", tmp_path / "asp", seconds=4, workers=2, servers=3)
    assert found.is_well, found
    assert found.replay.buckets > 10 and found.replay.pushes > 20
