from __future__ import annotations

import re
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest

from data.records import record_set
from data.records.record_set import RecordSet
from data.records.recordio import BrokenRecordError, encode
from data.records.writer import RecordWriter
from runtime.errors import DataError
from tests.support.jpegs import bytes_of


def write_flat(path: Path, payloads: list[bytes], labels: list[float]) -> None:
    records = [encode((label,), i, data) for i, (label, data) in enumerate(zip(labels, payloads))]
    path.write_bytes(b"".join(records))


def record_offset(folder: Path, key: int) -> int:
    lines = (folder / "train.idx").read_text().splitlines()
    return int(dict(line.split("\t") for line in lines)[str(key)])


def overwrite(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def test_a_packed_set_reads_back(write_set, make_image) -> None:
    records = RecordSet(write_set([3, 1, 2]))
    assert (len(records), records.num_classes, records.image_size) == (6, 3, (16, 16))
    assert records.name == "faces"
    read = [records.read(i) for i in range(6)]
    assert [record.label for record in read] == [0, 0, 0, 1, 2, 2]
    assert [record.key for record in read] == [1, 2, 3, 4, 5, 6]
    assert all(bytes(record.payload) == make_image(i) for i, record in enumerate(read))
    assert records.identity_ranges().tolist() == [[1, 4], [4, 5], [5, 7]]
    assert np.bincount(records.labels()).tolist() == [3, 1, 2]


def test_the_files_are_laid_out_as_published_sets_are(write_set) -> None:
    folder = write_set([2, 1])
    assert (folder / "property").read_text() == "2,16,16\n"
    lines = (folder / "train.idx").read_text().splitlines()
    assert [line.split("\t")[0] for line in lines] == list("012345")
    content = (folder / "train.rec").read_bytes()
    header = content[: 8 + 24 + 8]
    assert struct.unpack("<IIIfQQff", header)[2:] == (2, 0.0, 0, 0, 4.0, 6.0)
    last = content[record_offset(folder, 5) :]
    assert struct.unpack("<IIIfQQff", last)[2:] == (2, 0.0, 5, 0, 3.0, 4.0)


def test_without_index_and_property_nothing_changes(write_set) -> None:
    folder = write_set([3, 1, 2])
    indexed = RecordSet(folder)
    (folder / "train.idx").unlink()
    (folder / "property").unlink()
    scanned = RecordSet(folder / "train.rec")
    assert (scanned.num_classes, scanned.image_size) == (3, (16, 16))
    assert [scanned.read(i) for i in range(6)] == [indexed.read(i) for i in range(6)]


@pytest.mark.parametrize("indexed", [True, False])
def test_flat_sets(tmp_path: Path, make_image, indexed: bool) -> None:
    payloads = [make_image(i) for i in range(4)]
    write_flat(tmp_path / "other.rec", payloads, [2, 0, 2, 1])
    if indexed:
        offsets = np.cumsum([0] + [len(encode((0.0,), 0, data)) for data in payloads])
        # Keys with gaps, in any order, as im2rec writes them.
        lines = [f"{key}\t{offsets[i]}\n" for key, i in [(30, 3), (10, 1), (20, 2), (5, 0)]]
        (tmp_path / "other.idx").write_text("".join(lines))
    records = RecordSet(tmp_path)
    assert (len(records), records.num_classes, records.image_size) == (4, 3, (16, 16))
    assert [records.read(i).label for i in range(4)] == [2, 0, 2, 1]
    assert [records.key(i) for i in range(4)] == ([5, 10, 20, 30] if indexed else [0, 1, 2, 3])
    assert bytes(records.read(3).payload) == payloads[3]
    assert records.labels().tolist() == [2, 0, 2, 1]


def test_label_arrays_give_the_identity(tmp_path: Path, make_image) -> None:
    image = make_image(1)
    (tmp_path / "train.rec").write_bytes(encode((4.0, 77.0), 0, image) + encode((2.0,), 1, image))
    (tmp_path / "property").write_text("5,16,16\nextra lines occur\n")
    records = RecordSet(tmp_path)
    assert [records.read(0).label, records.read(1).label] == [4, 2]
    assert records.labels().tolist() == [4, 2]


def test_labels_come_from_the_images_not_from_the_order_of_the_ranges(write_set) -> None:
    folder = write_set([2, 2])
    for key, label in [(1, 1.0), (2, 1.0), (3, 0.0), (4, 0.0)]:
        offset = record_offset(folder, key)
        overwrite(folder / "train.rec", offset + 12, struct.pack("<f", label))
    assert RecordSet(folder).labels().tolist() == [1, 1, 0, 0]


def test_reads_from_many_threads_agree(write_set) -> None:
    records = RecordSet(write_set([50, 50]))
    expected = [records.read(i) for i in range(100)]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            assert list(pool.map(records.read, range(100))) == expected


def test_rounded_key_ranges_are_made_exact(tmp_path: Path, make_image) -> None:
    """Above 2^24 float32 knows even numbers only, and Glint360K has 17 million images."""
    base = 2**24
    image = make_image(1)
    image_keys = range(base + 1, base + 6)
    # The true bounds are base + 6 … base + 8, hence rounded to themselves; shift them by one.
    header = encode((float(base + 8), float(base + 8)), 0, b"")
    contents = [header] + [encode((0.0 if k < base + 4 else 1.0,), k, image) for k in image_keys]
    contents += [encode((float(base), float(base + 4)), base + 6, b"")]
    keys = [0, *range(base + 1, base + 7)]
    offsets = np.cumsum([0] + [len(content) for content in contents[:-1]])
    (tmp_path / "train.rec").write_bytes(b"".join(contents))
    lines = [f"{key}\t{offset}\n" for key, offset in zip(keys, offsets)]
    (tmp_path / "train.idx").write_text("".join(lines))
    (tmp_path / "property").write_text("2,16,16")
    records = RecordSet(tmp_path)
    assert len(records) == 5
    assert records.key(0) == base + 1
    assert records.labels().tolist() == [0, 0, 0, 1, 1]


def test_the_files_of_a_set(write_set, tmp_path: Path) -> None:
    folder = write_set([2, 2])
    names = ("train.rec", "train.idx", "property")
    expected = [folder / name for name in names]
    assert record_set.files_of(folder) == record_set.files_of(folder / "train.rec") == expected
    # Some other host may have it.
    for path in (tmp_path / "none", tmp_path / "none" / "train.rec"):
        assert record_set.files_of(path) == [tmp_path / "none" / name for name in names]


def test_missing_sets_are_named(tmp_path: Path) -> None:
    for name in ("nowhere", "n" * 300):
        with pytest.raises(DataError, match="no such folder"):
            RecordSet(tmp_path / name)
    with pytest.raises(DataError, match=r"no \.rec file.*data\.pack"):
        RecordSet(tmp_path)
    (tmp_path / "a.rec").touch()
    (tmp_path / "b.rec").touch()
    with pytest.raises(DataError, match=r"2 \.rec files"):
        RecordSet(tmp_path)


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("keep", [0.5, 0.99])
def test_a_truncated_file_is_found_at_the_start(write_set, indexed: bool, keep: float) -> None:
    folder = write_set([5, 5])
    path = folder / "train.rec"
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    if not indexed:
        (folder / "train.idx").unlink()
    with pytest.raises(DataError, match=r"train\.rec: .*truncated.*copy"):
        RecordSet(folder)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0\t0\n1",
        "zero\tone\n",
        "0\t0\n1\t48.5\n",
        "1\t0\n1\t48\n",
        "0\t-4\n1\t48",
        "0\t0\n1\t49",
    ],
)
def test_a_broken_index_is_named(write_set, text: str) -> None:
    folder = write_set([2])
    (folder / "train.idx").write_text(text)
    with pytest.raises(DataError, match=re.escape(str(folder))):
        RecordSet(folder)


