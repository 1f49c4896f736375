"""Which folders and files of a folder of classes are used, and what is said of the others."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest

from data.images import class_files
from data.images.image_set import DecodedImages
from data.records.recordio import BrokenRecordError, encode
from runtime.errors import DataError

PNG: bytes = cv2.imencode(".png", np.zeros((4, 4, 3), np.uint8))[1].tobytes()


def write(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir(exist_ok=True)
        else:
            path.write_bytes(PNG)


def opened(
    folder: Path, more: Sequence[str] = (), val: Sequence[str] = ()
) -> tuple[DecodedImages, DecodedImages]:
    """Open three classes of two images in both parts, and what a test adds."""
    images = [f"{name}/{number}.png" for name in "abc" for number in "12"]
    write(folder / "train", [*images, *more])
    write(folder / "val", [*images, *val])
    return class_files.open_folders(folder / "train", folder / "val")


def labels(images: DecodedImages) -> list[int]:
    return [images.decoded(index)[1] for index in range(len(images))]


def test_what_is_no_class_or_no_image_is_left_out_and_named(tmp_path: Path) -> None:
    more = (
        *(".ipynb_checkpoints/1.png", "lost+found/", "a/@eaDir/1.png", "aa/readme.txt", "ab/"),
        *("0.png", "a/Thumbs.db", "a/._1.png", "a/inner/deep/7.png", "a/inner/8", "a/inner/.7.png"),
    )
    training, validation = opened(tmp_path / "one", more)
    assert training.num_classes == validation.num_classes == 3
    assert labels(training) == labels(validation) == [0, 0, 1, 1, 2, 2]
    lines = [
        "files beside the class folders: 1 (0.png)",
        "files that are hidden or no images: 3 (a/._1.png, …)",
        "folders that programs make for themselves: 3 (.ipynb_checkpoints, …)",
        "folders without images: 2 (aa, …)",
        "hidden files: 1 (a/inner/.7.png)",
        "images in folders within a class: 2 (a/inner/8, …)",
    ]
    assert sorted(training.left_out) == [f"{tmp_path}/one/train: left out {one}" for one in lines]
    assert not validation.left_out
    _, validation = opened(tmp_path / "both", more, more)
    assert sorted(validation.left_out) == [f"{tmp_path}/both/val: left out {one}" for one in lines]


def test_links_are_followed_once_and_pipes_are_no_images(tmp_path: Path) -> None:
    """Reading a pipe may never end."""
    write(tmp_path, ["elsewhere/1.png", "elsewhere/2.png", "2.png", "d/1.png", "train/a/"])
    (tmp_path / "elsewhere" / "3.heic").touch()
    (tmp_path / "d" / "2.png").symlink_to(tmp_path / "2.png")
    train = tmp_path / "train"
    for link, target in (("a/link", "elsewhere"), ("a/loop", "train"), ("d", "d"), ("e", "d")):
        (train / link).symlink_to(tmp_path / target)
    os.mkfifo(train / "a" / "3.png")
    (train / "a" / "4.png").symlink_to("3.png")
    training, validation = opened(tmp_path, [".b/1.png", ".a/1.png", "x/", "y/", "z/"])
    assert labels(training) == [0, 0, 1, 1, 2, 2, 3, 3] and validation.num_classes == 4
    assert sorted(training.left_out) == [
        f"{train}: left out {line}"
        for line in (
            "files that are hidden or no images: 2 (a/3.png, …)",
            "folders that programs make for themselves: 2 (.a, …)",
            "folders to which several links lead: 2 (a/loop, …)",
            "folders without images: 3 (x, …)",
            "images in folders within a class: 2 (a/link/1.png, …)",
            "images of formats that are not decoded, such as HEIC and GIF (convert them): 1 "
            "(a/link/3.heic)",
        )
    ]


@pytest.mark.parametrize("refused", ["train", "train/a/inner"])
def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch, refused) -> None:
    write(tmp_path, ["train/a/inner/"])
    scan = os.scandir

    def refuse(folder):
        if str(folder).rstrip("/").endswith(refused):
            raise PermissionError(13, "Permission denied", str(folder))
        return scan(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=f"{refused}/? cannot be listed: Permission denied"):
        opened(tmp_path)


def test_a_class_that_one_part_lacks(tmp_path: Path) -> None:
    """Without validation images it moves no label and is named; without others it is an error."""
    _, validation = opened(tmp_path / "few", ["aa/1.png", "d/1.png"], ["d/1.png"])
    assert labels(validation) == [0, 0, 2, 2, 3, 3, 4] and validation.num_classes == 5
    line = f"{tmp_path}/few/val: no images of 1 of the 5 classes that are trained (aa)"
    assert validation.left_out == [line]
    for number, (train, val) in enumerate((([], ["d/1.png"]), (["d/"], ["d/1.png"]), ([], ["d/"]))):
        with pytest.raises(DataError, match="val/d is a class without training images"):
            opened(tmp_path / str(number), train, val)
    write(tmp_path, ["none/train/", "none/val/"])
    with pytest.raises(DataError, match="holds no folders with images .*one folder per class"):
        class_files.open_folders(tmp_path / "none/train", tmp_path / "none/val")


def test_sets_without_a_single_readable_image(tmp_path: Path) -> None:
    write(tmp_path, [f"{part}/{name}/1.png" for part in ("train", "val") for name in "ab"])
    for name in "ab":
        (tmp_path / "val" / name / "1.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"val/b/1\.png: .*none of the 2 images can be read"):
        class_files.open_folders(tmp_path / "train", tmp_path / "val")
    records = write_records(tmp_path / "a.rec", [0, 1]), tmp_path / "b.rec"
    write_records(records[1], [0, 1], {0: b"no image", 1: b""})
    with pytest.raises(DataError, match=r"b\.rec: record 1: .*none of its 2 images") as caught:
        class_files.open_records(*records)
    assert "\n" not in str(caught.value)


def write_records(
    path: Path, labels: Sequence[float], payloads: Mapping[int, bytes] = {}, property_of: int = 0
) -> Path:
    index, size = [], 0
    with path.open("wb") as file:
        for key, label in enumerate(labels):
            index.append(f"{key}\t{size}\n")
            size += file.write(encode((float(label),), key, payloads.get(key, PNG)))
    path.with_suffix(".idx").write_text("".join(index))
    if property_of:
        path.with_name("property").write_text(f"{property_of},4,4")
    return path


@pytest.mark.parametrize(
    ("label", "part", "property_of"),
    [
        (-1, "train", 0), (0.5, "val", 0), (math.nan, "val", 3), (math.inf, "train", 0),
        (3e9, "train", 3), (3, "train", 3), (3, "val", 3), (3, "val", 0),
    ],
)  # fmt: skip
def test_a_wrong_label_is_refused_before_the_first_update(
    tmp_path: Path, part: str, property_of: int, label: float
) -> None:
    for name in ("train", "val"):
        (tmp_path / name).mkdir()
        labels = [0, 1, 2, 1, 2, label if name == part else 0]
        write_records(tmp_path / name / "set.rec", labels, property_of=property_of)
    # The remedy names a property only where there is one.
    known = "the classes are 0 to 2; correct .*/property" if property_of else "classes are numbered"
    right = f"{part}/set.rec: record 5 has label {label:.10g}, but {known}"
    if label == 3 and not property_of:
        right = "val/set.rec has 4 classes, .* only 3"
    with pytest.raises(DataError, match=right) as caught:
        class_files.open_records(tmp_path / "train/set.rec", tmp_path / "val/set.rec")
    assert "\n" not in str(caught.value)


def test_classes_of_records_without_images_are_named(tmp_path: Path) -> None:
    """Labels that are numbered from 1, and a class that validation lacks, too."""
    training = write_records(tmp_path / "train.rec", [1, 2, 3, 1])
    validation = write_records(tmp_path / "val.rec", [1, 3])
    sets = class_files.open_records(training, validation)
    assert [images.left_out for images in sets] == [
        [f"{tmp_path}/train.rec: no images of 1 of the 4 classes that are trained (0)"],
        [f"{tmp_path}/val.rec: no images of 2 of the 4 classes that are trained (0, …)"],
    ]
    write_records(tmp_path / "train.rec", [0, 1, 2, 3])
    assert not class_files.open_records(training, training)[0].left_out


def test_broken_records_are_left_to_the_loader(tmp_path: Path) -> None:
    payloads = {0: b"no image", 2: b"", 3: PNG[:40]}
    for name in ("train", "val"):
        write_records(tmp_path / f"{name}.rec", [0, 1, 2, 1, 2, 0], payloads)
    with (tmp_path / "val.rec").open("r+b") as file:
        file.seek(int((tmp_path / "val.idx").read_text().split()[9]))
        file.write(b"XXXX")
    training, validation = class_files.open_records(tmp_path / "train.rec", tmp_path / "val.rec")
    assert len(training) == len(validation) == 6 and training.num_classes == 3
    assert validation.decoded(1)[1] == 1
    for index, reason in ((0, "no JPEG"), (2, "no image in it"), (3, "damaged"), (4, "magic")):
        with pytest.raises(BrokenRecordError, match=rf"val\.rec: record {index}: .*{reason}"):
            validation.decoded(index)
