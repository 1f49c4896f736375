from __future__ import annotations

import os
import re
import shutil
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from data.records import index as index_module
from data.records import record_set, shards
from data.records.record_set import RecordSet, read_property
from data.records.recordio import BrokenRecordError, encode
from data.records.shards import JoinedSet, open_sets, shard_path
from data.records.writer import RecordWriter
from runtime.errors import ConfigError, DataError
from tests.support.foreign_records import face2rec2, im2rec, write_records
from tests.support.sets import assert_refused, contents, images_of, overwrite, pack_set, write_files

# The class of each image in its shard, and in the set.
SHARDS = [[0, 0, 0, 1], [0, 0, 1, 1, 2, 2, 2, 2], [0] * 5]
LABELS = [0, 0, 0, 1, 2, 2, 3, 3, 4, 4, 4, 4, *[5] * 5]
NAMES = ["train-00000.rec", "train-00001.rec", "train-00002.rec"]


def test_a_packed_set_reads_back(write_set, make_image) -> None:
    folder = write_set([3, 1, 2])
    records = RecordSet(folder)
    assert (len(records), records.num_classes, records.image_size) == (6, 3, (16, 16))
    read = images_of(records)
    assert read == [(make_image(i), label) for i, label in enumerate([0, 0, 0, 1, 2, 2])]
    assert records.labels().tolist() == [0, 0, 0, 1, 2, 2]
    assert [records.key(i) for i in range(6)] == [1, 2, 3, 4, 5, 6]
    assert records.identity_ranges().tolist() == [[0, 3], [3, 4], [4, 6]]
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
    b"16777216,112,96", b"16777216, 112 ,\t96\r\n", b"\n \n16777216,112,96\n",
    b"\xef\xbb\xbf16777216,112,96\r\n",
    # rec2shufrec.py of InsightFace.
    b"16777216,112,96\n490623\nshuffled\n2018-06-27 10:02:11.483209\n",
])  # fmt: skip
def test_spellings_of_property(tmp_path, content: bytes) -> None:
    path = tmp_path / "property"
    path.write_bytes(content)
    assert read_property(path) == (1 << 24, (112, 96))
    path.write_bytes(b"1,1,4096\n" + bytes(1 << 20).replace(b"\0", b"\n")[:-9])
    assert read_property(path, 1) == (1, (1, 4096))
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
    records = RecordSet(tmp_path / "other.rec")
    assert (len(records), records.num_classes, records.image_size) == (4, 3, (16, 16))
    assert images_of(records) == list(zip(payloads, labels)) and records.labels().tolist() == labels
    assert [records.key(i) for i in range(4)] == (keys if index else [0, 1, 2, 3])
    monkeypatch.setattr(index_module, "_build", None)
    assert RecordSet(tmp_path / "other.rec").key(3) == (30 if index else 3)


def test_the_size_is_that_of_the_first_image_that_can_be_read(tmp_path, make_image) -> None:
    for name, images in (("good", [make_image(1)] * 2), ("bad", [])):
        payloads = [b"junk"] * 100 + images
        written = im2rec([0] * len(payloads), payloads, range(len(payloads)))
        write_records(tmp_path / name, written)
    assert RecordSet(tmp_path / "good").image_size == (16, 16)
    assert_refused("record 99: .*none of the 100 images can be read", RecordSet, tmp_path / "bad")


def test_labels_come_from_the_images(tmp_path, make_image) -> None:
    labels = [(4.0, 77.0), (2.0,)]
    written = [(key, encode(label, key, make_image(1))) for key, label in enumerate(labels)]
    write_records(tmp_path, written, index=False, description="5,16,16\nextra lines occur\n")
    records = RecordSet(tmp_path)
    assert [label for _, label in images_of(records)] == records.labels().tolist() == [4, 2]


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


def test_the_files_of_a_set_and_missing_ones(write_set, tmp_path) -> None:
    # Some other host may have the second one.
    for folder in (tmp_path / "none", write_set([2, 2])):
        expected = [folder / name for name in ("train.rec", "train.idx", "property")]
        assert record_set.files_of(folder) == record_set.files_of(expected[0]) == expected
    assert RecordSet(folder).num_classes == 2
    (folder / "property").write_text("5,16,16")
    assert RecordSet(folder).num_classes == 5
    for name in ("nowhere", "n" * 300, "."):
        assert_refused("train.rec cannot be read .*data.pack makes", RecordSet, tmp_path / name)


@pytest.mark.parametrize("label", [3.0, -1.0, 0.5, float("nan"), float("inf")])
def test_labels_that_are_no_class_are_named(write_set, tmp_path, make_image, label: float) -> None:
    grouped = RecordSet(overwrite(write_set([2, 2, 2]), 3, struct.pack("<f", label), at=12))
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
    with pytest.raises(error), RecordWriter(tmp_path, image_size=(16, 16)) as writer:
        writer.write(make_image(0), label)
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_reader_never_sees_a_mixed_set(write_set, monkeypatch) -> None:
    folder = write_set([3, 1, 2])
    before, seen = contents(folder), []
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", Mock(side_effect=OSError(28, "No space left on device")))
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
        patch.setattr("data.records.index.write_cache", lambda *_: None)
        write_set([1, 1])
    assert set(seen) == {(6, 3), (2, 2)} and len(seen) >= 5
    assert (len(RecordSet(folder)), (folder / "property").read_text()) == (2, "2,16,16\n")


def test_a_set_that_is_written_anew_while_it_is_read_is_refused(write_set) -> None:
    folder = write_set([3, 1, 2])
    records = RecordSet(folder)
    (folder / "train.rec").write_bytes(bytes((folder / "train.rec").stat().st_size))
    os.utime(folder / "train.rec", ns=(1, 1))
    with pytest.raises(DataError, match="was replaced or changed") as caught:
        records.image(0)
    assert not isinstance(caught.value, BrokenRecordError)


