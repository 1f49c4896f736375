"""Record files of other programs: in their order, and with indexes that do not fit them."""

from __future__ import annotations

import logging
import os
import re
import struct
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from data.records import index_file, record_set
from data.records.record_set import RecordSet
from data.records.recordio import MAGIC, RecordFile, encode
from runtime.errors import DataError
from tests.support.foreign_records import (
    Numbered,
    face2rec2,
    im2rec,
    index_of,
    rec_builder,
    write_records,
)

SORTED = [0, 0, 0, 1, 2, 2]
# Four people of an unsorted list, in 31 runs.
UNSORTED = [*range(4), *range(4), 3, *range(4), 2, 0, 0, *range(1, 4), *range(3), *range(4), 0,
            *range(4), 1, 2, 0]  # fmt: skip


def found(records: RecordSet) -> list[tuple[int, int, bytes]]:
    read = map(records.read, range(len(records)))
    return [(key, label, bytes(payload)) for payload, label, key in read]


@pytest.mark.parametrize("writes", [face2rec2, rec_builder])
@pytest.mark.parametrize("index", [True, False], ids=["idx", "scanned"])
@pytest.mark.parametrize("labels", [SORTED, UNSORTED], ids=["sorted", "unsorted"])
@pytest.mark.parametrize("described", [True, False], ids=["property", "alone"])
def test_records_have_the_keys_of_their_headers(
    tmp_path: Path, make_image, writes, index: bool, labels: list[int], described: bool
) -> None:
    payloads = [make_image(number) for number in range(len(labels))]
    classes = max(labels) + 1
    description = f"{classes},16,16" if described else ""
    write_records(tmp_path, writes(labels, payloads), index=index, description=description)
    records = RecordSet(tmp_path)
    assert found(records) == list(zip(range(1, len(labels) + 1), labels, payloads))
    assert (records.num_classes, records.image_size) == (classes, (16, 16))
    assert records.labels().tolist() == labels


def test_an_unsorted_list_makes_more_ranges_than_people() -> None:
    assert sum(a != b for a, b in zip(UNSORTED, UNSORTED[1:])) + 1 == 31


def test_more_ranges_than_classes_hide_no_label(tmp_path: Path, make_image) -> None:
    payloads = [make_image(number) for number in range(len(UNSORTED))]
    write_records(tmp_path, face2rec2(UNSORTED, payloads), description="3,16,16")
    with pytest.raises(DataError, match=r"3 classes, but train\.rec holds 4 identities"):
        RecordSet(tmp_path)


def test_ids_that_number_nothing_are_not_taken(tmp_path: Path, make_image) -> None:
    """Some writers give each header the id 0; then positions are the keys."""
    images = [(0, encode((float(label),), 0, make_image(label))) for label in (1, 0, 2)]
    records = RecordSet(write_records(tmp_path / "flat", images, index=False))
    assert [key for key, _, _ in found(records)] == [0, 1, 2]
    ours = [(0, encode((3.0, 5.0), 0, b"")), *images[:2]]
    ours += [(0, encode(bounds, 0, b"")) for bounds in ((1.0, 2.0), (2.0, 3.0))]
    records = RecordSet(write_records(tmp_path / "ours", ours, index=False))
    assert [label for _, label, _ in found(records)] == [1, 0]
    published = [*ours[1:3], ours[0], *ours[3:]]
    with pytest.raises(DataError, match=r"ends with identity records.*copy its \.idx"):
        RecordSet(write_records(tmp_path / "published", published, index=False))


def test_shuffled_files_with_gaps_read_alike_with_and_without_index(
    tmp_path: Path, make_image
) -> None:
    written = im2rec([1, 0, 2, 0], [make_image(n) for n in range(4)], [7, 2, 9, 0])
    indexed, scanned = (
        found(RecordSet(write_records(tmp_path / str(index), written, index=index)))
        for index in (True, False)
    )
    assert indexed == scanned and [key for key, _, _ in indexed] == [0, 2, 7, 9]


