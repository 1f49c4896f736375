from __future__ import annotations

import os
import re
import struct
import time
from pathlib import Path

import numpy as np
import pytest

from data.records import index as index_module
from data.records import record_set
from data.records.index import cached_array
from data.records.record_set import RecordSet
from data.records.recordio import BrokenRecordError, RecordFile, encode
from runtime.errors import DataError
from tests.support.foreign_records import face2rec2, im2rec, index_of, rec_builder, write_records
from tests.support.sets import assert_refused, images_of, overwrite

MAGIC = struct.pack("<I", 0xCED7230A)
RECORD = encode((1.0,), 1, b"payload!")
SORTED = [0, 0, 0, 1, 2, 2]
# Four people of an unsorted list, in 31 runs.
UNSORTED = [*range(4), *range(4), 3, *range(4), 2, 0, 0, *range(1, 4), *range(3), *range(4), 0,
            *range(4), 1, 2, 0]  # fmt: skip
ARRAY = np.arange(5, dtype=np.int64) * 2**40


def open_records(folder: Path, *records: bytes) -> RecordFile:
    path = folder / f"{len(os.listdir(folder))}.rec"
    path.write_bytes(b"".join(records))
    return RecordFile(path)


def parts(*parts: tuple[int, bytes]) -> bytes:
    """Frames of parts, each with the number of its kind (0 whole, 1 first, 2 middle, 3 last)."""
    heads = (MAGIC + struct.pack("<I", kind << 29 | len(content)) for kind, content in parts)
    return b"".join(head + content for head, (_, content) in zip(heads, parts))


def test_encoded_bytes_are_those_of_the_format() -> None:
    header = struct.pack("<IfQQ", 0, 5.0, 9, 0)
    assert encode((5.0,), 9, b"abc") == parts((0, header + b"abc")) + b"\0"
    header = struct.pack("<IfQQff", 2, 0.0, 0, 0, 17.0, 20.0)
    assert encode((17.0, 20.0), 0, b"") == parts((0, header))


