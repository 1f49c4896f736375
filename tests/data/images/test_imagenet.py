"""Where the files have to be; test_class_files shows what is read of them."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from data.images import imagenet
from data.records.writer import RecordWriter
from runtime.errors import DataError
from tests.support.oriented_images import assert_seen, file_with


def test_folders_hold_images_of_every_format_upright(tmp_path: Path) -> None:
    image = np.full((10, 92, 3), (0, 0, 80), np.uint8)
    files = {
        f"ant/{suffix[1:]}{suffix}": cv2.imencode(suffix, image)[1].tobytes()
        for suffix in (".bmp", ".ppm", ".tif", ".webp")
    }
    turned = {
        f"bee/{n}{suffix}": file_with(suffix, n) for n in (1, 6) for suffix in (".jpg", ".webp")
    }
    for part in ("train", "val"):
        for name, content in {**files, **turned}.items():
            (tmp_path / part / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / part / name).write_bytes(content)
    for images in imagenet.read_folders(tmp_path):
        decoded = [images.decoded(index) for index in range(8)]
        assert [label for _, label in decoded] == [0] * 4 + [1] * 4 and images.num_classes == 2
        assert all(one.shape == (10, 92, 3) and one[0, 0, 0] >= 75 for one, _ in decoded[:4])
        for one, _ in decoded[4:]:
            assert_seen(one)
    with pytest.raises(DataError, match=r"train does not exist.*www\.image-net\.org"):
        imagenet.read_folders(tmp_path / "none")


def test_record_files(tmp_path: Path) -> None:
    paths = tmp_path / "a" / "train.rec", tmp_path / "b" / "val.rec"
    for path, classes in zip(paths, (4, 3)):
        with RecordWriter(path, image_size=(10, 12)) as writer:
            for label in range(classes):
                image = np.full((10, 12 + label, 3), (0, 0, label), np.uint8)
                writer.write(cv2.imencode(".png", image)[1].tobytes(), label)
        path.with_name("property").unlink()
    training, validation = imagenet.read_records(*paths)
    assert (len(training), len(validation), training.num_classes) == (4, 3, 4)
    image, label = training.decoded(2)
    assert label == 2 and image.shape == (10, 14, 3) and image[0, 0].tolist() == [2, 0, 0]
    with pytest.raises(DataError, match=r"train\.rec has 4 classes, .*val\.rec only 3"):
        imagenet.read_records(*reversed(paths))
    with pytest.raises(DataError, match=r"--rec-val .*im2rec.*www\.image-net\.org"):
        imagenet.read_records(paths[0], tmp_path / "none.rec")