@pytest.mark.parametrize("writes", [face2rec2, rec_builder])
def test_an_index_that_counts_positions_is_refused(tmp_path: Path, make_image, writes) -> None:
    """MXNet's rec2idx.py numbers the records as they lie; ranges mean the keys in the headers."""
    written = writes(SORTED, [make_image(n) for n in range(6)])
    counted = [(place, content) for place, (_, content) in enumerate(written)]
    write_records(tmp_path, written, description="3,16,16")
    (tmp_path / "train.idx").write_text(index_of(counted))
    with pytest.raises(DataError, match=r"key 0 of train\.idx is none.*delete the \.idx"):
        RecordSet(tmp_path)


def flat(make_image) -> list[Numbered]:
    """Forty images, of which some have the magic in them and thus several parts."""
    magic = struct.pack("<I", MAGIC)
    payloads = [make_image(n) + (b"abcd" + magic) * (n % 3) for n in range(40)]
    return im2rec([n % 4 for n in range(40)], payloads, range(40))


Change = Callable[[list[str]], str]
READ: dict[str, Change] = {
    "as it is": "".join,
    "spaces": lambda lines: "".join(lines).replace("\t", "  "),
    "windows": lambda lines: "\ufeff" + "".join(lines).replace("\n", "\r\n"),
    "old mac": lambda lines: "".join(lines).replace("\n", "\r"),
    "backwards": lambda lines: "".join(reversed(lines)),
    "empty lines": lambda lines: "\n\n".join(lines) + "\n\n",
}
REFUSED: dict[str, tuple[Change, str]] = {
    "the last are missing": (lambda lines: "".join(lines[:25]), "lacks 15 or more of the records"),
    "the first are missing": (lambda lines: "".join(lines[3:]), "lacks 3 or more of the records"),
    "some between": (
        lambda lines: "".join(lines[:8] + lines[10:20] + lines[21:]),
        "lacks 3 or more of the records",
    ),
    "one record twice": (
        lambda lines: "".join(lines[:-1]) + f"39\t{lines[5].split()[1]}\n",
        "gives keys 5 and 39 one record",
    ),
    "one key twice": (lambda lines: "".join([*lines, lines[3]]), "impossible keys"),
    "negative": (lambda lines: "".join(lines).replace("7\t", "7\t-", 1), "impossible offsets"),
    "unsigned": (
        lambda lines: "".join(lines[:-1]) + f"39\t{2**64 - 4}\n",
        "impossible offsets, the first for key 39; delete it",
    ),
    "2^63": (lambda lines: "".join(lines[:-1]) + f"39\t{2**63}\n", "impossible offsets"),
    "a large key": (lambda lines: "".join(lines) + f"{2**64}\t0\n", "impossible keys"),
    "hexadecimal": (lambda lines: "".join(lines[:-1]) + "39\t0x10\n", "is no index"),
    "underscores": (lambda lines: "".join(lines[:-1]) + "39\t1_000\n", "is no index"),
    "three columns": (lambda lines: "".join(line[:-1] + "\t0\n" for line in lines), "is no index"),
    "words across lines": (
        lambda lines: "".join(lines).replace("\n5\t", "\n5\n", 1),
        "is no index",
    ),
    "within a record": (
        lambda lines: "".join(f"{n}\t{int(line.split()[1]) + 4}\n" for n, line in enumerate(lines)),
        "copy both again",
    ),
    "beyond the file": (lambda lines: "".join(lines) + "40\t400000\n", "copy both again"),
}  # fmt: skip


@pytest.mark.parametrize("change", READ.values(), ids=list(READ))
def test_spellings_of_an_index(tmp_path: Path, make_image, change: Change) -> None:
    written = flat(make_image)
    scanned = found(RecordSet(write_records(tmp_path / "scanned", written, index=False)))
    folder = write_records(tmp_path / "indexed", written)
    lines = (folder / "train.idx").read_text().splitlines(keepends=True)
    (folder / "train.idx").write_bytes(change(lines).encode())
    assert found(RecordSet(folder)) == scanned and len(scanned) == 40


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=list(REFUSED))
def test_indexes_of_other_files(tmp_path: Path, make_image, change: Change, message: str) -> None:
    folder = write_records(tmp_path, flat(make_image), description="4,16,16")
    lines = (folder / "train.idx").read_text().splitlines(keepends=True)
    (folder / "train.idx").write_text(change(lines))
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        RecordSet(folder)
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)


