"""What a run writes of its updates and for its report."""

from __future__ import annotations

import json
import logging
import re
import resource
import struct
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data.batches.loader import Batch
from data.decoding import decode_rgb
from evaluation.report import run_files
from evaluation.verification import verify
from evaluation.verification.curves import pairs_of
from runtime.errors import DataError
from tests.support import made_up_runs
from tests.support.made_up_runs import training_record
from training.log import files as log_files
from training.log.files import RunFiles


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """Cut off writes as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def updates(folder: Path) -> list[int]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["update"] for line in lines]


def test_a_full_disk_is_an_error_and_leaves_only_whole_records(tmp_path: Path) -> None:
    lines = tmp_path / "metrics.jsonl"
    files = RunFiles(tmp_path)
    files.write(1, {"loss": 0.5})
    (events,) = (tmp_path / "scalars").iterdir()
    before = events.read_bytes()
    with no_file_above(lines.stat().st_size + 10):
        with pytest.raises(DataError, match="metrics.jsonl cannot be written .* start the same"):
            files.write(2, {"loss": 0.5})
    assert updates(tmp_path) == [1]
    # The line of the next update fits, and its scalars do not.
    with no_file_above(lines.stat().st_size + 120):
        with pytest.raises(DataError, match=f"{events.name} cannot be written .* start the same"):
            files.write(2, {f"{number}": 0.5 for number in range(5)})
        files.close()
    assert updates(tmp_path) == [1, 2] and events.read_bytes() == before


@pytest.mark.parametrize("left", [0, 1])
def test_what_is_left_of_a_torn_record_goes(tmp_path: Path, left: int) -> None:
    (tmp_path / "metrics.jsonl").write_text(left * '{"update": 1}\n' + '{"update": 2, "lo')
    files = RunFiles(tmp_path)
    files.write(2, {"loss": 0.5, "nan": float("nan")})
    files.close()
    assert updates(tmp_path) == [1, 2][1 - left :]
    lines = (tmp_path / "metrics.jsonl").read_text()
    assert re.search(r'"time": \d+\.\d{1,3}, .*"nan": null', lines)


def test_event_files_have_every_scalar(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    files.write(1, {"loss": 0.5, "lr": 0.25})
    files.write(2, {"accuracy": 0.75}, target="lfw")
    files.close()
    (events,) = (tmp_path / "scalars").iterdir()
    assert re.fullmatch(r"events\.out\.tfevents\.\d+\..+\.[0-9a-f]{12}", events.name)
    # The format: length, checksum, event, checksum.
    content, scalars, place = events.read_bytes(), [], 0
    while place < len(content):
        (length,) = struct.unpack_from("<Q", content, place)
        head, event = content[place : place + 8], content[place + 12 : place + 12 + length]
        checksums = content[place + 8 : place + 12] + content[place + 12 + length :][:4]
        crc = sys.modules["mxboard.record_writer"].masked_crc32c
        assert struct.unpack("<II", checksums) == (crc(head), crc(event))
        found = sys.modules["mxboard.proto.event_pb2"].Event.FromString(event)
        scalars += [(found.step, one.tag, one.simple_value) for one in found.summary.value]
        place += length + 16
    assert scalars == [
        (1, "training/loss", 0.5), (1, "training/lr", 0.25), (2, "lfw/accuracy", 0.75),
    ]  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made_up_runs.write(tmp_path / "run", [training_record(1, 1.0)], {})
    return tmp_path / "run"


def test_what_is_written_for_the_report(run: Path, caplog) -> None:
    caplog.set_level(logging.INFO)
    generator, same = np.random.default_rng(1), np.arange(20) % 2 == 0
    for update, value in ((0, 200), (7, 10)):
        rows = generator.normal(size=(40, 8))
        rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
        with closing(RunFiles(run)) as files:
            files.begin_part(update, {"ranks": 2, "device": "cpu(0)"})
            files.verification("a set", verify(pairs_of(rows, same), xnorm=1.0))
            files.sample(Batch(np.full((20, 3, 112, 112), value, np.uint8), np.arange(20)))
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
    files.verification("a set", replace(verify(pairs_of(rows, same), xnorm=1.0), scores=None))
    files.write_report()
    assert "the report lacks" not in caplog.text and f"report in {run}/report.html" in caplog.text
    assert "<figure" in (run / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("program", "said"), [
    ("echo 'error: it needs matplotlib' >&2; exit 2", "no report: it needs matplotlib"),
    # In the folder of the program, in a session of its own.
    ("[ -e train.py ] && exit $(( $(cut -d' ' -f6 /proc/$$/stat) == $$ ))", "status 1"),
    ("kill -SEGV $$", "no report: status -11"),
    ("exec sleep 100", "the report lacks the page: TimeoutExpired"),
], ids=["refuses", "ends", "crashes", "hangs"])  # fmt: skip
def test_a_process_that_fails_is_a_line_in_the_log(run, monkeypatch, caplog, program, said) -> None:
    script = run.parent / "python"
    script.write_text(f"#!/bin/bash\n{program}\n")
    script.chmod(0o755)
    monkeypatch.setattr(log_files.sys, "executable", str(script))
    monkeypatch.setattr(log_files, "_SECONDS", 1)
    monkeypatch.chdir(run)
    with closing(RunFiles(run)) as files:
        files.write_report()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and said in record.message
    assert not (run / "report.html").exists()


def test_what_cannot_be_written_or_is_another_kind_is_a_line_in_the_log(run: Path, caplog) -> None:
    with closing(RunFiles(run)) as files:
        files.sample((1, 2))
        assert "the report lacks training images: AttributeError" in caplog.text
        caplog.clear()
        (run / "report").rmdir()
        (run / "report").write_text("a file")
        files.begin_part(0, {})
        files.sample(Batch(np.zeros((1, 3, 8, 8), np.uint8), np.zeros(1, np.int64)))
    for what in ("where the run was started", "training images"):
        assert sum(f"the report lacks {what}: " in record.message for record in caplog.records) == 1
