from __future__ import annotations

import gzip
import math
import os
import pickle
import shutil
import struct
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import cv2
import numpy as np
import pytest

from data.image_interface import ImageSet
from data.images import cifar, mnist
from data.images.cifar import CIFAR10, CIFAR100
from data.images.image_set import open_folders, open_records
from data.records.recordio import BrokenRecordError
from runtime.errors import DataError
from tests.support.foreign_records import im2rec, index_of
from tests.support.sets import assert_refused, overwrite, write_files

PNG: bytes = cv2.imencode(".png", np.zeros((4, 4, 3), np.uint8))[1].tobytes()
COUNT = 20
SMALL = {"training": COUNT, "validation": COUNT}
TEN, HUNDRED = (replace(one, images_per_file=SMALL) for one in (CIFAR10, CIFAR100))
PIXELS = np.zeros((COUNT, 3072), np.uint8)
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte.gz"
DIGITS = np.random.default_rng(1).integers(0, 256, (20, 28, 28), np.uint8)


def write(folder: Path, *names: str, content: bytes = PNG) -> None:
    write_files(folder, dict.fromkeys(names, content))


def opened(folder: Path, *more: str) -> tuple[ImageSet, ImageSet]:
    images = [f"{name}/{number}.png" for name in "abc" for number in "12"]
    write(folder, *(f"{part}/{image}" for part in ("train", "val") for image in images), *more)
    return open_folders(folder / "train", folder / "val")


def labels_of(images: ImageSet) -> list[int]:
    return [images.decoded(number)[1] for number in range(len(images))]


def test_what_is_no_class_or_no_image_is_left_out_and_named(tmp_path, monkeypatch) -> None:
    """Images deeper in the folder of a class belong to it; test_named_images has more."""
    (tmp_path / "train/ab").mkdir(parents=True)
    more = ("train/.ipynb_checkpoints/1.png", "train/a/inner/deep/7.png")
    training, validation = opened(tmp_path, *more)
    assert training.num_classes == validation.num_classes == 3
    for images, labels in ((training, [0] * 3 + [1, 1, 2, 2]), (validation, [0, 0, 1, 1, 2, 2])):
        assert labels_of(images) == labels
    assert len(training.left_out) == 2 and not validation.left_out
    assert training.left_out[1].endswith("left out 1 folders without images, the first is ab")
    refused = PermissionError(13, "Permission denied", "train/a")
    monkeypatch.setattr("os.scandir", Mock(side_effect=refused))
    assert_refused("train/a cannot be listed: Permission denied", opened, tmp_path)


def test_a_class_that_one_part_lacks(tmp_path) -> None:
    """Without validation images it moves no label; without others it is an error."""
    _, validation = opened(tmp_path / "few", "train/aa/1.png", "train/d/1.png", "val/d/1.png")
    assert labels_of(validation) == [0, 0, 2, 2, 3, 3, 4] and validation.num_classes == 5
    for _ in range(2):
        assert_refused("val/d is a class without training images", opened, tmp_path, "val/d/1.png")
        (tmp_path / "train/d").mkdir(exist_ok=True)
    empty = tmp_path / "train/d"
    assert_refused("none of its 0 folders holds 1 images", open_folders, empty, tmp_path)


def write_records(path: Path, labels, payloads=None, property_of: int = 0) -> Path:
    keys = range(len(labels))
    written = im2rec(labels, [(payloads or {}).get(key, PNG) for key in keys], keys)
    write(path.parent, path.name, content=b"".join(content for _, content in written))
    path.with_suffix(".idx").write_text(index_of(written))
    if property_of:
        path.with_name("property").write_text(f"{property_of},4,4")
    return path