def test_an_index_of_another_version_is_refused(write_set) -> None:
    folder = write_set([2, 2])
    lines = (folder / "train.idx").read_text().splitlines(keepends=True)
    (folder / "train.idx").write_text("".join(lines[:-2]))
    with pytest.raises(
        DataError,
        match=r"train\.idx lacks 2 .* it names 5; delete it",
    ):
        RecordSet(folder)


@pytest.mark.parametrize(
    "text",
    ["", "faces", "2,16", "2,16,16,16", "0,16,16", "2,-16,16", "2,16,1e9", "2,16,99999", "\xff"],
)
def test_a_nonsensical_property_is_refused(write_set, text: str) -> None:
    folder = write_set([2, 2])
    (folder / "property").write_text(text)
    with pytest.raises(DataError, match="property begins with .* correct it"):
        RecordSet(folder)


def test_fewer_classes_than_identities_are_found_at_the_start(write_set) -> None:
    folder = write_set([2, 2, 2])
    (folder / "property").write_text("2,16,16")
    with pytest.raises(DataError, match="2 classes, but train.rec holds 3 identities"):
        RecordSet(folder)


def test_more_classes_than_identities_are_said(write_set, caplog) -> None:
    folder = write_set([2, 2, 2])
    assert RecordSet(folder).num_classes == 3 and not caplog.text
    (folder / "property").write_text("5,16,16")
    assert RecordSet(folder).num_classes == 5
    assert "property says 5 classes, but train.rec holds 3 identities: the others" in caplog.text


@pytest.mark.parametrize("label", [3.0, -1.0, 0.5, float("nan"), float("inf")])
def test_labels_outside_the_classes_name_the_record(write_set, label: float) -> None:
    folder = write_set([2, 2, 2])
    overwrite(folder / "train.rec", record_offset(folder, 4) + 12, struct.pack("<f", label))
    records = RecordSet(folder)
    with pytest.raises(DataError, match="record 4 has label .* classes are 0 to 2") as caught:
        records.read(3)
    assert not isinstance(caught.value, BrokenRecordError)


