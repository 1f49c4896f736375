"""Several record sets as one: classes and images behind one another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from data.records.joined_set import JoinedSet
from data.records.record_set import RecordSet
from data.records.writer import RecordWriter
from runtime.errors import DataError
from tests.support.foreign_records import im2rec, index_of
from tests.support.jpegs import as_jpeg, bytes_of


def labels_of(joined: JoinedSet) -> list[int]:
    return np.concatenate([labels for _, labels in joined.label_table().chunks()]).tolist()


def test_classes_and_images_follow_one_another(tmp_path: Path) -> None:
    """The brightness of an image is 10 times its place in the union."""
    members, images = [], [as_jpeg(np.full((16, 16, 3), 10 * n, np.uint8)) for n in range(15)]
    expected = np.repeat(np.arange(5), [3, 4, 5, 1, 2]).tolist()
    for name, part, first in (("a", slice(0, 7), 0), ("b", slice(7, 15), 2)):
        with RecordWriter(tmp_path / name, image_size=(16, 16)) as writer:
            for image, label in zip(images[part], expected[part]):
                writer.write(image, label - first)
        members.append(RecordSet(tmp_path / name))
    joined = JoinedSet(members)
    assert (len(joined), joined.num_classes, joined.image_size) == (15, 5, (16, 16))
    assert labels_of(joined) == expected
    for index in range(15):
        payload, label = joined.image(index)
        assert (bytes(payload), label) == (images[index], expected[index])
        number, own = divmod(index, 7) if index < 7 else (1, index - 7)
        assert joined.where(index) == members[number].where(own)
    order = [13, 0, 8, 6, 7, 13]
    found = joined.jpegs(np.array(order, np.int64))
    assert found.labels.tolist() == [expected[index] for index in order]
    assert bytes_of(found) == [images[index] for index in order]


def test_unreadable_labels_stay_unreadable(tmp_path: Path, write_set) -> None:
    folder = tmp_path / "bad"
    folder.mkdir()
    written = im2rec([0, 0, 0], [b"x"] * 3, range(3))
    written[1] = 1, bytes(len(written[1][1]))
    (folder / "train.rec").write_bytes(b"".join(content for _, content in written))
    (folder / "train.idx").write_text(index_of(written))
    (folder / "property").write_text("1,16,16")
    joined = JoinedSet([RecordSet(write_set([3, 4])), RecordSet(folder)])
    assert labels_of(joined) == [0] * 3 + [1] * 4 + [2, -1, 2]


def test_sets_of_different_sizes_are_refused(tmp_path: Path, write_set, make_image) -> None:
    with RecordWriter(tmp_path / "large", image_size=(32, 32)) as writer:
        writer.write(make_image(1), 0)
    with pytest.raises(DataError, match="16 x 16 pixels.*32 x 32; pack them anew"):
        JoinedSet([RecordSet(write_set([1])), RecordSet(tmp_path / "large")])