@pytest.mark.parametrize(("label", "part", "property_of", "message"), [
    (-1, "train", 0, "has label -1, but the classes are 0 to 16777215; "),
    (0.5, "val", 0, "has label 0.5, but the classes are 0 to 16777215; "),
    (math.nan, "val", 3, "has label nan, but the classes are 0 to 2; correct .*/property or"),
    (3e9, "train", 3, "has label 3000000000, but the classes are 0 to 2; correct .*/property or"),
    (3, "val", 3, "has label 3, but the classes are 0 to 2; correct .*/property or"),
    (3, "val", 0, "has 4 classes, .* only 3"),
])  # fmt: skip
def test_wrong_labels_are_refused_at_once(tmp_path, part, property_of, label, message) -> None:
    for name in ("train", "val"):
        labels = [0, 1, 2, 1, 2, label if name == part else 0]
        write_records(tmp_path / name / "train.rec", labels, property_of=property_of)
    record = "" if "4 classes" in message else ": record 5"
    paths = tmp_path / "train/train.rec", tmp_path / "val/train.rec"
    assert_refused(f"{part}/train.rec{record} {message}", open_records, *paths)


def test_broken_records_are_left_to_the_loader(tmp_path) -> None:
    payloads = {0: b"no image", 2: b"", 3: PNG[:40]}
    paths = tmp_path / "train.rec", tmp_path / "val/train.rec"
    for path in paths:
        write_records(path, [0, 1, 2, 1, 2, 0], payloads)
    overwrite(tmp_path / "val", 4, b"XXXX")
    training, validation = open_records(*paths)
    assert len(training) == len(validation) == 6 and training.num_classes == 3
    assert validation.decoded(1)[1] == 1
    for index, reason in ((0, "no JPEG"), (2, "no image in it"), (3, "damaged"), (4, "magic")):
        message = rf"train\.rec: record {index}: .*{reason}"
        assert_refused(message, validation.decoded, index, kind=BrokenRecordError)
    message = r"none\.rec cannot be read .No such file"
    assert_refused(message, open_records, paths[0], tmp_path / "none.rec")