def test_fewer_classes_than_labels_in_a_flat_set(tmp_path: Path, make_image) -> None:
    write_flat(tmp_path / "train.rec", [make_image(0)] * 3, [0, 1, 2])
    (tmp_path / "property").write_text("2,16,16")
    records = RecordSet(tmp_path)
    for action in (records.labels, lambda: records.read(2)):
        with pytest.raises(DataError, match="record 2 has label 2, but the classes are 0 to 1"):
            action()


@pytest.mark.parametrize("label", [-1.0, 0.5, float("nan"), float("inf")])
def test_a_label_that_is_no_class_is_named_with_its_record(
    tmp_path: Path, make_image, label: float
) -> None:
    write_flat(tmp_path / "train.rec", [make_image(0)] * 3, [0, 1, label])
    (tmp_path / "property").write_text("2,16,16")
    with pytest.raises(DataError, match=f"record 2 has label {label:g}, but the classes are"):
        RecordSet(tmp_path).labels()


def test_a_damaged_record_leaves_the_others_readable(write_set) -> None:
    folder = write_set([2, 2])
    overwrite(folder / "train.rec", record_offset(folder, 2), b"junk")
    records = RecordSet(folder)
    with pytest.raises(BrokenRecordError, match=r"train\.rec: record 2: .*magic"):
        records.read(1)
    assert records.read(2).label == 1


def test_a_record_without_an_image_is_named(tmp_path: Path, make_image) -> None:
    write_flat(tmp_path / "train.rec", [make_image(0), b"", make_image(2)], [0, 1, 1])
    (tmp_path / "property").write_text("2,16,16")
    records = RecordSet(tmp_path)
    with pytest.raises(BrokenRecordError, match=r"record 1: there is no image in it"):
        records.read(1)
    assert records.read(2).label == 1


def test_many_at_once_are_the_same_as_one_by_one(tmp_path: Path, make_image) -> None:
    """JPEGs in plain records come at once; ``image`` is asked for everything else."""
    jpegs = [cv2.imencode(".jpg", np.full((16, 16, 3), i, np.uint8))[1].tobytes() for i in range(6)]
    payloads = [jpegs[0], make_image(1), jpegs[2], jpegs[3], jpegs[4], jpegs[5]]
    file = tmp_path / "train.rec"
    write_flat(file, payloads, [0.0, 1.0, 1.0, 0.5, 7.0, 1.0])
    (tmp_path / "property").write_text("2,16,16")
    records = RecordSet(tmp_path)
    overwrite(file, file.read_bytes().index(jpegs[5]) - 32, b"\0\0\0\0")
    order = np.array([5, 2, 0, 1, 3, 4, 2], np.int64)
    found = records.jpegs(order)
    assert bytes_of(found) == [
        None,  # damaged
        jpegs[2],
        jpegs[0],
        None,  # a PNG
        None,  # labels that are no class
        None,
        jpegs[2],
    ]
    assert found.labels[[1, 2, 6]].tolist() == [1, 0, 1]
    assert [bytes(records.image(index)[0]) for index in (2, 0)] == [jpegs[2], jpegs[0]]


def test_an_interrupted_writer_leaves_nothing(tmp_path: Path, make_image) -> None:
    with pytest.raises(KeyboardInterrupt), RecordWriter(tmp_path, image_size=(16, 16)) as writer:
        writer.write(make_image(0), 0)
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_identities_out_of_order_are_a_bug(tmp_path: Path, make_image) -> None:
    with pytest.raises(AssertionError), RecordWriter(tmp_path, image_size=(16, 16)) as writer:
        writer.write(make_image(0), 1)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".cache"}


def test_a_reader_never_sees_a_mixed_set(write_set, monkeypatch) -> None:
    """Whoever opens the set at any moment of a replacement gets the old one or the new one."""
    folder = write_set([3, 1, 2])
    seen = []

    def look(step):
        def looking(self, *arguments, **options):
            records = RecordSet(folder)
            seen.append((len(records), records.num_classes))
            return step(self, *arguments, **options)

        return looking

    for name in ("unlink", "replace"):
        monkeypatch.setattr(Path, name, look(getattr(Path, name)))
    monkeypatch.setattr("data.records.index_cache.write_cache", lambda *_: None)
    write_set([1, 1])
    monkeypatch.undo()
    assert set(seen) == {(6, 3), (2, 2)} and len(seen) >= 5
    assert (len(RecordSet(folder)), (folder / "property").read_text()) == (2, "2,16,16\n")


def test_a_full_disk_leaves_the_old_set(write_set, monkeypatch) -> None:
    folder = write_set([3, 1, 2])
    before = files_of(folder)

    def full(file) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_set([1, 1])
    assert files_of(folder) == before


def test_a_set_that_is_replaced_while_it_is_opened_is_refused(write_set, monkeypatch) -> None:
    folder = write_set([3, 1, 2])
    describe = RecordSet._describe

    def describe_late(self) -> None:
        describe(self)
        write_set([1, 1])

    monkeypatch.setattr(RecordSet, "_describe", describe_late)
    with pytest.raises(DataError, match="was replaced or changed while it was open"):
        RecordSet(folder)
