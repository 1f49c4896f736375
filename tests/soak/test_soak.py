"""A replay finds wrong lines; and one job of a few seconds: the small form of ``make soak``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak import soak
from tests.soak.replay import replay

# Two workers and two buckets; the second push of worker 1 comes between those of worker 0.
WORKERS = {
    "worker-0": "pusher 0 4 7|pull 0 0|push|pull 2 3|push|pull 4 4",
    "worker-1": "pusher 1 4 7|pull 0 0|push|pull 1 1|push|pull 3 3",
}
SERVER = "4 1 0 0 1|4 0 0 1 2|7 1 0 0 1|4 1 1 2 2|7 1 1 1 1|7 0 0 2 3|4 0 2 3 2|7 0 3 3 1"


def written(folder: Path, server: str = SERVER) -> Path:
    for name, lines in {**WORKERS, "server-a": server}.items():
        (folder / name).write_text(lines.replace("|", "\n") + "\n")
    return folder


def test_a_sound_trace(tmp_path: Path) -> None:
    found = replay(written(tmp_path))
    assert (found.mismatches, found.messages) == (0, [])
    assert (found.pushes, found.updates, found.buckets) == (4, 8, 2)
    assert (found.largest, found.uneven) == (3, 1)


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("4 0 0 1 2", "4 0 0 1 1", "bucket 4, update 2, push 1 of pusher 0: staleness: 1, not 2"),
        (
            "4 0 2 3 2",
            "4 0 3 3 1",
            "bucket 4, update 4, push 2 of pusher 0: sent version: 3, not 2",
        ),
        ("7 1 1 1 1", "7 1 1 2 2", "bucket 7, update 2, push 2 of pusher 1: version: 2, not 1"),
        ("|7 0 3 3 1", "", "pushes of pusher 0 to bucket 7: 1, not 2"),
        ("|7 0 3 3 1", "|7 0 3 3 1|7 0 4 4 1", "push 3 of pusher 0: applied, not pushed"),
    ],
)
def test_a_wrong_line_is_reported(right: str, wrong: str, message: str, tmp_path: Path) -> None:
    found = replay(written(tmp_path, SERVER.replace(right, wrong)))
    assert found.mismatches > 0
    assert any(message in line for line in found.messages), found.messages


def test_a_version_that_falls_is_reported(tmp_path: Path) -> None:
    (written(tmp_path) / "worker-0").write_text("pusher 0 4 7\npull 2 3\npull 2 2\n")
    assert "worker-0: versions that fell: [2], not []" in replay(tmp_path).messages


@pytest.mark.launcher
def test_a_job_of_some_seconds(tmp_path: Path) -> None:
    """Three servers, through the launcher, until a signal stops it."""
    found = soak.run("asp", tmp_path / "asp", seconds=4, workers=2, servers=3)
    assert found.is_well, found
    assert found.replay.buckets > 10 and found.replay.pushes > 20
