from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from evaluation.folds import FOLDS
from evaluation.report import figures
from evaluation.report.figures import accuracy
from evaluation.report.run_files import RunFiles, read
from tests.support import made_up_runs
from tests.support.made_up_runs import training_record


def run_of(folder: Path, records: list[dict], parts: tuple[dict, ...] = ()) -> RunFiles:
    made_up_runs.write(folder, records, {})
    made_up_runs.write_lines(folder / "report" / "parts.jsonl", [*parts])
    return read(folder)


def test_the_interval_of_a_verification_covers_the_mean_of_its_folds() -> None:
    """Of many verifications whose folds scatter, 95 % of the intervals hold the true accuracy."""
    generator = np.random.default_rng(1)
    folds = generator.normal(0.8, 0.02, (4000, FOLDS))
    found = [accuracy({"accuracy": one.mean(), "accuracy_std": one.std()}) for one in folds]
    share = np.mean([one.low <= 0.8 <= one.high for one in found])
    assert share == pytest.approx(0.95, abs=0.012)


def test_the_interval_of_a_validation_is_wilsons() -> None:
    """Brown, Cai and DasGupta (2001) have such numbers: 8 of 10."""
    found = accuracy({"accuracy": 0.8, "correct": 8, "total": 10})
    assert found == pytest.approx((0.8, 0.4902, 0.9433), abs=1e-4)
    assert accuracy({"accuracy": 1.0, "total": 100}).high == pytest.approx(1.0)
    assert str(accuracy({})) == "–"


def test_what_scores_say() -> None:
    """Twenty pairs, of which one of different people is above two of one person."""
    same = np.tile([1.0, 0.0], 10)
    cosines = np.where(same == 1, 0.8, 0.1) + np.arange(20) / 1000
    cosines[1], cosines[[0, 2]] = 0.7, 0.6
    found = figures.analyze("x", np.stack([cosines, same], axis=1))
    assert found.area == pytest.approx(roc_auc_score(same, cosines))
    assert found.area == pytest.approx(0.98)
    assert found.equal_error == pytest.approx(0.1)
    assert found.threshold is not None and 0.1 < found.threshold < 0.8
    # A chart begins at the power of ten below the rate of one pair.
    run: Any = SimpleNamespace(name="run", scores={"x": np.stack([cosines, same], axis=1)})
    roc, histogram = figures.of_scores([run])
    assert ">0.1</text>" in roc.svg and ">0.01</text>" not in roc.svg
    assert f"{found.threshold:.3f}" in histogram.frame.note
    few = figures.analyze("x", np.array([[0.9, 1], [0.1, 0]]))
    assert few.threshold is None and few.area == 1


def test_shares_are_weighted_by_the_time_of_their_updates(tmp_path: Path) -> None:
    """The first report compiles; the third took three times as long as the second."""
    records = [training_record(10 * n, 1.0) for n in (1, 2, 3)]
    for record, rate, waiting in zip(records, (1, 300, 100), (0.9, 0.0, 0.2)):
        record |= {"images_per_second": rate, "waiting": waiting, "backbone": 0.5}
        record |= {"head": 0.0, "communication": 0.0}
    run = run_of(tmp_path / "run", records)
    shares = figures.time_shares(run)
    assert shares["waiting"] == pytest.approx(0.15) and shares["backbone"] == pytest.approx(0.5)
    assert sum(shares.values()) == pytest.approx(1)
    assert figures.images_per_second(run) == 200


def test_the_time_between_two_parts_of_a_run_does_not_count(tmp_path: Path) -> None:
    records = [training_record(n, 1.0) | {"time": time} for n, time in ((1, 110), (2, 1020))]
    parts = ({"time": 100, "update": 0}, {"time": 1000, "update": 1})
    assert figures.duration(run_of(tmp_path / "a", records, parts)) == timedelta(seconds=30)
    assert figures.duration(run_of(tmp_path / "b", records)) == timedelta(seconds=910)
    assert figures.duration(run_of(tmp_path / "c", [])) is None
