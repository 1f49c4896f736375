from __future__ import annotations

import itertools
import json
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from runtime.errors import DataError
from training.log.metric_files import MetricFiles


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """A disk that is full, as far as this process can tell: a write is cut off, the next fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def updates(folder: Path) -> list[int]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["update"] for line in lines]


def test_a_full_disk_is_an_error_and_leaves_only_whole_lines(tmp_path: Path) -> None:
    files = MetricFiles(tmp_path)
    files.write(1, {"loss": 0.5})
    size = (tmp_path / "metrics.jsonl").stat().st_size
    with no_file_above(size + 10):
        with pytest.raises(DataError, match="metrics.jsonl cannot be written .* start the same"):
            files.write(2, {"loss": 0.5})
        files.close()
    assert updates(tmp_path) == [1]
    files = MetricFiles(tmp_path)
    files.write(2, {"loss": 0.5})
    files.close()
    assert updates(tmp_path) == [1, 2]


def test_scalars_on_a_full_disk_are_an_error(tmp_path: Path, monkeypatch) -> None:
    # By this clock an hour passes between two events. mxboard would flush in its thread and end it.
    hours = itertools.count(time.time(), 3600)
    MetricFiles(tmp_path / "first").close()
    writer = sys.modules["mxboard.event_file_writer"]
    monkeypatch.setattr(writer, "time", SimpleNamespace(time=hours.__next__))
    files = MetricFiles(tmp_path)
    files.write(1, {"loss": 0.5})
    (events,) = (tmp_path / "scalars").iterdir()
    with no_file_above(events.stat().st_size + 10):
        with pytest.raises(DataError, match="cannot be written"):
            for update in range(2, 100):
                # Shorter than its scalar.
                files.write(update, {})
                files.write(update, {f"{number}": 0.5 for number in range(100)})
        files.close()
