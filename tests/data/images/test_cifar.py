from __future__ import annotations

import pickle
import shutil
import time
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from data.images import cifar
from data.images.cifar import CIFAR10, CIFAR100
from runtime.errors import DataError
from tests.support.sets import assert_refused, pack_set

COUNT = 20
SMALL = {"training": COUNT, "validation": COUNT}
TEN, HUNDRED = (replace(one, images_per_file=SMALL) for one in (CIFAR10, CIFAR100))
PIXELS = np.zeros((COUNT, 3072), np.uint8)


def content(number: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    return rng.integers(0, classes, COUNT), rng.integers(0, 256, (COUNT, 3072), np.uint8)


def write(kind, folder: Path, protocol=None, keys=str) -> None:
    """Write all files: the python version of a protocol, or the binary version."""
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
    (TEN, ".", 2, str.encode),
    (TEN, "cifar-10-batches-py", 5, str),
    (TEN, "cifar-10-batches-bin", None, str),
    (HUNDRED, ".", 2, str),
    (HUNDRED, "cifar-100-binary", None, str),
])  # fmt: skip
def test_both_versions_where_they_are_published(tmp_path, kind, folder, protocol, keys) -> None:
    """The hundred classes are the fine ones."""
    assert CIFAR10.images_per_file == {"training": 10_000, "validation": 10_000}
    assert CIFAR100.images_per_file == {"training": 50_000, "validation": 10_000}
    first, last = kind.files["training"][0], kind.files["validation"][0]
    with pytest.raises(DataError, match=rf"{first} does.*{last} of {kind.name}.*cs\.toronto\.edu"):
        cifar.open_set(kind, tmp_path)
    write(kind, tmp_path / folder, protocol, keys)
    training = len(kind.files["training"])
    parts = range(training), range(training, training + 1)
    for dataset, files in zip(cifar.open_set(kind, tmp_path), parts):
        labels, pixels = zip(*(content(number, kind.num_classes) for number in files))
        decoded = [dataset.decoded(index) for index in range(len(dataset))]
        assert dataset.num_classes == kind.num_classes
        assert [label for _, label in decoded] == np.concatenate(labels).tolist()
        planes = np.stack([image for image, _ in decoded]).transpose(0, 3, 1, 2)
        np.testing.assert_array_equal(planes.reshape(-1, 3072), np.concatenate(pixels))
    written = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert len(written) == training + 1 and written < {*cifar.files_of(kind, tmp_path)}


@pytest.mark.parametrize(("change", "message"), [
    (None, r"data_batch_4\.bin does not exist"),
    (lambda whole: whole[:-1], r"data_batch_4\.bin has \d+ bytes.*copy it again"),
    (lambda whole: b"\x0a" + whole[1:], r"data_batch_4\.bin has label 10, .* are 0 to 9"),
])  # fmt: skip
def test_binary_files_that_cannot_be(tmp_path, change, message: str) -> None:
    write(TEN, tmp_path)
    path = tmp_path / "data_batch_4.bin"
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes()))
    assert_refused(message, cifar.read, TEN, tmp_path, "training")


@pytest.mark.parametrize(("batch", "words"), [
    ({"data": PIXELS[1:], "labels": [0] * COUNT}, "bytes of pixels"),
    ({"data": PIXELS, "labels": [0]}, "and 1 labels"),
    ({"data": PIXELS, "labels": [9] * 19 + [10]}, "has label 10, but .* 0 to 9"),
    ({"data": PIXELS, "labels": [-1] * COUNT}, "has label -1, but there are 0 to 9"),
    ({"data": PIXELS, "labels": [1 << 70] * COUNT}, "no CIFAR-10 batch"),
    ({"data": PIXELS, "labels": 1}, "no CIFAR-10 batch"),
    ({"data": np.zeros((COUNT, 3072)), "labels": [0] * COUNT}, "its data is no array of bytes"),
    ([1, 2], "it is no dictionary"),
    ({"data": range(3)}, "it wants to run"),
    # A number of 4,000 digits takes long to read, and one object is the label of many images.
    ({"data": PIXELS, "labels": ["1" * 4000] * COUNT}, "a label is no integer"),
    ({"data": PIXELS, "labels": ["1" * 4000] * 100_000}, "and 100000 labels, not the"),
])  # fmt: skip
def test_other_pickles(tmp_path, monkeypatch, batch, words: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("test_batch").write_bytes(pickle.dumps(batch, 2))
    began = time.process_time()
    assert_refused(f"^test_batch .*{words}", cifar.read, TEN, Path(), "validation")
    assert time.process_time() - began < 1


def write_records(path: Path, classes: int = 10, side: int = 32) -> None:
    """As from MXNet's im2rec, which writes no property."""
    images = (np.full((side, side, 3), (5, 0, label), np.uint8) for label in range(classes))
    encoded = (cv2.imencode(".png", image)[1].tobytes() for image in images)
    pack_set(path, encoded, range(classes), (side, side))
    path.with_name("property").unlink()


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
    for name in (train, test):
        write_records(tmp_path / name, kind.num_classes)
    assert_packed(cifar.open_set(kind, tmp_path), kind.num_classes)
    shared = {path.name for path in cifar.files_of(kind, tmp_path)}
    assert {train, test, train.replace(".rec", ".idx"), "property"} <= shared


def test_folders(tmp_path) -> None:
    train, val, test = (tmp_path / part for part in ("train", "val", "test"))
    for label in range(10):
        (train / f"class{label}").mkdir(parents=True)
        cv2.imwrite(str(train / f"class{label}" / "0.png"), np.full((32, 32, 3), (5, 0, 9)))
    shutil.copytree(train, val)
    assert_packed(cifar.open_set(CIFAR10, tmp_path))
    assert cifar.files_of(CIFAR10, tmp_path) == [train, val]
    shutil.copytree(train, test)
    _, validation = cifar.open_set(CIFAR10, tmp_path)
    assert [*validation.left_out] == [f"{val}: left out, as {test} is there"]
    assert cifar.files_of(CIFAR10, tmp_path) == [train, test]


def test_record_files_of_another_set_or_missing(tmp_path) -> None:
    path = tmp_path / "train.rec"
    for classes, side, message in (
        (9, 32, "train.rec has 9 classes, not the 10 of CIFAR-10; .*imagenet reads any"),
        (11, 32, "train.rec has 11 classes, not the 10 of CIFAR-10"),
        (10, 28, "train.rec: record 1 is an image of 28 x 28, not of the 32 x 32 of CIFAR-10; "),
    ):
        write_records(path, classes, side)
        assert_refused(message, cifar.open_record_files, CIFAR10, path, path)
    none = tmp_path / "none.rec"
    assert_refused(r"none\.rec does not exist", cifar.open_record_files, CIFAR10, path, none)