@pytest.mark.parametrize("payload", [
    b"x" * 8 + MAGIC + b"tail", MAGIC, MAGIC * 3, b"ab" + MAGIC, b"abcd" + MAGIC + b"e" + MAGIC
], ids=["inside", "alone", "thrice", "unaligned", "both"])  # fmt: skip
def test_content_with_the_magic_is_cut_and_joined(tmp_path, payload: bytes) -> None:
    record = encode((3.0,), 1, payload)
    file = open_records(tmp_path, record, encode((4.0,), 2, b"next"))
    assert bytes(file.read(0)[1]) == payload
    assert file.scan()[1].tolist() == [0, len(record)]
    cut, whole = (np.frombuffer(one[: len(one) // 4 * 4], "<u4") for one in (record, payload))
    assert (cut == 0xCED7230A).sum() == 1 + (whole == 0xCED7230A).sum()


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


def test_a_record_has_at_most_1024_parts_and_none_within_it(tmp_path, monkeypatch) -> None:
    """It is read once for each key that names it, in 2 us for each part."""
    record = encode((3.0,), 1, MAGIC * 1023)
    assert bytes(open_records(tmp_path, record).read(0)[1]) == MAGIC * 1023
    assert_refused("an image has 1,025 parts, more than 1,024", encode, (3.0,), 1, MAGIC * 1024)
    first = (1, struct.pack("<IfQQ", 0, 3.0, 1, 0))
    many = open_records(tmp_path, parts(first, *[(2, b"")] * 1023, (3, b"")))
    # The end of each first part would be looked for up to the end of the file.
    within = open_records(tmp_path, parts(first, first, (3, b"")))
    for file, message in ((many, "more than 1,024 parts"), (within, "its last part is missing")):
        for use in (file.read, file.end):
            assert_refused(message, use, 0, kind=BrokenRecordError)
    assert within.end(32) == len(within)
    monkeypatch.setattr("data.records.recordio._MAX_LENGTH", 123)
    assert_refused("an image of 100 bytes is too large for", encode, (3.0,), 1, bytes(100))


@pytest.fixture
def images(make_image):
    return [make_image(number) for number in range(len(UNSORTED))]


@pytest.fixture
def flat(images):
    """Forty images, of which some have the magic in them and thus several parts."""
    payloads = [images[n % 31] + (b"abcd" + MAGIC) * (n % 3) for n in range(40)]
    return im2rec([n % 4 for n in range(40)], payloads, range(40))


def found(path: Path):
    records = RecordSet(path)
    return [(records.key(n), *image) for n, image in enumerate(images_of(records))]


@pytest.mark.parametrize(("writes", "index", "labels", "described"), [
    (face2rec2, True, SORTED, False), (face2rec2, False, UNSORTED, True),
    (rec_builder, True, UNSORTED, False), (rec_builder, False, SORTED, True),
    (rec_builder, False, UNSORTED, False),
])  # fmt: skip
def test_keys_are_those_of_the_headers(tmp_path, images, writes, index, labels, described) -> None:
    classes = max(labels) + 1
    description = f"{classes},16,16" if described else ""
    write_records(tmp_path, writes(labels, images), index=index, description=description)
    assert found(tmp_path) == list(zip(range(1, len(labels) + 1), images, labels))
    records = RecordSet(tmp_path)
    assert (records.num_classes, records.image_size) == (classes, (16, 16))
    assert records.labels().tolist() == labels
    (tmp_path / "property").write_text(f"{classes - 1},16,16")
    message = f"{classes - 1} classes, but train.rec holds {classes} identities"
    assert_refused(message, RecordSet, tmp_path)


def test_ids_that_number_nothing_are_not_taken(tmp_path, images) -> None:
    """Some writers give each header the id 0; then positions are the keys."""
    ranges = [(0, encode(bounds, 0, b"")) for bounds in ((3.0, 5.0), (1.0, 2.0), (2.0, 3.0))]
    written = im2rec([1, 0], images, [0, 0])
    ours = [ranges[0], *written, *ranges[1:]]
    records = RecordSet(write_records(tmp_path / "ours", ours, index=False))
    assert [label for _, label in images_of(records)] == [1, 0]
    with pytest.raises(DataError, match="ends with identity records, but no record 0"):
        RecordSet(write_records(tmp_path / "published", [*written, *ranges], index=False))
    # MXNet's rec2idx.py numbers the records as they lie; ranges mean the keys in the headers.
    for writes in (face2rec2, rec_builder):
        written = writes(SORTED, images)
        folder = write_records(tmp_path / writes.__name__, written, description="3,16,16")
        counted = index_of([(place, content) for place, (_, content) in enumerate(written)])
        (folder / "train.idx").write_text(counted)
        assert_refused("no record 0 announces them; .* delete the .idx", RecordSet, folder)


def changed(folder: Path, change) -> Path:
    lines = (folder / "train.idx").read_text().splitlines(keepends=True)
    (folder / "train.idx").write_bytes("".join(change(lines)).encode())
    return folder


def shifted(lines):
    return [f"{n}\t{int(line.split()[1]) + 4}\n" for n, line in enumerate(lines)]


def test_spellings_of_an_index(tmp_path, flat) -> None:
    scanned = found(write_records(tmp_path / "scanned", flat, index=False))
    assert len(scanned) == 40
    for number, change in enumerate((
        lambda lines: "\ufeff" + "".join(lines).replace("\n", "\r\n"),
        lambda lines: "".join(lines).replace("\n", "\r"),
        reversed,
        lambda lines: "\n\n".join(lines) + "\n\n",
    )):  # fmt: skip
        folder = write_records(tmp_path / f"{number}", flat)
        assert found(changed(folder, change)) == scanned, number


@pytest.mark.parametrize(("change", "message"), [
    (lambda lines: "", "is no index .*; delete it"),
    (lambda lines: lines[:25], "lacks some of the records in train.rec, .*the 25 records"),
    (lambda lines: [*lines[:-1], f"39\t{lines[5].split()[1]}\n"], "or does not fit it"),
    (lambda lines: [*lines, lines[3]], "impossible keys"),
    (lambda lines: [*lines, f"{2**64}\t0\n"], "impossible keys"),
    (lambda lines: [*lines[:-1], f"{2**40 + 1}\t{lines[-1].split()[1]}\n"], "impossible keys"),
    (lambda lines: "".join(lines).replace("\t0\n", "\t-4\n", 1), "impossible keys"),
    (lambda lines: "".join(lines).replace("\n5\t", "\n5\n", 1), "is no index"),
    # Within the records; all but the first and the last; after the end.
    (shifted, "copy both again"),
    (lambda lines: [lines[0], *shifted(lines)[1:-1], lines[-1]], "or does not fit it"),
    (lambda lines: [*lines, "40\t400000\n"], "copy both again"),
])  # fmt: skip
# As in a program, in which NumPy's warnings end nothing.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_indexes_of_other_files(tmp_path, flat, change, message: str) -> None:
    write_records(tmp_path, flat, description="4,16,16")
    assert_refused(f"{re.escape(str(tmp_path))}.*{message}", RecordSet, changed(tmp_path, change))


def test_a_file_that_grew_or_was_cut_off(tmp_path, flat) -> None:
    for more in (flat[0][1] * 2, bytes(64)):
        write_records(tmp_path, flat, description="4,16,16")
        with (tmp_path / "train.rec").open("ab") as file:
            file.write(more)
        assert_refused("lacks some of the records", RecordSet, tmp_path)
    write_records(tmp_path, flat)
    os.truncate(tmp_path / "train.rec", (tmp_path / "train.rec").stat().st_size - 8)
    assert_refused("damaged or of another version than its .idx: copy both", RecordSet, tmp_path)
    (tmp_path / "train.idx").unlink()
    assert_refused("file is truncated, damaged or of another version", RecordSet, tmp_path)
    (tmp_path / "train.idx").symlink_to("gone")
    assert_refused("train.idx cannot be read: No such file.*; delete it", RecordSet, tmp_path)


def test_record_0_has_to_say_where_the_identities_are(tmp_path, images) -> None:
    written = face2rec2([0, 0, 1, 2], images)
    assert written[4] == (0, encode((5.0, 8.0), 0, b""))
    for bounds in ((5.5, 8), (float("nan"), 8), (4, 8), (6, 8), (5, float("inf")), (-1, 8)):
        written[4] = 0, encode(bounds, 0, b"")
        for index in (True, False):
            folder = tmp_path / f"{bounds} {index}"
            write_records(folder, written, index=index, description="3,16,16")
            assert_refused("rec announces identities at keys .*not there", RecordSet, folder)


def test_large_files_are_checked_at_some_places(tmp_path, images, monkeypatch) -> None:
    """Of consecutive keys, the places where some are missing are known."""
    for name, value in (("_ALL_CHECKED", 64), ("_SPOT_CHECKS", 16)):
        monkeypatch.setattr(index_module, name, value)
    looked_at: list[int] = []
    end = RecordFile.end
    monkeypatch.setattr(RecordFile, "end", lambda *call: looked_at.append(1) or end(*call))
    payloads = [images[0] + bytes(4 * (n % 100 > 50) * len(images[0])) for n in range(5000)]
    written = im2rec([0] * 5000, payloads, range(5000))
    write_records(tmp_path, written, description="1,16,16")
    assert len(RecordSet(tmp_path)) == 5000 and 8 < len(looked_at) < 24
    for first, lost in ((1001, 1), (1000, 40), (1000, 3000), (0, 1), (4990, 10)):
        write_records(tmp_path, written)
        changed(tmp_path, lambda lines: lines[:first] + lines[first + lost :])  # noqa: B023
        assert_refused("lacks some of the records", RecordSet, tmp_path)


def test_labels_of_overlapping_ranges(tmp_path, images, write_set, monkeypatch) -> None:
    """The first and the last image of a range have one label, and the one between another."""
    monkeypatch.setattr(record_set, "_ALL_LOOKED_UP", 0)
    bounds = {0: (4.0, 7.0), 4: (2.0, 3.0), 5: (1.0, 4.0), 6: (1.0, 4.0)}
    announced, *ranges = [(key, encode(bounds[key], key, b"")) for key in bounds]
    written = [announced, *im2rec([0, 1, 0], images, [1, 2, 3]), *ranges]
    records = RecordSet(write_records(tmp_path, written))
    assert records.labels().tolist() == [0, 1, 0] and not records.identity_ranges().any()
    for number, labels in enumerate(([1, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 0])):
        folder = write_set([3, 3], f"{number}")
        for key, label in enumerate(labels, 1):
            overwrite(folder, key, struct.pack("<f", label), at=12)
        assert RecordSet(folder).labels().tolist() == labels


def test_records_that_share_bytes_are_refused(tmp_path) -> None:
    """Each of them would be followed to the end, which takes the square of the file's size."""
    # First parts of which each reaches beyond the others, to one chain of 900 parts.
    count = 10_000
    lengths = range(24 + 8 * (count - 1), 23, -8)
    frames = [MAGIC + struct.pack("<I", 1 << 29 | length) for length in lengths]
    chain = parts(*[(2, b"")] * 900, (3, b""))
    (tmp_path / "train.rec").write_bytes(b"".join(frames) + bytes(24) + chain)
    (tmp_path / "train.idx").write_text("".join(f"{key}\t{8 * key}\n" for key in range(count)))
    began = time.process_time()
    assert_refused("train.idx lacks some of .* train.rec, or does not", RecordSet, tmp_path)
    assert time.process_time() - began < 1


@pytest.fixture
def read(tmp_path: Path):
    """Return a function that reads the cache and tells whether it had to be built."""
    (tmp_path / "source").write_text("first")

    def read_or_build() -> bool:
        built: list[bool] = []
        sources = [tmp_path / "source", tmp_path / "absent"]
        array = cached_array(
            tmp_path / "cache", sources, "<i8", lambda: built.append(True) or ARRAY,
            lambda found: found[0] == ARRAY[0],
        )  # fmt: skip
        assert array.dtype == ARRAY.dtype and np.array_equal(array, ARRAY)
        # Mapped from the file, and not what this process has built.
        assert not array.flags.writeable
        return bool(built)

    return read_or_build


def test_an_array_is_built_once_and_again_when_a_source_changes(read, tmp_path) -> None:
    assert [read(), read(), read()] == [True, False, False]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "source"]
    # So that the array after the first line is aligned for a processor's vectors.
    assert ((tmp_path / "cache").read_bytes().index(b"\n") + 1) % 64 == 0
    source = tmp_path / "source"
    status = source.stat()
    source.write_text("longer")
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert [read(), read()] == [True, False]
    os.utime(source, ns=(1, 1))
    assert [read(), read()] == [True, False]
    source.with_name("absent").write_text("")
    assert [read(), read()] == [True, False]


def test_a_cache_of_other_content_or_length_is_made_again(read, tmp_path) -> None:
    read()
    cache = tmp_path / "cache"
    whole = cache.read_bytes()
    key = index_module.key_of([tmp_path / "source", tmp_path / "absent"])
    index_module.write_cache(cache, key, ARRAY[1:])
    assert [read(), read()] == [True, False]
    header = whole[: whole.index(b"\n") + 1]
    for content in (b"", b"\n", b"[]\n", b"{}\n", b"7\n", b"\x80\x04N.", b"x" * 9000, whole[:-8],
                    whole[:-1], whole + bytes(8), whole[1:], header):  # fmt: skip
        cache.write_bytes(content)
        assert [read(), read()] == [True, False], content
