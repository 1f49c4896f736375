from __future__ import annotations

import os
import re
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from data.records import index as index_module
from data.records import record_set
from data.records.record_set import Property, RecordSet, read_property
from data.records.recordio import BrokenRecordError, encode
from data.records.writer import RecordWriter
from runtime.errors import DataError
from tests.support.foreign_records import im2rec, write_records
from tests.support.sets import assert_refused, contents, images_of, overwrite


def overwrite_label(folder: Path, key: int, label: float) -> RecordSet:
    return RecordSet(overwrite(folder, key, struct.pack("<f", label), at=12))


def test_a_packed_set_reads_back(write_set, make_image) -> None:
    folder = write_set([3, 1, 2])
    records = RecordSet(folder)
    assert (len(records), records.num_classes, records.image_size) == (6, 3, (16, 16))
    assert records.name == "faces"
    read = images_of(records)
    assert read == [(make_image(i), label) for i, label in enumerate([0, 0, 0, 1, 2, 2])]
    assert records.labels().tolist() == [0, 0, 0, 1, 2, 2]
    assert [records.key(i) for i in range(6)] == [1, 2, 3, 4, 5, 6]
    assert records.identity_ranges().tolist() == [[1, 4], [4, 5], [5, 7]]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(records.image, [*range(6)] * 50)) == read * 50

    # As published sets are.
    assert (folder / "property").read_text() == "3,16,16\n"
    lines = [line.split("\t") for line in (folder / "train.idx").read_text().splitlines()]
    assert [key for key, _ in lines] == list("0123456789")
    content = (folder / "train.rec").read_bytes()
    assert struct.unpack("<IIIfQQff", content[:40])[2:] == (2, 0.0, 0, 0, 7.0, 10.0)
    last = content[int(lines[9][1]) :]
    assert struct.unpack("<IIIfQQff", last)[2:] == (2, 0.0, 9, 0, 5.0, 7.0)

    (folder / "train.idx").unlink()
    (folder / "property").unlink()
    scanned = RecordSet(folder / "train.rec")
    assert (scanned.num_classes, scanned.image_size) == (3, (16, 16))
    assert images_of(scanned) == read


@pytest.mark.parametrize("content", [
    b"16777216,112,96",
    b"16777216, 112 ,\t96\r\n",
    b"\xef\xbb\xbf16777216,112,96\r\n",
    b"\n \n16777216,112,96\n",
    # rec2shufrec.py of InsightFace.
    b"16777216,112,96\n490623\nshuffled\n2018-06-27 10:02:11.483209\n",
])  # fmt: skip
def test_spellings_of_property(tmp_path, content: bytes) -> None:
    path = tmp_path / "property"
    path.write_bytes(content)
    assert read_property(path) == Property(1 << 24, (112, 96))
    path.write_bytes(b"1,1,4096\n" + bytes(1 << 20).replace(b"\0", b"\n")[:-9])
    assert read_property(path, 1) == Property(1, (1, 4096))
    path.write_bytes(b"1,4096,1\n" + bytes(1 << 20).replace(b"\0", b"\n")[:-8])
    assert_refused("read as num_classes,height,width: .* more than 1,048,576", read_property, path)


@pytest.mark.parametrize("text", [
    "", "\n", "10572,112", "10572,112,112,3", "10572 112 112", "10572.0,112,112",
    "10_572,112,112", "+10572,112,112", "0,112,112", "-1,112,112", "10572,0,112",
    "10572,112,0", "10572,112,-112", "10572,112,4097", "10572,4097,112", "16777217,112,112",
    "9" * 5000 + ",112,112", "a,b,c", "10572,112,112 faces", "\u0661,112,112", "nan,112,112",
])  # fmt: skip
def test_any_other_property_is_refused(tmp_path, text: str) -> None:
    (tmp_path / "property").write_text(text, "utf-8")
    message = re.escape(f"property begins with {text.strip()[:80]!r} instead of")
    assert_refused(message, read_property, tmp_path / "property")


@pytest.mark.parametrize("index", [True, False])
def test_flat_sets(tmp_path, make_image, monkeypatch, index: bool) -> None:
    """Keys with gaps, in any order, as im2rec writes them; without an index, positions are keys."""
    payloads, labels = [make_image(i) for i in range(4)], [2, 0, 2, 1]
    keys = [5, 10, 20, 30] if index else [0] * 4
    write_records(tmp_path, im2rec(labels, payloads, keys), index=index)
    for path in list(tmp_path.iterdir()):
        path.rename(path.with_stem("other"))
    records = RecordSet(tmp_path)
    assert (len(records), records.num_classes, records.image_size) == (4, 3, (16, 16))
    assert images_of(records) == list(zip(payloads, labels)) and records.labels().tolist() == labels
    assert [records.key(i) for i in range(4)] == (keys if index else [0, 1, 2, 3])
    # Another start reads the cache.
    monkeypatch.setattr(index_module, "_build", None)
    assert RecordSet(tmp_path).key(3) == (30 if index else 3)


def test_the_size_is_that_of_the_first_image_that_can_be_read(tmp_path, make_image) -> None:
    for broken in (100, 101):
        written = im2rec([0] * 102, [b"junk"] * broken + [make_image(1)] * 2, range(102))
        write_records(tmp_path / f"{broken}", written)
    assert RecordSet(tmp_path / "100").image_size == (16, 16)
    message = "record 100: .*none of the first 101 images can be read, .* into .*property"
    assert_refused(message, RecordSet, tmp_path / "101")