def test_an_index_whose_records_begin_elsewhere(tmp_path: Path, make_image) -> None:
    folder = write_records(tmp_path, flat(make_image))
    first, *others, last = (folder / "train.idx").read_text().splitlines(keepends=True)
    pairs = (map(int, line.split()) for line in others)
    moved = [f"{key}\t{offset + 4}\n" for key, offset in pairs]
    (folder / "train.idx").write_text("".join([first, *moved, last]))
    with pytest.raises(DataError, match="train.idx does not fit train.rec.*copy both"):
        RecordSet(folder)


@pytest.mark.parametrize("rest", ["records", "zeros"])
def test_a_file_that_grew_after_its_index(tmp_path: Path, make_image, rest: str) -> None:
    written = flat(make_image)
    write_records(tmp_path, written)
    more = {"records": written[0][1] * 2, "zeros": bytes(64)}[rest]
    with (tmp_path / "train.rec").open("ab") as file:
        file.write(more)
    message = {"records": "lacks 2 or more", "zeros": "does not fit train.rec"}[rest]
    with pytest.raises(DataError, match=message):
        RecordSet(tmp_path)


@pytest.mark.parametrize("bounds", [(5.5, 8.0), (float("nan"), 8.0), (4.0, 8.0), (6.0, 8.0),
                                    (1e30, 1e30), (5.0, float("inf")), (-1.0, 8.0)])  # fmt: skip
@pytest.mark.parametrize("index", [True, False], ids=["idx", "scanned"])
def test_record_0_has_to_say_where_the_identities_are(
    tmp_path: Path, make_image, bounds: tuple[float, float], index: bool
) -> None:
    written = face2rec2([0, 0, 1, 2], [make_image(n) for n in range(4)])
    assert written[4] == (0, encode((5.0, 8.0), 0, b""))
    written[4] = 0, encode(bounds, 0, b"")
    write_records(tmp_path, written, index=index, description="3,16,16")
    with pytest.raises(DataError, match=r"train\.rec: its first record announces identities"):
        RecordSet(tmp_path)


@pytest.mark.parametrize("lost", [1, 40, 3000])
def test_large_files_are_checked_at_some_places(
    tmp_path: Path, make_image, monkeypatch, lost: int
) -> None:
    """Of consecutive keys, the places where some are missing are known."""
    monkeypatch.setattr(index_file, "_ALL_CHECKED", 64)
    monkeypatch.setattr(index_file, "_SPOT_CHECKS", 16)
    looked_at: list[int] = []
    end = RecordFile.end
    monkeypatch.setattr(RecordFile, "end", lambda *call: looked_at.append(1) or end(*call))
    image = make_image(0)
    written = im2rec([0] * 5000, [image] * 5000, range(5000))
    folder = write_records(tmp_path, written, description="1,16,16")
    assert len(RecordSet(folder)) == 5000 and 8 < len(looked_at) < 24
    lines = (folder / "train.idx").read_text().splitlines(keepends=True)
    (folder / "train.idx").write_text("".join(lines[:1000] + lines[1000 + lost :]))
    with pytest.raises(DataError, match=f"lacks {lost} or more of the records"):
        RecordSet(folder)


def test_many_missing_records_are_not_all_counted(tmp_path: Path, make_image, monkeypatch) -> None:
    monkeypatch.setattr(index_file, "_ENOUGH", 10)
    folder = write_records(tmp_path, flat(make_image), description="4,16,16")
    lines = (folder / "train.idx").read_text().splitlines(keepends=True)
    (folder / "train.idx").write_text("".join(lines[:2]))
    with pytest.raises(DataError, match="lacks 10 or more of the records"):
        RecordSet(folder)


