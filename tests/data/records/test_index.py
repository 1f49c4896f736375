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
from data.records.record_set import RecordSet
from data.records.recordio import MAGIC, RecordFile, encode
from runtime.errors import DataError
from tests.support.foreign_records import face2rec2, im2rec, index_of, rec_builder, write_records
from tests.support.sets import assert_refused, images_of, overwrite

SORTED = [0, 0, 0, 1, 2, 2]
# Four people of an unsorted list, in 31 runs.
UNSORTED = [*range(4), *range(4), 3, *range(4), 2, 0, 0, *range(1, 4), *range(3), *range(4), 0,
            *range(4), 1, 2, 0]  # fmt: skip
MAGIC_BYTES = struct.pack("<I", MAGIC)


@pytest.fixture
def images(make_image):
    return [make_image(number) for number in range(len(UNSORTED))]


@pytest.fixture
def flat(images):
    """Forty images, of which some have the magic in them and thus several parts."""
    payloads = [images[n % 31] + (b"abcd" + MAGIC_BYTES) * (n % 3) for n in range(40)]
    return im2rec([n % 4 for n in range(40)], payloads, range(40))


def found(path: Path):
    records = RecordSet(path)
    return [(records.key(n), *image) for n, image in enumerate(images_of(records))]


@pytest.mark.parametrize(("writes", "index", "labels", "described"), [
    (face2rec2, True, SORTED, False),
    (face2rec2, False, UNSORTED, True),
    (rec_builder, True, UNSORTED, False),
    (rec_builder, False, SORTED, True),
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
    # More ranges than classes hide no label.
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


def last_at(offset):
    return lambda lines: [*lines[:-1], f"39\t{offset}\n"]


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
    (lambda lines: "", "is empty; delete it"),
    (lambda lines: lines[:25], "lacks 15 or more of the records"),
    (lambda lines: lines[:8] + lines[10:20] + lines[21:], "lacks 3 or more of the records"),
    (lambda lines: last_at(lines[5].split()[1])(lines), "keys 5 and 39 one record"),
    (lambda lines: [*lines, lines[3]], "impossible keys"),
    (lambda lines: [*lines, f"{2**64}\t0\n"], "impossible keys"),
    (lambda lines: "".join(lines).replace("\t0\n", "\t-4\n", 1), "impossible offsets"),
    (last_at(2**64 - 4), "impossible offsets, the first for key 39; delete it"),
    (last_at("0x10"), "is no index"),
    # A record's key and offset in two lines.
    (lambda lines: "".join(lines).replace("\n5\t", "\n5\n", 1), "is no index"),
    # Within the records; all but the first and the last; after the end.
    (shifted, "copy both again"),
    (lambda lines: [lines[0], *shifted(lines)[1:-1], lines[-1]], "does not fit train.rec"),
    (lambda lines: [*lines, "40\t400000\n"], "copy both again"),
])  # fmt: skip
def test_indexes_of_other_files(tmp_path, flat, change, message: str) -> None:
    write_records(tmp_path, flat, description="4,16,16")
    assert_refused(f"{re.escape(str(tmp_path))}.*{message}", RecordSet, changed(tmp_path, change))


def test_a_file_that_grew_or_was_cut_off(tmp_path, flat) -> None:
    for more, message in ((flat[0][1] * 2, "lacks 2 or more"), (bytes(64), "does not fit")):
        write_records(tmp_path, flat, description="4,16,16")
        with (tmp_path / "train.rec").open("ab") as file:
            file.write(more)
        assert_refused(message, RecordSet, tmp_path)
    write_records(tmp_path, flat)
    os.truncate(tmp_path / "train.rec", (tmp_path / "train.rec").stat().st_size - 8)
    assert_refused("damaged or of another version than its .idx: copy both", RecordSet, tmp_path)
    (tmp_path / "train.idx").unlink()
    assert_refused("file is truncated or damaged: copy it again$", RecordSet, tmp_path)
    # A link to nothing is not passed over.
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
            assert_refused(r"train\.rec: its first record announces ident", RecordSet, folder)


def test_large_files_are_checked_at_some_places(tmp_path, images, monkeypatch, caplog) -> None:
    """Of consecutive keys, the places where some are missing are known."""
    for name, value in (("_ALL_CHECKED", 64), ("_SPOT_CHECKS", 16), ("_ENOUGH", 1000)):
        monkeypatch.setattr(index_module, name, value)
    looked_at: list[int] = []
    end = RecordFile.end
    monkeypatch.setattr(RecordFile, "end", lambda *call: looked_at.append(1) or end(*call))
    written = im2rec([0] * 5000, images[:1] * 5000, range(5000))
    write_records(tmp_path, written, description="1,16,16")
    assert len(RecordSet(tmp_path)) == 5000 and 8 < len(looked_at) < 24
    for lost, counted in ((1, 1), (40, 40), (3000, 1000)):
        write_records(tmp_path, written)
        changed(tmp_path, lambda lines, lost=lost: lines[:1000] + lines[1000 + lost :])
        assert_refused(f"lacks {counted} or more of the records", RecordSet, tmp_path)
    # Gaps that cannot all be looked at are said.
    keys = np.random.default_rng(0).permutation(1000)[:900].tolist()
    write_records(tmp_path, im2rec([0] * 900, images[:1] * 900, keys))
    assert not caplog.text and len(RecordSet(tmp_path)) == 900
    gaps = max(keys) - min(keys) + 1 - 900
    assert f"lacks {gaps} keys between its first and its last" in caplog.text


def test_labels_are_looked_up_where_ranges_overlap(
    tmp_path, images, write_set, monkeypatch
) -> None:
    """The first and the last image of a range have one label, and the one between another."""
    monkeypatch.setattr(record_set, "_ALL_LOOKED_UP", 0)
    bounds = {0: (4.0, 7.0), 4: (2.0, 3.0), 5: (1.0, 4.0), 6: (1.0, 4.0)}
    announced, *ranges = [(key, encode(bounds[key], key, b"")) for key in bounds]
    written = [announced, *im2rec([0, 1, 0], images, [1, 2, 3]), *ranges]
    records = RecordSet(write_records(tmp_path, written))
    assert records.labels().tolist() == [0, 1, 0] and not records.identity_ranges().any()
    # Ranges that name each image twice are followed.
    ranges = [(key, encode((1.0, 3.0), key, b"")) for key in (3, 4)]
    announced = 0, encode((3.0, 5.0), 0, b"")
    written = [announced, *im2rec([0, 1], images, [1, 2]), *ranges]
    records = RecordSet(write_records(tmp_path / "twice", written))
    assert records.identity_ranges().tolist() == [[1, 3], [1, 3]]
    # The first or the last has another label than the rest.
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
    frames = [struct.pack("<II", MAGIC, 1 << 29 | length) for length in lengths]
    parts = struct.pack("<II", MAGIC, 2 << 29) * 900 + struct.pack("<II", MAGIC, 3 << 29)
    (tmp_path / "train.rec").write_bytes(b"".join(frames) + bytes(24) + parts)
    (tmp_path / "train.idx").write_text("".join(f"{key}\t{8 * key}\n" for key in range(count)))
    began = time.process_time()
    assert_refused(r"train\.idx does not fit train\.rec", RecordSet, tmp_path)
    assert time.process_time() - began < 1
