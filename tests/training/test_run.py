"""What a run knows when it begins; how it goes on from checkpoints is in test_resume."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from parallel.world import LoneWorld
from training.config import images
from training.exchange.rebalancing import Leg
from training.run import begin


def test_a_later_leg_knows_the_checkpoints_of_those_before(tmp_path: Path) -> None:
    given = {"dataset": "synthetic", "models_root": str(tmp_path), "epochs": 4}
    config = images.resolve(given)
    last = tmp_path / "checkpoints/update-00000020"
    run = begin(
        config,
        images.values(config),
        SimpleNamespace(num_images=100, global_batch=10, updates_per_epoch=10),
        LoneWorld(),
        num_classes=10,
        image_size=(32, 32),
        fixed=(),
        leg=Leg(epoch=2, update=20, best=0.5, checkpoint=last),
    )
    assert (run.progress.start_update, run.progress.total_updates) == (20, 40)
    with run.restore({}) as checkpointer:
        # What an error says one may go on from.
        assert checkpointer.last == last
    assert json.loads((tmp_path / "config.json").read_text()) == images.values(config)


@pytest.mark.parametrize(
    ("root", "go_on", "is_told"),
    [("models/x", "auto", True), ("models/x", "never", False), ("other", "auto", False)],
)
def test_checkpoints_in_the_folder_of_earlier_versions_are_told_of(
    root: str,
    go_on: str,
    is_told: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models/checkpoints").mkdir(parents=True)
    caplog.set_level("INFO")
    given = {"dataset": "synthetic", "models_root": root, "resume": go_on}
    config = images.resolve(given)
    begin(
        config,
        images.values(config),
        SimpleNamespace(num_images=100, global_batch=10, updates_per_epoch=10),
        LoneWorld(),
        num_classes=10,
        image_size=(32, 32),
        fixed=(),
    )
    assert ("go on from them with --models-root models" in caplog.text) == is_told