def test_labels_come_from_the_images(tmp_path, write_set, make_image) -> None:
    """From the first of several, and not from the order of the ranges."""
    labels = [(4.0, 77.0), (2.0,)]
    written = [(key, encode(label, key, make_image(1))) for key, label in enumerate(labels)]
    write_records(tmp_path, written, index=False, description="5,16,16\nextra lines occur\n")
    records = RecordSet(tmp_path)
    assert [label for _, label in images_of(records)] == records.labels().tolist() == [4, 2]
    folder = write_set([2, 2])
    for key, label in enumerate((1, 1, 0, 0), 1):
        overwrite_label(folder, key, label)
    assert RecordSet(folder).labels().tolist() == [1, 1, 0, 0]


def test_rounded_key_ranges_are_made_exact(tmp_path, make_image) -> None:
    """Above 2^24 float32 knows even numbers only, and Glint360K has 17 million images."""
    base = 2**24
    images = im2rec([0, 0, 0, 1, 1], [make_image(1)] * 5, range(base + 1, base + 6))
    # The true bounds are base + 6 … base + 8, hence rounded to themselves; shift them by one.
    header = (0, encode((float(base + 8), float(base + 8)), 0, b""))
    ranges = (base + 6, encode((float(base), float(base + 4)), base + 6, b""))
    records = RecordSet(write_records(tmp_path, [header, *images, ranges], description="2,16,16"))
    assert len(records) == 5 and records.key(0) == base + 1
    assert records.labels().tolist() == [0, 0, 0, 1, 1]


def test_the_files_of_a_set_and_missing_ones(write_set, tmp_path, caplog) -> None:
    # Some other host may have the second one.
    for folder in (tmp_path / "none", write_set([2, 2])):
        expected = [folder / name for name in ("train.rec", "train.idx", "property")]
        assert record_set.files_of(folder) == record_set.files_of(expected[0]) == expected
    assert RecordSet(folder).num_classes == 2 and not caplog.text
    (folder / "property").write_text("5,16,16")
    assert RecordSet(folder).num_classes == 5
    assert "property says 5 classes, but train.rec holds 2 identities: the others" in caplog.text
    few = tmp_path / "few"
    few.mkdir()
    for name in ("nowhere", "n" * 300):
        assert_refused("no such folder", RecordSet, tmp_path / name)
    assert_refused(r"no \.rec file.*data\.pack", RecordSet, few)
    for name in ("a.rec", "b.rec", ".c.rec"):
        (few / name).touch()
    assert_refused(r"2 \.rec files", RecordSet, few)


@pytest.mark.parametrize("label", [3.0, -1.0, 0.5, float("nan"), float("inf")])
def test_labels_that_are_no_class_are_named(write_set, tmp_path, make_image, label: float) -> None:
    grouped = overwrite_label(write_set([2, 2, 2]), 3, label)
    written = im2rec([0.0, 1.0, label], [make_image(1)] * 3, range(3))
    flat = RecordSet(write_records(tmp_path / "flat", written, description="3,16,16"))
    message = rf"record {{}} has label {label:g}, but the classes are 0 to 2"
    for records, key in ((grouped, 3), (flat, 2)):
        with pytest.raises(DataError, match=message.format(key)) as caught:
            records.image(2)
        assert not isinstance(caught.value, BrokenRecordError)
    assert_refused(message.format(2), flat.labels)


@pytest.mark.parametrize(("label", "error"), [(0, KeyboardInterrupt), (1, AssertionError)])
def test_an_interrupted_writer_leaves_nothing(tmp_path, make_image, label, error) -> None:
    """Whether by the user, or by a label that is out of order."""
    with pytest.raises(error), RecordWriter(tmp_path, image_size=(16, 16)) as writer:
        writer.write(make_image(0), label)
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_reader_never_sees_a_mixed_set(write_set, monkeypatch) -> None:
    """Whoever opens the set at any moment of a replacement gets the old one or the new one."""
    folder = write_set([3, 1, 2])
    before, seen = contents(folder), []

    def full(file) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        assert_refused("No space", write_set, [1, 1], kind=OSError)
    assert contents(folder) == before

    def look(step):
        def looking(self, *arguments, **options):
            records = RecordSet(folder)
            seen.append((len(records), records.num_classes))
            return step(self, *arguments, **options)

        return looking

    with monkeypatch.context() as patch:
        for name in ("unlink", "replace"):
            patch.setattr(Path, name, look(getattr(Path, name)))
        patch.setattr("data.records.index_cache.write_cache", lambda *_: None)
        write_set([1, 1])
    assert set(seen) == {(6, 3), (2, 2)} and len(seen) >= 5
    assert (len(RecordSet(folder)), (folder / "property").read_text()) == (2, "2,16,16\n")


def test_a_set_that_is_replaced_while_it_is_opened_is_refused(write_set, monkeypatch) -> None:
    folder, describe = write_set([3, 1, 2]), RecordSet._describe

    def describe_late(self) -> None:
        describe(self)
        write_set([1, 1])

    with monkeypatch.context() as patch:
        patch.setattr(RecordSet, "_describe", describe_late)
        assert_refused("was replaced or changed while it was open", RecordSet, folder)
    # Of one that is written anew while it is read, no record is merely broken.
    records = RecordSet(folder)
    (folder / "train.rec").write_bytes(bytes((folder / "train.rec").stat().st_size))
    os.utime(folder / "train.rec", ns=(1, 1))
    with pytest.raises(DataError, match="was replaced or changed") as caught:
        records.image(0)
    assert not isinstance(caught.value, BrokenRecordError)
