from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from data.records.recordio import BrokenRecordError, RecordFile, encode
from runtime.errors import DataError

MAGIC = struct.pack("<I", 0xCED7230A)


def open_records(tmp_path: Path, *records: bytes) -> RecordFile:
    path = tmp_path / "a.rec"
    path.write_bytes(b"".join(records))
    return RecordFile(path)


def test_encoded_bytes_are_those_of_the_format() -> None:
    header = struct.pack("<IIfQQ", 24 + 3, 0, 5.0, 9, 0)
    assert encode((5.0,), 9, b"abc") == MAGIC + header + b"abc\0"
    header = struct.pack("<IIfQQff", 24 + 8, 2, 0.0, 0, 0, 17.0, 20.0)
    assert encode((17.0, 20.0), 0, b"") == MAGIC + header


@pytest.mark.parametrize(
    "payload",
    [b"x" * 8 + MAGIC + b"tail", MAGIC, MAGIC * 3, b"ab" + MAGIC, b"abcd" + MAGIC + b"e" + MAGIC],
    ids=["inside", "alone", "thrice", "unaligned", "both"],
)
def test_content_with_the_magic_is_cut_and_joined(tmp_path: Path, payload: bytes) -> None:
    record = encode((3.0,), 1, payload)
    file = open_records(tmp_path, record, encode((4.0,), 2, b"next"))
    assert bytes(file.read(0).payload) == payload
    assert file.scan()[1].tolist() == [0, len(record)]
    frames = [i for i in range(0, len(record), 4) if record[i : i + 4] == MAGIC]
    aligned = [i for i in range(0, len(payload), 4) if payload[i : i + 4] == MAGIC]
    assert len(frames) == 1 + len(aligned)


def test_labels_of_every_kind_of_record(tmp_path: Path) -> None:
    content = struct.pack("<IfQQ4f", 4, 0.0, 1, 0, 8.0, 1.0, 2.0, 3.0) + b"image"
    four = MAGIC + struct.pack("<I", len(content)) + content + bytes(-len(content) % 4)
    records = [
        four, encode((2.0,), 0, b"scalar"), encode((7.0, 9.0), 1, b"array"),
        encode((5.0,), 2, b"1234" + MAGIC), b"this is no record at all",
    ]  # fmt: skip
    file = open_records(tmp_path, *records)
    labels, payload = file.read(0)
    assert (labels, bytes(payload)) == ((8.0, 1.0), b"image")
    firsts = file.first_labels(np.cumsum([0, *map(len, records[:-1])]))
    assert firsts[:4].tolist() == [8.0, 2.0, 7.0, 5.0] and np.isnan(firsts[4])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda record: record[:-4], "the file ends before"),
        (lambda record: b"\0" + record[1:], "wrong magic"),
        (lambda record: record[:8] + struct.pack("<I", 99) + record[12:], "99 labels"),
        (lambda record: MAGIC + struct.pack("<I", 4) + b"abcd", "4 instead of 24"),
        (lambda record: MAGIC + struct.pack("<I", 3 << 29 | 4) + b"abcd", "middle of a record"),
        (lambda record: MAGIC + struct.pack("<I", 1 << 29 | 4) + b"abcd" + record, "last part"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage, reason: str) -> None:
    record = encode((1.0,), 1, b"payload!")
    with pytest.raises(BrokenRecordError, match=reason):
        open_records(tmp_path, damage(record)).read(0)
    with pytest.raises(BrokenRecordError, match="record 2"):
        open_records(tmp_path, record, record, record[:-1]).scan()
    with pytest.raises(DataError, match="6 bytes, no record"):
        open_records(tmp_path, MAGIC + b"ab")
    with pytest.raises(DataError, match=r"a\.rec cannot be read"):
        open_records(tmp_path, b"")


def in_parts(*parts: tuple[int, bytes]) -> bytes:
    """Frames of parts, each with the number of its kind (0 whole, 1 first, 2 middle, 3 last)."""
    return b"".join(
        MAGIC + struct.pack("<I", kind << 29 | len(content)) + content for kind, content in parts
    )


def test_a_record_has_at_most_1024_parts_and_none_within_it(tmp_path: Path) -> None:
    """It is read once for each key that names it, in 2 us for each part."""
    record = encode((3.0,), 1, MAGIC * 1023)
    assert bytes(open_records(tmp_path, record).read(0).payload) == MAGIC * 1023
    with pytest.raises(DataError, match="an image has 1,025 parts, more than 1,024"):
        encode((3.0,), 1, MAGIC * 1024)
    content = struct.pack("<IfQQ", 0, 3.0, 1, 0)
    file = open_records(tmp_path, in_parts((1, content), *[(2, b"")] * 1023, (3, b"")))
    for use in (file.read, file.end):
        with pytest.raises(BrokenRecordError, match="it has more than 1,024 parts"):
            use(0)
    assert np.isnan(file.first_labels(np.zeros(3, np.int64))).all()
    # The end of each first part would be looked for up to the end of the file.
    file = open_records(tmp_path, in_parts((1, content), (1, content), (3, b"")))
    for use in (file.read, file.end):
        with pytest.raises(BrokenRecordError, match="its last part is missing"):
            use(0)
    assert file.end(32) == len(file)
