from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.headers import may_turn
from data.records.record_set import Jpegs, find_jpegs
from data.records.recordio import BrokenRecordError, RecordFile, encode
from tests.support.jpegs import bytes_of

JPEG = b"\xff\xd8\xff\xda and whatever else a JPEG holds"


def one_by_one(file: RecordFile, offset: int, num_classes: int) -> tuple[bytes, int] | None:
    """What ``find_jpegs`` has to find according to ``read``."""
    try:
        labels, payload = file.read(offset)
    except BrokenRecordError:
        return None
    if len(labels) != 1 or payload[:2] != JPEG[:2] or not 0 <= labels[0] < num_classes:
        return None
    return (bytes(payload), int(labels[0])) if labels[0] == int(labels[0]) else None


@given(
    records=st.lists(
        st.tuples(
            st.sampled_from([0.0, 1.0, 2.0, 0.5, -1.0, float("nan"), float("inf"), -0.0, 2.0**31]),
            st.sampled_from([JPEG, JPEG * 3, JPEG[:5], JPEG[:2], b"\x89PNG is another way", b""]),
        ),
        min_size=1,
        max_size=5,
    ),
    cut=st.integers(0, 60),
    damage=st.tuples(st.integers(0, 400), st.binary(min_size=0, max_size=4)),
)
@settings(max_examples=300, deadline=None)
def test_many_records_at_once_are_those_of_one_by_one(
    tmp_path_factory: pytest.TempPathFactory,
    records: list[tuple[float, bytes]],
    cut: int,
    damage: tuple[int, bytes],
) -> None:
    """Whatever the file holds and wherever it ends, and for offsets that point anywhere."""
    content = bytearray().join(
        encode((label,), key, payload) for key, (label, payload) in enumerate(records)
    )
    place, junk = damage
    content[place : place + len(junk)] = junk[: max(0, len(content) - place)]
    path = tmp_path_factory.getbasetemp() / "records.rec"
    stored = bytes(content[: max(8, len(content) - cut)])
    path.write_bytes(stored)
    file = RecordFile(path)
    offsets = np.append(np.arange(0, len(content) + 64, 4), [2**40, 2**50 - 4])
    words = offsets // 4
    halves = (words & 0xFFFFFFFF).astype(np.uint32), (words >> 32).astype(np.uint16)
    places = find_jpegs(file.bytes, np.arange(len(offsets)), halves, 2)
    payloads = bytes_of(Jpegs(*places))
    for offset, payload, label in zip(offsets.tolist(), payloads, places[2].tolist()):
        expected = one_by_one(file, offset, 2)
        found = None if payload is None else (payload, label)
        if expected is None or not _is_usual(stored, offset) or _may_turn(expected[0]):
            assert found is None
        else:
            assert found == expected


def _may_turn(payload: bytes) -> bool:
    return bool(may_turn(np.frombuffer(payload, np.uint8), 0, len(payload)))


def _is_usual(stored: bytes, offset: int) -> bool:
    """Whether a record has one part, and its label in the header; ``read`` takes others, too.

    Nor is what begins in the last bytes of a file whose size is no multiple of 4.
    """
    _, length, flag = struct.unpack_from("<III", stored, offset)
    return length >> 29 == 0 and flag == 0 and offset + 36 <= len(stored) // 4 * 4
