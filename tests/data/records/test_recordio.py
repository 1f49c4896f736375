from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from data.records.recordio import BrokenRecordError, RecordFile, encode
from tests.support.sets import assert_refused

MAGIC = struct.pack("<I", 0xCED7230A)


def open_records(folder: Path, *records: bytes) -> RecordFile:
    path = folder / f"{len(os.listdir(folder))}.rec"
    path.write_bytes(b"".join(records))
    return RecordFile(path)


def parts(*parts: tuple[int, bytes]) -> bytes:
    """Frames of parts, each with the number of its kind (0 whole, 1 first, 2 middle, 3 last)."""
    heads = (MAGIC + struct.pack("<I", kind << 29 | len(content)) for kind, content in parts)
    return b"".join(head + content for head, (_, content) in zip(heads, parts))


def magics(content: bytes) -> int:
    return [content[i : i + 4] for i in range(0, len(content), 4)].count(MAGIC)


def test_encoded_bytes_are_those_of_the_format() -> None:
    header = struct.pack("<IfQQ", 0, 5.0, 9, 0)
    assert encode((5.0,), 9, b"abc") == parts((0, header + b"abc")) + b"\0"
    header = struct.pack("<IfQQff", 2, 0.0, 0, 0, 17.0, 20.0)
    assert encode((17.0, 20.0), 0, b"") == parts((0, header))


@pytest.mark.parametrize(
    "payload",
    [b"x" * 8 + MAGIC + b"tail", MAGIC, MAGIC * 3, b"ab" + MAGIC, b"abcd" + MAGIC + b"e" + MAGIC],
    ids=["inside", "alone", "thrice", "unaligned", "both"],
)
def test_content_with_the_magic_is_cut_and_joined(tmp_path, payload: bytes) -> None:
    record = encode((3.0,), 1, payload)
    file = open_records(tmp_path, record, encode((4.0,), 2, b"next"))
    assert bytes(file.read(0).payload) == payload
    assert file.scan()[1].tolist() == [0, len(record)]
    assert magics(record) == 1 + magics(payload)


def test_labels_of_every_kind_of_record(tmp_path) -> None:
    records = [
        parts((0, struct.pack("<IfQQ4f", 4, 0.0, 1, 0, 8.0, 1.0, 2.0, 3.0) + b"image...")),
        encode((2.0,), 0, b"scalar"), encode((7.0, 9.0), 1, b"array"),
        encode((5.0,), 2, b"1234" + MAGIC), b"this is no record at all",
    ]  # fmt: skip
    file = open_records(tmp_path, *records)
    labels, payload = file.read(0)
    assert (labels, bytes(payload)) == ((8.0, 1.0), b"image...")
    firsts = file.first_labels(np.cumsum([0, *map(len, records[:-1])]))
    assert firsts[:4].tolist() == [8.0, 2.0, 7.0, 5.0] and np.isnan(firsts[4])


RECORD = encode((1.0,), 1, b"payload!")


@pytest.mark.parametrize(("damaged", "reason"), [
    (RECORD[:-4], "the file ends before"),
    (b"\0" + RECORD[1:], "wrong magic"),
    (RECORD[:8] + struct.pack("<I", 99) + RECORD[12:], "99 labels"),
    (parts((0, b"abcd")), "4 instead of 24"),
    (parts((3, b"abcd")), "middle of a record"),
    (parts((1, b"abcd")) + RECORD, "last part"),
])  # fmt: skip
def test_damage_is_named(tmp_path, damaged: bytes, reason: str) -> None:
    assert_refused(reason, open_records(tmp_path, damaged).read, 0, kind=BrokenRecordError)
    with pytest.raises(BrokenRecordError, match="record 2"):
        open_records(tmp_path, RECORD, RECORD, RECORD[:-1]).scan()
    assert_refused("6 bytes, no record", open_records, tmp_path, MAGIC + b"ab")
    assert_refused("rec cannot be read", open_records, tmp_path, b"")


def test_a_record_has_at_most_1024_parts_and_none_within_it(tmp_path) -> None:
    """It is read once for each key that names it, in 2 us for each part."""
    record = encode((3.0,), 1, MAGIC * 1023)
    assert bytes(open_records(tmp_path, record).read(0).payload) == MAGIC * 1023
    assert_refused("an image has 1,025 parts, more than 1,024", encode, (3.0,), 1, MAGIC * 1024)
    first = (1, struct.pack("<IfQQ", 0, 3.0, 1, 0))
    many = open_records(tmp_path, parts(first, *[(2, b"")] * 1023, (3, b"")))
    assert np.isnan(many.first_labels(np.zeros(3, np.int64))).all()
    # The end of each first part would be looked for up to the end of the file.
    within = open_records(tmp_path, parts(first, first, (3, b"")))
    for file, message in ((many, "more than 1,024 parts"), (within, "its last part is missing")):
        for use in (file.read, file.end):
            assert_refused(message, use, 0, kind=BrokenRecordError)
    assert within.end(32) == len(within)
