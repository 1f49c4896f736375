from __future__ import annotations

import struct
from typing import Optional

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.headers import may_turn
from data.records.record_set import Jpegs, find_jpegs
from data.records.recordio import BrokenRecordError, RecordFile, encode
from tests.support.jpegs import bytes_of

JPEG = b"\xff\xd8\xff\xda and whatever else a JPEG holds"
LABELS = [0.0, 1.0, 2.0, 0.5, -1.0, float("nan"), float("inf"), -0.0, 2.0**31]
PAYLOADS = [JPEG, JPEG * 3, JPEG[:5], JPEG[:2], b"\x89PNG is another way", b""]


def one_by_one(file: RecordFile, stored: bytes, offset: int) -> Optional[tuple[bytes, int]]:
    """What has to be found according to ``read``: one part, and the label in the header.

    Not what begins in the last bytes of a file whose size is no multiple of 4.
    """
    try:
        labels, payload = file.read(offset)
    except BrokenRecordError:
        return None
    _, length, flag = struct.unpack_from("<III", stored, offset)
    if length >> 29 or flag or offset + 36 > len(stored) // 4 * 4 or payload[:2] != JPEG[:2]:
        return None
    turns = may_turn(np.frombuffer(bytes(payload), np.uint8), 0, len(payload))
    if turns or not 0 <= labels[0] < 2 or labels[0] != int(labels[0]):
        return None
    return bytes(payload), int(labels[0])


@given(
    records=st.lists(
        st.tuples(st.sampled_from(LABELS), st.sampled_from(PAYLOADS)), min_size=1, max_size=5
    ),
    cut=st.integers(0, 60),
    place=st.integers(0, 400),
    junk=st.binary(min_size=0, max_size=4),
)
@settings(max_examples=300, deadline=None)
def test_many_records_at_once_are_those_of_one_by_one(
    tmp_path_factory: pytest.TempPathFactory,
    records: list[tuple[float, bytes]],
    cut: int,
    place: int,
    junk: bytes,
) -> None:
    """Whatever the file holds and wherever it ends, and for offsets that point anywhere."""
    written = (encode((label,), key, payload) for key, (label, payload) in enumerate(records))
    content = bytearray().join(written)
    content[place : place + len(junk)] = junk[: max(0, len(content) - place)]
    stored = bytes(content[: max(8, len(content) - cut)])
    path = tmp_path_factory.getbasetemp() / "records.rec"
    path.write_bytes(stored)
    file = RecordFile(path)
    offsets = np.append(np.arange(0, len(content) + 64, 4), [2**40, 2**50 - 4])
    words = offsets // 4
    halves = (words & 0xFFFFFFFF).astype(np.uint32), (words >> 32).astype(np.uint16)
    places = find_jpegs(file.bytes, np.arange(len(offsets)), halves, 2)
    payloads = bytes_of(Jpegs(*places))
    for offset, payload, label in zip(offsets.tolist(), payloads, places[2].tolist()):
        found = None if payload is None else (payload, label)
        assert found == one_by_one(file, stored, offset)
