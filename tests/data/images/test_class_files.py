from __future__ import annotations

import math
import os
from pathlib import Path

import cv2
import numpy as np
import pytest

from data.images import class_files
from data.images.class_files import FileImages
from data.records.recordio import BrokenRecordError
from runtime.errors import DataError
from tests.support.foreign_records import im2rec, index_of
from tests.support.oriented_images import assert_seen, file_with
from tests.support.sets import assert_refused, overwrite, write_files

PNG: bytes = cv2.imencode(".png", np.zeros((4, 4, 3), np.uint8))[1].tobytes()


def write(folder: Path, *names: str, content: bytes = PNG) -> None:
    write_files(folder, dict.fromkeys(names, content))


def opened(folder: Path, *more: str) -> tuple[FileImages, FileImages]:
    """Open three classes of two images in both parts, and what a test adds."""
    images = [f"{name}/{number}.png" for name in "abc" for number in "12"]
    write(folder, *(f"{part}/{image}" for part in ("train", "val") for image in images), *more)
    return class_files.open_folders(folder / "train", folder / "val")


def labels_of(images: FileImages) -> list[int]:
    return [images.decoded(index)[1] for index in range(len(images))]


def test_what_is_no_class_or_no_image_is_left_out_and_named(tmp_path, monkeypatch) -> None:
    """Images deeper in the folder of a class belong to it; test_identities has more."""
    (tmp_path / "train/ab").mkdir(parents=True)
    more = ("train/.ipynb_checkpoints/1.png", "train/a/inner/deep/7.png")
    training, validation = opened(tmp_path, *more)
    assert training.num_classes == validation.num_classes == 3
    assert labels_of(training) == [0] * 3 + [1, 1, 2, 2]
    assert labels_of(validation) == [0, 0, 1, 1, 2, 2]
    assert len(training.left_out) == 3 and not validation.left_out
    assert training.left_out[1].endswith("left out 1 folders without images, the first is ab")
    scan = os.scandir

    def refuse(folder):
        if str(folder).endswith("train/a/inner"):
            raise PermissionError(13, "Permission denied", str(folder))
        return scan(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    assert_refused("train/a/inner cannot be listed: Permission denied", opened, tmp_path)


def test_images_of_every_format_are_upright(tmp_path) -> None:
    """test_headers has all orientations."""
    image = cv2.imencode(".ppm", np.full((10, 92, 3), (0, 0, 80), np.uint8))[1].tobytes()
    write(tmp_path, "ant/1.ppm", content=image)
    write(tmp_path, "bee/1.webp", content=file_with(".webp", 6))
    images, _ = class_files.open_folders(tmp_path, tmp_path)
    assert (images.decoded(0)[0] == (80, 0, 0)).all() and labels_of(images) == [0, 1]
    assert_seen(images.decoded(1)[0])
    with pytest.raises(DataError, match="none does not exist; --data-dir needs the folders train"):
        class_files.open_folders(tmp_path, tmp_path / "none")


def test_a_class_that_one_part_lacks(tmp_path) -> None:
    """Without validation images it moves no label and is named; without others it is an error."""
    _, validation = opened(tmp_path / "few", "train/aa/1.png", "train/d/1.png", "val/d/1.png")
    assert labels_of(validation) == [0, 0, 2, 2, 3, 3, 4] and validation.num_classes == 5
    line = f"{tmp_path}/few/val: no images of 1 of the 5 classes that are trained (aa)"
    assert validation.left_out == [line]
    # There may be an empty folder.
    for _ in range(2):
        assert_refused("val/d is a class without training images", opened, tmp_path, "val/d/1.png")
        (tmp_path / "train/d").mkdir(exist_ok=True)
    with pytest.raises(DataError, match="none of its 0 folders holds 1 images"):
        class_files.open_folders(tmp_path / "train/d", tmp_path)


def test_sets_without_a_single_readable_image(tmp_path) -> None:
    write(tmp_path, "train/a/1.png", "train/b/1.png")
    write(tmp_path, "val/a/1.png", "val/b/1.png", content=b"no image")
    with pytest.raises(DataError, match=r"val/b/1\.png: .*none of the 2 images can be read"):
        class_files.open_folders(tmp_path / "train", tmp_path / "val")
    training = write_records(tmp_path / "a.rec", [0, 1])
    validation = write_records(tmp_path / "b.rec", [0, 1], {0: b"no image", 1: b""})
    message = r"b\.rec: record 1: .*none of its 2 images"
    assert_refused(message, class_files.open_records, training, validation)


def write_records(path: Path, labels, payloads=None, property_of: int = 0) -> Path:
    keys = range(len(labels))
    written = im2rec(labels, [(payloads or {}).get(key, PNG) for key in keys], keys)
    write(path.parent, path.name, content=b"".join(content for _, content in written))
    path.with_suffix(".idx").write_text(index_of(written))
    if property_of:
        path.with_name("property").write_text(f"{property_of},4,4")
    return path


# The remedy names a property only where there is one.
@pytest.mark.parametrize(("label", "part", "property_of", "message"), [
    (-1, "train", 0, "has label -1, but classes are numbered"),
    (0.5, "val", 0, "has label 0.5, but classes are numbered"),
    (math.nan, "val", 3, "has label nan, but the classes are 0 to 2; correct .*/property"),
    (3e9, "train", 3, "has label 3000000000, but the classes are 0 to 2; correct .*/property"),
    (3, "val", 3, "has label 3, but the classes are 0 to 2; correct .*/property"),
    (3, "val", 0, "has 4 classes, .* only 3"),
])  # fmt: skip
def test_wrong_labels_are_refused_at_once(tmp_path, part, property_of, label, message) -> None:
    for name in ("train", "val"):
        labels = [0, 1, 2, 1, 2, label if name == part else 0]
        write_records(tmp_path / name / "train.rec", labels, property_of=property_of)
    record = "" if "4 classes" in message else ": record 5"
    paths = tmp_path / "train/train.rec", tmp_path / "val/train.rec"
    assert_refused(f"{part}/train.rec{record} {message}", class_files.open_records, *paths)


def test_broken_records_are_left_to_the_loader_and_classes_without_images_named(tmp_path) -> None:
    payloads = {0: b"no image", 2: b"", 3: PNG[:40]}
    paths = tmp_path / "train.rec", tmp_path / "val/train.rec"
    for path in paths:
        write_records(path, [0, 1, 2, 1, 2, 0], payloads)
    overwrite(tmp_path / "val", 4, b"XXXX")
    training, validation = class_files.open_records(*paths)
    assert len(training) == len(validation) == 6 and training.num_classes == 3
    assert validation.decoded(1)[1] == 1 and not training.left_out
    for index, reason in ((0, "no JPEG"), (2, "no image in it"), (3, "damaged"), (4, "magic")):
        message = rf"train\.rec: record {index}: .*{reason}"
        assert_refused(message, validation.decoded, index, kind=BrokenRecordError)
    # Labels that are numbered from 1, and a class that validation lacks, too.
    for path, labels in zip(paths, ([1, 2, 3, 1], [1, 3])):
        write_records(path, labels)
    assert [images.left_out for images in class_files.open_records(*paths)] == [
        [f"{paths[0]}: no images of 1 of the 4 classes that are trained (0)"],
        [f"{paths[1]}: no images of 2 of the 4 classes that are trained (0, …)"],
    ]
    with pytest.raises(DataError, match=r"none\.rec does not exist; .*im2rec"):
        class_files.open_records(paths[0], tmp_path / "none.rec")
