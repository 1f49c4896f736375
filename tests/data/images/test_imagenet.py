from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from data.images import imagenet
from data.records.writer import RecordWriter
from runtime.errors import DataError
from tests.support.oriented_images import assert_seen, file_with


def encoded(number: int, ending: str = ".png") -> bytes:
    image = np.full((10, 12 + number, 3), (0, 0, number), np.uint8)
    return cv2.imencode(ending, image)[1].tobytes()


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    for part, names in (("train", ("ant", "bee", "cow")), ("val", ("ant", "cow"))):
        for name in names:
            (tmp_path / part / name).mkdir(parents=True)
            (tmp_path / part / name / "1.png").write_bytes(encoded(len(name) + ord(name[0])))
            (tmp_path / part / name / "notes.txt").write_text("no image")
    return tmp_path


def test_folders_are_classes_in_the_order_of_their_names(folders: Path) -> None:
    training, validation = imagenet.read_folders(folders)
    assert len(training) == 3 and training.num_classes == validation.num_classes == 3
    assert [training.decoded(i)[1] for i in range(3)] == [0, 1, 2]
    # A class without validation images moves no label.
    assert [validation.decoded(i)[1] for i in range(2)] == [0, 2]
    assert training.decoded(1)[0][0, 0].tolist() == [3 + ord("b"), 0, 0]


@pytest.mark.parametrize("suffix", [".bmp", ".tif", ".ppm", ".webp"])
def test_images_of_every_format_that_opencv_decodes(folders: Path, suffix: str) -> None:
    (folders / "train" / "ant" / "1.png").unlink()
    (folders / "train" / "ant" / f"1{suffix}").write_bytes(encoded(80, suffix))
    training, _ = imagenet.read_folders(folders)
    assert training.decoded(0)[0].shape == (10, 92, 3)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_upright(folders: Path, orientation: int) -> None:
    for suffix in (".jpg", ".webp"):
        path = folders / "train" / "ant" / f"0{suffix}"
        path.write_bytes(file_with(suffix, orientation))
    training, _ = imagenet.read_folders(folders)
    for index in range(2):
        assert_seen(training.decoded(index)[0])


def write_records(path: Path, classes: int) -> Path:
    with RecordWriter(path, image_size=(10, 12)) as writer:
        for label in range(classes):
            writer.write(encoded(label), label)
    path.with_name("property").unlink()
    return path


def test_mistakes_are_named(folders: Path, tmp_path: Path) -> None:
    (folders / "val" / "cow" / "1.png").write_bytes(b"no image")
    _, validation = imagenet.read_folders(folders)
    with pytest.raises(DataError, match=r"cow/1\.png.*cannot be decoded"):
        validation.decoded(1)
    (folders / "val" / "dog").mkdir()
    with pytest.raises(DataError, match="dog is a class without training images"):
        imagenet.read_folders(folders)
    with pytest.raises(DataError, match=r"train does not exist.*www\.image-net\.org"):
        imagenet.read_folders(tmp_path / "none")
    for part in ("train", "val"):
        (tmp_path / "none" / part).mkdir(parents=True)
    with pytest.raises(DataError, match="one folder per class"):
        imagenet.read_folders(tmp_path / "none")


def test_record_files(tmp_path: Path) -> None:
    paths = [write_records(tmp_path / part / f"{part}.rec", 4) for part in ("train", "val")]
    training, validation = imagenet.read_records(*paths)
    assert len(training) == len(validation) == training.num_classes == 4
    image, label = training.decoded(2)
    assert label == 2 and image.shape == (10, 14, 3) and image[0, 0].tolist() == [2, 0, 0]
    few = write_records(tmp_path / "few" / "train.rec", 3)
    with pytest.raises(DataError, match=r"val\.rec has 4 classes, .*train\.rec only 3"):
        imagenet.read_records(few, paths[1])
    with pytest.raises(DataError, match=r"--rec-val .*im2rec.*www\.image-net\.org"):
        imagenet.read_records(few, tmp_path / "none.rec")
