"""Which runs are compared, and what the report says of them; the runs are made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import distillation
from data.drawn import face_set


def test_the_runs_of_a_seed_differ_by_the_teacher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs: dict[str, tuple[str, ...]] = {}

    def train(folder: Path, models: Path, *options: str) -> float:
        runs[models.name] = options
        return {"teacher": 0.9, "alone-1": 0.5, "taught-1": 0.7, "alone-2": 0.6}.get(
            models.name, 0.55
        )

    monkeypatch.setattr(distillation, "train", train)
    monkeypatch.setattr(face_set, "ensure", lambda *_, **__: None)
    distillation.main(["--folder", str(tmp_path), "--seeds", "1", "2", "--weight", "8"])
    assert [*runs] == ["teacher", "alone-1", "taught-1", "alone-2", "taught-2"]
    taught = ("--teacher", f"{tmp_path}/teacher/model,0", "--teacher-weight", "8.0")
    for seed in "12":
        assert runs[f"taught-{seed}"] == (*runs[f"alone-{seed}"], *taught)
        assert runs[f"alone-{seed}"][-2:] == ("--seed", seed)
    said = capsys.readouterr().out
    assert "| 1 | 0.5000 | 0.7000 | +0.2000 |" in said
    assert "| 2 | 0.6000 | 0.5500 | -0.0500 |" in said
    assert "| mean | 0.5500 | 0.6250 | +0.0750 |" in said
    assert "accuracy 0.9000 on unseen people" in said and "Better with the teacher: 1 of 2." in said
