"""What a run writes for its report; whatever goes wrong with that is a line in its log."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data.batches.loader import Batch
from data.decoding import decode_rgb
from evaluation.report import run_files
from evaluation.verification import verify
from tests.support import made_up_runs
from tests.support.made_up_runs import training_record
from training.log import report_files
from training.log.report_files import ReportFiles


@pytest.fixture(autouse=True)
def all_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made_up_runs.write(tmp_path / "run", [training_record(1, 1.0)], {})
    return tmp_path / "run"


def test_what_is_written_for_the_report(run: Path, caplog) -> None:
    generator, same = np.random.default_rng(1), np.arange(20) % 2 == 0
    for update, value in ((0, 200), (7, 10)):
        files = ReportFiles(run)
        files.begin_part(update, {"ranks": 2, "device": "cpu(0)"})
        rows = generator.normal(size=(40, 8))
        rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
        files.verification("a set", verify(rows, same, xnorm=1.0))
        for number in (value, 99):
            files.sample(Batch(np.full((20, 3, 112, 112), number, np.uint8), np.arange(20)))
    first, part = run_files.read(run).parts
    assert (first["update"], part["update"]) == (0, 7)
    assert all(part[name] for name in ("time", "ranks", "device", "host", "processor"))
    assert part["processors"] and part["command"]
    assert part["versions"]["numpy"] == np.__version__
    assert any(name.startswith("mxnet") for name in part["versions"])
    # Of the first batch of each start, and of the last verification.
    sheet = decode_rgb((run / "report/samples.jpg").read_bytes())
    assert abs(int(sheet[50, 50, 0]) - 10) < 5
    found = np.load(run / "report/scores-a%20set.npy")
    assert found.dtype == np.float32
    assert found[:, 0] == pytest.approx((rows[0::2] * rows[1::2]).sum(axis=1), abs=1e-6)
    assert (found[:, 1] == same).all()
    files.verification("a set", replace(verify(rows, same, xnorm=1.0), scores=None))
    files.write_report()
    assert "the report lacks" not in caplog.text
    assert f"report in {run}/report.html" in caplog.text
    assert "<svg" in (run / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("echo 'error: it needs matplotlib' >&2; exit 2", "no report: it needs matplotlib"),
        # In the folder of the program, in a session of its own.
        ("[ -e train.py ] && exit $(( $(cut -d' ' -f6 /proc/$$/stat) == $$ ))", "status 1"),
        ("kill -SEGV $$", "no report: status -11"),
        ("exec sleep 100", "the report lacks the page: TimeoutExpired"),
    ],
    ids=["refuses", "ends", "crashes", "hangs"],
)
def test_a_process_that_fails_is_a_line_in_the_log(run, monkeypatch, caplog, program, said) -> None:
    script = run.parent / "python"
    script.write_text(f"#!/bin/bash\n{program}\n")
    script.chmod(0o755)
    monkeypatch.setattr(report_files.sys, "executable", str(script))
    monkeypatch.setattr(report_files, "_SECONDS", 1)
    monkeypatch.chdir(run)
    ReportFiles(run).write_report()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and said in record.message
    assert not (run / "report.html").exists()


def test_what_cannot_be_written_or_is_another_kind_is_a_line_in_the_log(run: Path, caplog) -> None:
    ReportFiles(run).sample((1, 2))
    assert "the report lacks training images: AttributeError" in caplog.text
    caplog.clear()
    (run / "report").rmdir()
    (run / "report").write_text("a file")
    files = ReportFiles(run)
    files.begin_part(0, {})
    for _ in range(2):
        files.sample(Batch(np.zeros((1, 3, 8, 8), np.uint8), np.zeros(1, np.int64)))
    for what in ("where the run was started", "training images"):
        assert sum(f"the report lacks {what}: " in record.message for record in caplog.records) == 1