def labels_of(records) -> list[int]:
    return np.concatenate([labels for _, labels in records.label_chunks()]).tolist()


@pytest.fixture
def images(make_image):
    return [make_image(number) for number in range(17)]


@pytest.fixture
def folder(tmp_path, images) -> Path:
    rest = iter(images)
    for number, labels in enumerate(SHARDS):
        pack_set(shard_path(tmp_path, number), [next(rest) for _ in labels], labels)
    (tmp_path / "property").write_text("6,16,16\n")
    return tmp_path


def test_images_and_classes_of_all_shards(folder, images) -> None:
    for _ in range(2):
        whole = open_sets([folder])
        assert isinstance(whole, JoinedSet) and whole.path == folder
        assert (len(whole), whole.num_classes, whole.image_size) == (17, 6, (16, 16))
        assert labels_of(whole) == LABELS
        for start, stop in ((0, 17), (0, 99), (3, 4), (4, 13), (16, 17)):
            assert whole.labels_between(start, stop).tolist() == LABELS[start:stop]
    assert images_of(whole) == list(zip(images, LABELS))
    assert whole.where(5) == f"{folder / 'train-00001.rec'}: record 2"
    assert [path.name for path in shards.compared_files(folder)] == [*NAMES, "property"]


def test_shards_and_other_sets_are_joined(folder, tmp_path, write_set) -> None:
    other = write_set([2, 1], "other")
    assert isinstance(open_sets([other]), RecordSet)
    compared = [path.name for path in shards.compared_files(other)]
    assert compared == ["train.rec", "train.idx", "property"]
    joined = open_sets([other, folder, write_set([2, 1], "third")])
    assert (len(joined), joined.num_classes) == (3 + 17 + 3, 2 + 6 + 2)
    labels = [0, 0, 1, *(label + 2 for label in LABELS), 8, 8, 9]
    assert labels_of(joined) == [label for _, label in images_of(joined)] == labels
    alone = RecordSet(shard_path(folder, 2))
    assert (len(alone), alone.num_classes) == (5, 6)
    shutil.copy(shard_path(folder, 2), other / "train-00000.rec")
    assert isinstance(open_sets([other]), RecordSet)
    (tmp_path / "link").symlink_to(folder)
    for same in (folder, tmp_path / "link"):
        with pytest.raises(ConfigError, match=f"--rec names {folder} twice, so that each of its"):
            open_sets([folder, same])


def write_shards(folder: Path, *records) -> None:
    written = [b"".join(content for _, content in one) for one in records]
    write_files(folder, {"property": b"5,16,16", **dict(zip(NAMES, written))})


def test_classes_of_flat_shards_and_of_unsorted_lists(tmp_path, images) -> None:
    write_shards(tmp_path, *(im2rec(own, images, range(3)) for own in ([4, 0], [1, 4, 2])))
    whole = open_sets([tmp_path])
    assert (len(whole), whole.num_classes) == (5, 5)
    assert [label for _, label in images_of(whole)] == [4, 0, 1, 4, 2]
    # Each shard has more identity records than classes.
    write_shards(tmp_path, *(face2rec2(own, images) for own in ([0, 1, 0, 1], [2, 0, 1, 2, 1])))
    whole = open_sets([tmp_path])
    assert (len(whole), whole.num_classes) == (9, 5)
    assert [label for _, label in images_of(whole)] == [0, 1, 0, 1, 4, 2, 3, 4, 3]
    (tmp_path / "property").write_text("4,16,16")
    assert_refused("4 classes, but the 2 shards hold 5 identities", open_sets, [tmp_path])


def replace_by_flat(folder: Path) -> None:
    shard_path(folder, 1).write_bytes(encode((0.0,), 0, b"image"))
    (folder / "train-00001.idx").unlink()


@pytest.mark.parametrize(("damage", "message"), [
    (lambda folder: shard_path(folder, 1).unlink(), "00001.rec is missing, but train-00002"),
    (lambda folder: shutil.copy(shard_path(folder, 2), shard_path(folder, 3)),
     "6 classes, but the 4 shards hold 7 identities; a shard is missing or of another"),
    (lambda folder: (folder / "property").unlink(), "property cannot be read as num_classes"),
    *((lambda folder, n=n: (folder / "property").write_text(f"{n},16,16"), message)
      for n, message in ((2**31 - 1, "7 classes, but the 3"), (2**31, "begins with '2147483648,"))),
    (replace_by_flat, "has shards with identity records and others without"),
    (lambda folder: os.truncate(shard_path(folder, 1), 600), "1.rec: .* the file is truncated"),
])  # fmt: skip
def test_what_is_no_whole_set_is_told_in_one_line(folder, damage, message: str) -> None:
    damage(folder)
    assert_refused(message, open_sets, [folder])


def test_joined_sets_have_one_size_and_unreadable_labels_stay(tmp_path, write_set, images) -> None:
    written = im2rec([0, 0, 0], [b"x"] * 3, range(3))
    written[1] = 1, bytes(len(written[1][1]))
    bad = RecordSet(write_records(tmp_path / "bad", written, description="1,16,16"))
    joined = JoinedSet([RecordSet(write_set([3, 4])), bad])
    assert labels_of(joined) == [0] * 3 + [1] * 4 + [2, -1, 2]
    large = RecordSet(pack_set(tmp_path / "large", images, [0], (32, 32)))
    assert_refused("16 x 16 pixels.*32 x 32; pack them anew", JoinedSet, [bad, large])
