from __future__ import annotations

import json
import resource
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runtime.errors import DataError
from training.log import metric_files
from training.log.metric_files import MetricFiles


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """A disk that is full, as far as this process can tell: a write is cut off, the next fails."""
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
    files = MetricFiles(tmp_path)
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


@pytest.mark.parametrize(
    ("left", "longest"), [('{"update": 1}\n', 2**20), ('{"update": 1}\n', 18), ("", 2**20)]
)
def test_what_is_left_of_a_torn_record_goes(tmp_path, monkeypatch, left: str, longest) -> None:
    monkeypatch.setattr(metric_files, "_LONGEST_RECORD", longest)
    (tmp_path / "metrics.jsonl").write_text(left + '{"update": 2, "lo')
    files = MetricFiles(tmp_path)
    files.write(2, {"loss": 0.5, "nan": float("nan")})
    files.close()
    assert updates(tmp_path) == ([1, 2] if left else [2])
    assert '"nan": null' in (tmp_path / "metrics.jsonl").read_text()


def scalars_of(events: Path) -> list[tuple[int, str, float]]:
    """Read an event file by its format: length, checksum, event, checksum."""
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
    return scalars


def test_event_files_have_every_scalar(tmp_path: Path) -> None:
    files = MetricFiles(tmp_path)
    files.write(1, {"loss": 0.5, "lr": 0.25})
    files.write(2, {"accuracy": 0.75}, target="lfw")
    files.close()
    (events,) = (tmp_path / "scalars").iterdir()
    assert ".tfevents." in events.name
    assert scalars_of(events) == [
        (1, "training/loss", 0.5), (1, "training/lr", 0.25), (2, "lfw/accuracy", 0.75),
    ]  # fmt: skip
