"""Several record sets as one: classes and images behind one another, all equally likely."""

from __future__ import annotations

from itertools import islice

import cv2
import numpy as np
import pytest

from data.batches.face_loader import FaceLoader
from data.options import FaceDataOptions
from data.records.joined_set import JoinedSet
from data.records.record_set import RecordSet
from data.records.recordio import encode
from data.records.writer import RecordWriter
from runtime.errors import DataError
from tests.support.jpegs import bytes_of

SIZES = ([3, 4], [5, 1, 2])


def labels_of(joined: JoinedSet) -> np.ndarray:
    return np.concatenate([labels for _, labels in joined.label_table().chunks()])


@pytest.fixture
def members(tmp_path, make_image):
    """Two sets; the number in an image is its place in the union."""
    sets, number = [], 0
    for name, sizes in zip("ab", SIZES):
        with RecordWriter(tmp_path / name, image_size=(16, 16)) as writer:
            for label, count in enumerate(sizes):
                for _ in range(count):
                    writer.write(make_image(number), label)
                    number += 1
        sets.append(RecordSet(tmp_path / name))
    return sets


def test_classes_and_images_follow_one_another(members):
    joined = JoinedSet(members)
    assert (len(joined), joined.num_classes, joined.image_size) == (15, 5, (16, 16))
    expected = np.repeat(np.arange(5), [3, 4, 5, 1, 2])
    assert np.array_equal(labels_of(joined), expected)
    for index in range(15):
        payload, label = joined.image(index)
        assert label == expected[index]
        number, own = (0, index) if index < 7 else (1, index - 7)
        assert bytes(payload) == bytes(members[number].image(own)[0])
        assert joined.where(index) == members[number].where(own)


def test_many_at_once_are_numbered_behind_one_another(tmp_path):
    sets = []
    for name in "ab":
        with RecordWriter(tmp_path / name, image_size=(16, 16)) as writer:
            for label in range(2):
                pixels = np.full((16, 16, 3), 100 * label + ord(name), np.uint8)
                writer.write(cv2.imencode(".jpg", pixels)[1].tobytes(), label)
        sets.append(RecordSet(tmp_path / name))
    joined = JoinedSet(sets)
    order = [3, 0, 2, 1, 3]
    found = joined.jpegs(np.array(order, np.int64))
    assert found.labels.tolist() == order
    assert bytes_of(found) == [bytes(joined.image(i)[0]) for i in order]


def test_unreadable_labels_stay_unreadable(tmp_path, members):
    folder = tmp_path / "bad"
    folder.mkdir()
    records = [encode((0.0,), 0, b"x"), b"\0" * 16, encode((0.0,), 2, b"x")]
    offsets = np.cumsum([0, *map(len, records)])
    (folder / "train.rec").write_bytes(b"".join(records))
    (folder / "train.idx").write_text("".join(f"{i}\t{o}\n" for i, o in enumerate(offsets[:3])))
    (folder / "property").write_text("1,16,16")
    labels = labels_of(JoinedSet([members[0], RecordSet(folder)]))
    assert labels.tolist() == [0] * 3 + [1] * 4 + [2, -1, 2]


def test_an_epoch_holds_every_image_of_every_set_once(members):
    with FaceLoader(
        JoinedSet(members), FaceDataOptions(batch_size=5, threads=2), rank=0, world_size=1, seed=3
    ) as loader:
        assert (loader.updates_per_epoch, loader.num_classes) == (3, 5)
        batches = list(islice(loader.batches(), 3))
    numbers = np.concatenate([batch.images[:, 0, 0, 0] for batch in batches])
    assert sorted(numbers) == list(range(15))
    assert numbers.tolist() != list(range(15))


def test_min_images_counts_in_each_set(members):
    with FaceLoader(
        JoinedSet(members),
        FaceDataOptions(batch_size=4, threads=1, min_images=4),
        rank=0,
        world_size=1,
        seed=3,
    ) as loader:
        batches = list(islice(loader.batches(), 2))
        assert loader.num_classes == 2
    labels = np.concatenate([batch.labels for batch in batches])
    numbers = np.concatenate([batch.images[:, 0, 0, 0] for batch in batches])
    assert set(numbers) <= set(range(3, 12))
    assert np.array_equal(labels, numbers >= 7)


def test_sets_of_different_sizes_are_refused(tmp_path, members, make_image):
    with RecordWriter(tmp_path / "large", image_size=(32, 32)) as writer:
        writer.write(make_image(1), 0)
    with pytest.raises(DataError, match="16 x 16 pixels.*32 x 32; pack them anew"):
        JoinedSet([members[0], RecordSet(tmp_path / "large")])