def test_gaps_that_cannot_all_be_looked_at_are_said(
    tmp_path: Path, make_image, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(index_file, "_ALL_CHECKED", 64)
    keys = np.random.default_rng(0).permutation(1000)[:900].tolist()
    written = im2rec([0] * 900, [make_image(0)] * 900, keys)
    with caplog.at_level(logging.WARNING, "data"):
        assert len(RecordSet(write_records(tmp_path, written, description="1,16,16"))) == 900
    gaps = max(keys) - min(keys) + 1 - 900
    assert f"lacks {gaps} keys between its first and its last" in caplog.text


def test_what_is_cut_off_is_said_of_the_files_that_there_are(tmp_path: Path, make_image) -> None:
    payloads = [make_image(number) for number in range(3)]
    write_records(tmp_path, face2rec2([0, 1, 1], payloads), index=True, description="2,16,16")
    os.truncate(tmp_path / "train.rec", (tmp_path / "train.rec").stat().st_size - 8)
    with pytest.raises(DataError, match="damaged or of another version than its .idx: copy both"):
        RecordSet(tmp_path)
    (tmp_path / "train.idx").unlink()
    with pytest.raises(DataError, match="file is truncated or damaged: copy it again") as caught:
        RecordSet(tmp_path)
    assert "idx" not in str(caught.value)


def test_a_link_to_nothing_is_not_passed_over(tmp_path: Path, make_image) -> None:
    write_records(tmp_path, face2rec2([0, 1], [make_image(0), make_image(1)]), index=True)
    (tmp_path / "train.idx").unlink()
    (tmp_path / "train.idx").symlink_to("gone")
    with pytest.raises(DataError, match="train.idx cannot be read: No such file.*; delete it"):
        RecordSet(tmp_path)


def test_labels_are_looked_up_where_ranges_overlap(tmp_path: Path, make_image, monkeypatch) -> None:
    """The first and the last image of a range have one label, and the one between another."""
    monkeypatch.setattr(record_set, "_ALL_LOOKED_UP", 0)
    images = [(key, encode((float(label),), key, make_image(key))) for key, label in
              ((1, 0), (2, 1), (3, 0))]  # fmt: skip
    ranges = [(key, encode(bounds, key, b"")) for key, bounds in
              ((4, (2.0, 3.0)), (5, (1.0, 4.0)), (6, (1.0, 4.0)))]  # fmt: skip
    announced = (0, encode((4.0, 7.0), 0, b""))
    records = RecordSet(write_records(tmp_path, [announced, *images, *ranges]))
    assert records.labels().tolist() == [0, 1, 0] and not records.identity_ranges().any()


def chain(records: int) -> tuple[bytes, list[int]]:
    """First parts of which each reaches beyond the others, to one chain of 900 parts."""
    lengths = range(24 + 8 * (records - 1), 23, -8)
    frames = [struct.pack("<II", MAGIC, 1 << 29 | length) for length in lengths]
    rest = bytes(24) + struct.pack("<II", MAGIC, 2 << 29) * 900 + struct.pack("<II", MAGIC, 3 << 29)
    return b"".join(frames) + rest, [*range(0, 8 * records, 8)]


def nested(records: int) -> tuple[bytes, list[int]]:
    """Whole records, of which each has the next one as its payload."""
    content = b""
    for _ in range(records):
        content = struct.pack("<IIIfQQ", MAGIC, 24 + len(content), 0, 0.0, 0, 0) + content
    return content, [*range(0, 32 * records, 32)]


@pytest.mark.parametrize("made", [chain(10_000), nested(40)], ids=["parts", "whole"])
def test_records_that_share_bytes_are_refused(
    tmp_path: Path, made: tuple[bytes, list[int]]
) -> None:
    """Each of them would be followed to the end, which takes the square of the file's size."""
    content, offsets = made
    (tmp_path / "train.rec").write_bytes(content)
    lines = [f"{key}\t{offset}\n" for key, offset in enumerate(offsets)]
    (tmp_path / "train.idx").write_text("".join(lines))
    began = time.process_time()
    with pytest.raises(DataError, match=r"train\.idx does not fit train\.rec"):
        RecordSet(tmp_path)
    assert time.process_time() - began < 1
