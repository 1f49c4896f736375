from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from data.inspect.survey import survey_pairs, survey_records
from data.records.record_set import RecordSet
from data.records.writer import RecordWriter
from data.verification.bin_file import read_bin, write_bin


@pytest.fixture
def faulty(tmp_path: Path, make_image) -> RecordSet:
    """Records 1 … 8 of identities 0, 0, 1, 1, 1, 2, 2, 3; some bad, some repeated."""
    images = [make_image(0), b"junk", make_image(2), make_image(3, (16, 20)), make_image(2),
              make_image(0), make_image(5), make_image(6)]  # fmt: skip
    with RecordWriter(tmp_path / "faces", image_size=(16, 16)) as writer:
        for image, label in zip(images, (0, 0, 1, 1, 1, 2, 2, 3)):
            writer.write(image, label)
    path = tmp_path / "faces" / "train.rec"
    content = bytearray(path.read_bytes())
    offsets = np.loadtxt(path.with_suffix(".idx"), np.int64)[:, 1]
    # The frame's magic number of record 7, and the label of record 8.
    content[offsets[7]] ^= 1
    content[offsets[8] + 12 : offsets[8] + 16] = np.float32(7).tobytes()
    path.write_bytes(content)
    return RecordSet(path)


@pytest.mark.parametrize("workers", [1, 3])
def test_every_fault_is_found(faulty: RecordSet, workers: int) -> None:
    survey = survey_records(faulty, workers)
    assert survey.labels.tolist() == [0, 0, 1, 1, 1, 2, -1, -1]
    assert survey.sizes == Counter({(16, 16): 4, (16, 20): 1})
    assert [line.split(":")[0].split(" has ")[0] for line in survey.bad] == [
        "record 2", "record 4", "record 7", "record 8",
    ]  # fmt: skip
    for line, reason in zip(survey.bad, ("cannot be decoded", "16 x 20 pixels, which is another",
                                         "wrong magic number", "label 7")):  # fmt: skip
        assert reason in line and str(faulty.path) + ":" not in line
    assert survey.repeated.tolist() == [[4, 2], [5, 0]]


def test_verification_sets_may_repeat_images(tmp_path: Path, make_image) -> None:
    images = [make_image(0), make_image(1), make_image(0), b"junk", make_image(3, (8, 8)), b"junk"]
    write_bin(tmp_path / "set.bin", images, [True, False, True])
    survey = survey_pairs(read_bin(tmp_path / "set.bin"), 2)
    assert survey.sizes == Counter({(16, 16): 3, (8, 8): 1})
    assert survey.bad == [
        f"image {number}: the image cannot be decoded: it is no JPEG, PNG, BMP or WebP"
        for number in (3, 5)
    ]
    assert survey.bytes == sum(map(len, images))
