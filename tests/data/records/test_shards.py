from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest

from data.records.record_set import RecordSet
from data.records.recordio import encode
from data.records.shards import (
    JoinedSet,
    ShardedSet,
    allow_open_files,
    compared_files,
    open_sets,
    shard_path,
)
from runtime.errors import ConfigError
from tests.support.foreign_records import face2rec2, im2rec, write_records
from tests.support.sets import assert_refused, images_of, pack_set, write_files

# The class of each image in its shard, and in the set.
SHARDS = [[0, 0, 0, 1], [0, 0, 1, 1, 2, 2, 2, 2], [0] * 5]
LABELS = [0, 0, 0, 1, 2, 2, 3, 3, 4, 4, 4, 4, *[5] * 5]
NAMES = ["train-00000.rec", "train-00001.rec", "train-00002.rec"]


def labels_of(records) -> list[int]:
    return np.concatenate([labels for _, labels in records.label_table().chunks()]).tolist()


@pytest.fixture
def images(make_image):
    return [make_image(number) for number in range(17)]


@pytest.fixture
def folder(tmp_path, images) -> Path:
    """Three shards."""
    rest = iter(images)
    for number, labels in enumerate(SHARDS):
        pack_set(shard_path(tmp_path, number), [next(rest) for _ in labels], labels)
    (tmp_path / "property").write_text("6,16,16\n")
    return tmp_path


def test_images_and_classes_of_all_shards(folder, images) -> None:
    # The second time there are caches.
    for _ in range(2):
        whole = open_sets([folder])
        assert isinstance(whole, ShardedSet) and whole.path == folder
        assert (len(whole), whole.num_classes, whole.image_size) == (17, 6, (16, 16))
        assert len(whole.label_table()) == 17 and labels_of(whole) == LABELS
    assert images_of(whole) == list(zip(images, LABELS))
    assert whole.where(5) == f"{folder / 'train-00001.rec'}: record 2"
    assert [path.name for path in compared_files(folder)] == [*NAMES, "property"]


def test_shards_and_other_sets_are_joined(folder, tmp_path, write_set, caplog) -> None:
    other = write_set([2, 1], "other")
    assert isinstance(open_sets([other]), RecordSet)
    assert [path.name for path in compared_files(other)] == ["train.rec", "train.idx", "property"]
    joined = open_sets([other, folder, write_set([2, 1], "third")])
    assert (len(joined), joined.num_classes) == (3 + 17 + 3, 2 + 6 + 2)
    labels = [0, 0, 1, *(label + 2 for label in LABELS), 8, 8, 9]
    assert labels_of(joined) == [label for _, label in images_of(joined)] == labels
    alone = RecordSet(shard_path(folder, 2))
    assert (len(alone), alone.num_classes) == (5, 6)
    shutil.copy(shard_path(folder, 2), other / "train-00000.rec")
    assert isinstance(open_sets([other]), RecordSet)
    line = "has train.rec and 1 shards, of which train-00000.rec is the first: only train.rec"
    assert caplog.text.count(line) == 1
    (tmp_path / "link").symlink_to(folder)
    for same in (folder, tmp_path / "link"):
        with pytest.raises(ConfigError, match=f"--rec names {folder} twice, so that each of its"):
            open_sets([folder, same])


def write_shards(folder: Path, shards, num_classes: int) -> None:
    contents = [b"".join(content for _, content in records) for records in shards]
    write_files(folder, {"property": b"%d,16,16" % num_classes, **dict(zip(NAMES, contents))})


def test_classes_of_flat_shards_and_of_unsorted_lists(tmp_path, images, caplog) -> None:
    write_shards(tmp_path, [im2rec(own, images, range(3)) for own in ([4, 0], [1, 4, 2])], 5)
    whole = open_sets([tmp_path])
    assert (len(whole), whole.num_classes) == (5, 5)
    assert [label for _, label in images_of(whole)] == [4, 0, 1, 4, 2]
    assert "1 of the 5 classes in property have no image, the first is 3" in caplog.text
    assert "if a shard behind train-00001.rec is missing" in caplog.text
    # More than labels can name would take gigabytes before the first label is read.
    (tmp_path / "property").write_text(f"{2**24 + 1},16,16")
    assert_refused("16777217 classes, but shards without .* most 16777216", open_sets, [tmp_path])
    (tmp_path / "property").write_text(f"{2**24},16,16")
    assert open_sets([tmp_path]).num_classes == 2**24
    # Each shard has more identity records than classes.
    write_shards(tmp_path, [face2rec2(own, images) for own in ([0, 1, 0, 1], [2, 0, 1, 2, 1])], 5)
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
    (lambda folder: shard_path(folder, 2).unlink(), "6 classes, but the 2 shards hold 5"),
    (lambda folder: shutil.copy(shard_path(folder, 2), shard_path(folder, 3)),
     "6 classes, but the 4 shards hold 7 identities; a shard is missing or of another"),
    (lambda folder: (folder / "property").unlink(), "property is missing, by which 3 shards"),
    *((lambda folder, n=n: (folder / "property").write_text(f"{n},16,16"), message)
      for n, message in ((2**31 - 1, "7 classes, but the 3"), (2**31, "begins with '2147483648,"))),
    (replace_by_flat, "00000.rec has identity records and .*00001.rec has none"),
    (lambda folder: os.truncate(shard_path(folder, 1), 600), "1.rec: .* the file is truncated"),
])  # fmt: skip
def test_what_is_no_whole_set_is_told_in_one_line(folder, damage, message: str) -> None:
    damage(folder)
    assert_refused(message, open_sets, [folder])


def test_the_limit_of_open_files_is_raised_or_told(folder, monkeypatch) -> None:
    limits = [(100, 5000)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.append(new))
    assert isinstance(open_sets([folder]), ShardedSet)
    assert limits[1:] == [(3 * 3 + 256, 5000)]
    limits[:] = [(100, 200)]
    # A set of a single file has no shards.
    assert_refused(r": reading it needs 256 .* limit \(ulimit -Hn\)$", allow_open_files, 0, folder)
    assert_refused("3 shards need 265 open files, .* may open 200; raise", open_sets, [folder])


def test_joined_sets_have_one_size_and_unreadable_labels_stay(tmp_path, write_set, images) -> None:
    written = im2rec([0, 0, 0], [b"x"] * 3, range(3))
    written[1] = 1, bytes(len(written[1][1]))
    bad = RecordSet(write_records(tmp_path / "bad", written, description="1,16,16"))
    joined = JoinedSet([RecordSet(write_set([3, 4])), bad])
    assert labels_of(joined) == [0] * 3 + [1] * 4 + [2, -1, 2]
    large = RecordSet(pack_set(tmp_path / "large", images, [0], (32, 32)))
    assert_refused("16 x 16 pixels.*32 x 32; pack them anew", JoinedSet, [bad, large])