def content(number: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    return rng.integers(0, classes, COUNT), rng.integers(0, 256, (COUNT, 3072), np.uint8)


def write_version(kind, folder: Path, protocol=None, keys=str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    coarse, _ = content(99, 20)
    for number, name in enumerate([*kind.files["training"], *kind.files["validation"]]):
        labels, pixels = content(number, kind.num_classes)
        if protocol is None:
            both = np.stack([coarse, labels], axis=1)[:, -kind.label_bytes :].astype(np.uint8)
            (folder / f"{name}.bin").write_bytes(np.hstack([both, pixels]).tobytes())
        else:
            batch = {"coarse_labels": coarse.tolist(), kind.labels: labels.tolist(), "data": pixels}
            named = {keys(key): value for key, value in batch.items()}
            (folder / name).write_bytes(pickle.dumps(named, protocol))


@pytest.mark.parametrize(("kind", "folder", "protocol", "keys"), [
    (TEN, ".", 2, str.encode), (TEN, "cifar-10-batches-py", 5, str),
    (TEN, "cifar-10-batches-bin", None, str),
    (HUNDRED, ".", 2, str), (HUNDRED, "cifar-100-binary", None, str),
])  # fmt: skip
def test_both_versions_where_they_are_published(tmp_path, kind, folder, protocol, keys) -> None:
    """The hundred classes are the fine ones."""
    assert CIFAR10.images_per_file == {"training": 10_000, "validation": 10_000}
    assert CIFAR100.images_per_file == {"training": 50_000, "validation": 10_000}
    first = kind.files["training"][0]
    with pytest.raises(DataError, match=rf"{first} does.*files of {kind.name}.*cs\.toronto\.edu"):
        cifar.open_set(kind, tmp_path)
    write_version(kind, tmp_path / folder, protocol, keys)
    training = len(kind.files["training"])
    parts = range(training), range(training, training + 1)
    *sets, found = cifar.open_set(kind, tmp_path)
    for dataset, files in zip(sets, parts):
        labels, pixels = zip(*(content(number, kind.num_classes) for number in files))
        decoded = [dataset.decoded(index) for index in range(len(dataset))]
        assert dataset.num_classes == kind.num_classes
        assert [label for _, label in decoded] == np.concatenate(labels).tolist()
        planes = np.stack([image for image, _ in decoded]).transpose(0, 3, 1, 2)
        np.testing.assert_array_equal(planes.reshape(-1, 3072), np.concatenate(pixels))
    written = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert len(written) == training + 1 and written == {*found}


@pytest.mark.parametrize(("change", "message"), [
    (Path.unlink, r"does not exist"),
    (lambda path: os.truncate(path, path.stat().st_size - 1), "is no batch of 20 images of"),
    (lambda path: path.write_bytes(b"\x0a" + path.read_bytes()[1:]), "has label 10, .* 0 to 9"),
])  # fmt: skip
def test_binary_files_that_cannot_be(tmp_path, change, message: str) -> None:
    write_version(TEN, tmp_path)
    change(tmp_path / "data_batch_4.bin")
    assert_refused(rf"data_batch_4\.bin {message}", cifar.read, TEN, tmp_path, "training")


@pytest.mark.parametrize(("batch", "words"), [
    ({"data": PIXELS[1:], "labels": [0] * COUNT}, "no batch of 20 images of CIFAR-10"),
    ({"data": PIXELS, "labels": [9] * 19 + [10]}, "has label 10, but .* 0 to 9"),
    ({"data": PIXELS, "labels": [1 << 70] * COUNT}, "no batch of 20"),
    ({"data": np.zeros((COUNT, 3072)), "labels": [0] * COUNT}, "no batch of 20"),
    ([1, 2], "no batch of 20"),
    # A number of 4,000 digits takes long to read, and one object is the label of many images.
    ({"data": PIXELS, "labels": ["1" * 4000] * 100_000}, "a label is no integer"),
])  # fmt: skip
def test_other_pickles(tmp_path, monkeypatch, batch, words: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("test_batch").write_bytes(pickle.dumps(batch, 2))
    began = time.process_time()
    assert_refused(f"^test_batch .*{words}", cifar.read, TEN, Path(), "validation")
    assert time.process_time() - began < 1


def plain(red: int, side: int = 32) -> bytes:
    return cv2.imencode(".png", np.full((side, side, 3), (5, 0, red), np.uint8))[1].tobytes()


def assert_packed(sets, classes: int = 10) -> None:
    assert [(len(dataset), dataset.num_classes) for dataset in sets] == [(classes, classes)] * 2
    image, label = sets[0].decoded(9)
    assert label == 9 and image.shape == (32, 32, 3) and image[0, 0].tolist() == [9, 0, 5]


# Of Grouping-SGD, of MXNet's own examples, and others that are likely.
@pytest.mark.parametrize(("train", "test", "kind"), [
    ("train.rec", "test.rec", CIFAR10),
    ("cifar10_train.rec", "cifar10_val.rec", CIFAR10),
    ("cifar100_train.rec", "cifar100_test.rec", CIFAR100),
])  # fmt: skip
def test_record_files(tmp_path, train: str, test: str, kind) -> None:
    images = dict(enumerate(map(plain, range(kind.num_classes))))
    for name in (train, test):
        write_records(tmp_path / name, images, images)
    *sets, files = cifar.open_set(kind, tmp_path)
    assert_packed(sets, kind.num_classes)
    shared = {path.name for path in files}
    assert {train, test, train.replace(".rec", ".idx"), "property"} <= shared


def test_folders(tmp_path) -> None:
    train, val, test = (tmp_path / part for part in ("train", "val", "test"))
    images = [f"{part}/{label}/0.png" for part in ("train", "val") for label in range(10)]
    write(tmp_path, *images, content=plain(9))
    *sets, files = cifar.open_set(CIFAR10, tmp_path)
    assert_packed(sets)
    assert files == [train, val]
    shutil.copytree(train, test)
    assert cifar.open_set(CIFAR10, tmp_path)[2] == [train, test]


def test_record_files_of_another_set_or_missing(tmp_path) -> None:
    path = tmp_path / "train.rec"
    for classes, side, message in (
        (9, 32, "train.rec has 9 classes, not the 10 of CIFAR-10; .*imagenet reads any"),
        (10, 28, "train.rec: record 0 is an image of 28 x 28, not of the 32 x 32 of CIFAR-10; "),
    ):
        write_records(path, range(classes), dict.fromkeys(range(classes), plain(0, side)))
        assert_refused(message, cifar.open_record_files, CIFAR10, path, path)
    none = tmp_path / "none.rec"
    assert_refused(r"none\.rec cannot be read", cifar.open_record_files, CIFAR10, path, none)


def header(*shape: int) -> bytes:
    return struct.pack(f">{1 + len(shape)}I", 0x0800 | len(shape), *shape)


def idx(array: np.ndarray) -> bytes:
    return header(*array.shape) + array.astype(np.uint8).tobytes()


@pytest.fixture
def folder(tmp_path):
    for part, count in (("train", 20), ("t10k", 7)):
        labels = gzip.compress(idx(np.arange(count) % 10))
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(idx(DIGITS[:count]))
        (tmp_path / f"{part}-labels-idx1-ubyte.gz").write_bytes(labels)
    return tmp_path


def test_plain_and_compressed_files(folder, monkeypatch) -> None:
    monkeypatch.setattr(mnist, "_MAX_BYTES", 16 + 20 * 28 * 28)
    assert len(mnist.files_of(folder)) == 8 and {*folder.iterdir()} < {*mnist.files_of(folder)}
    assert len(mnist.read(folder, "validation")) == 7
    for is_compressed in (False, True):
        if is_compressed:
            (folder / IMAGES).unlink()
            (folder / f"{IMAGES}.gz").write_bytes(gzip.compress(idx(DIGITS)))
        dataset = mnist.read(folder, "training")
        assert len(dataset) == 20 and dataset.num_classes == 10 and dataset.decoded(13)[1] == 3
        for number in range(20):
            image, _ = dataset.decoded(number)
            np.testing.assert_array_equal(image, DIGITS[number, ..., None])
            image[:] = 0
            assert dataset.decoded(number)[0].any()


@pytest.mark.parametrize(("name", "damage", "words"), [
    (IMAGES, None, ".*t10k-labels.*MNIST Database"),
    (IMAGES, lambda content: content[:-100], ".*truncated"),
    (IMAGES, lambda content: b"\0\0\x0d\x03" + content[4:], ".*no IDX file"),
    (IMAGES, lambda _: idx(np.zeros((19, 28, 28))), ".*not MNIST"),
    (LABELS, lambda _: gzip.compress(idx(np.full(20, 10))), ".*0 to 9"),
])  # fmt: skip
def test_a_missing_or_damaged_file_is_one_line(folder, name: str, damage, words: str) -> None:
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    if damage is not None:
        (folder / name).write_bytes(damage(content))
    assert_refused(name + words, mnist.read, folder, "training")


@pytest.mark.parametrize("shape", [(20, 28, 28), (2**32 - 1, 2**32 - 1, 2**32 - 1), (20,)])
def test_a_compressed_file_is_unpacked_as_far_as_a_limit(folder, monkeypatch, shape) -> None:
    monkeypatch.setattr(mnist, "_MAX_BYTES", 1 << 20)
    (folder / IMAGES).unlink()
    (folder / f"{IMAGES}.gz").write_bytes(gzip.compress(header(*shape) + bytes(50 << 20), 1))
    tracemalloc.start()
    try:
        message = rf"{IMAGES}\.gz is no IDX file of 3 dimensions .*damaged or too large"
        assert_refused(message, mnist.read, folder, "training")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 4 << 20
