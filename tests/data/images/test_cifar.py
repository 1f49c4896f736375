from __future__ import annotations

import pickle
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import cv2
import numpy as np
import pytest

from data.images import cifar
from data.images.cifar import CIFAR10, CIFAR100, Cifar
from data.records.writer import RecordWriter
from runtime.errors import DataError

COUNT = 20
SMALL = {"training": COUNT, "validation": COUNT}
TEN, HUNDRED = (replace(one, images_per_file=SMALL) for one in (CIFAR10, CIFAR100))
PIXELS = np.zeros((COUNT, 3072), np.uint8)


def content(number: int, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    return rng.integers(0, classes, COUNT), rng.integers(0, 256, (COUNT, 3072), np.uint8)


def write(kind: Cifar, folder: Path, protocol: Optional[int] = None, keys: Any = str) -> None:
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


@pytest.mark.parametrize(
    ("kind", "folder", "protocol", "keys"),
    [
        (TEN, ".", 2, str.encode),
        (TEN, "cifar-10-batches-py", 5, str),
        (TEN, "cifar-10-batches-bin", None, str),
        (HUNDRED, ".", 2, str),
        (HUNDRED, "cifar-100-binary", None, str),
    ],
)
def test_both_versions_in_the_folder_or_where_they_are_published(
    tmp_path: Path, kind: Cifar, folder: str, protocol: Optional[int], keys: Any
) -> None:
    """The hundred classes are the fine ones."""
    assert CIFAR10.images_per_file == {"training": 10_000, "validation": 10_000}
    assert CIFAR100.images_per_file == {"training": 50_000, "validation": 10_000}
    first, last = kind.files["training"][0], kind.files["validation"][0]
    with pytest.raises(DataError, match=rf"{first} does.*{last} of {kind.name}.*cs\.toronto\.edu"):
        cifar.open_set(kind, tmp_path)
    write(kind, tmp_path / folder, protocol, keys)
    training = len(kind.files["training"])
    for dataset, files in zip(
        cifar.open_set(kind, tmp_path), (range(training), range(training, training + 1))
    ):
        labels, pixels = zip(*(content(number, kind.num_classes) for number in files))
        expected = np.concatenate(pixels).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        assert dataset.num_classes == kind.num_classes
        decoded = [dataset.decoded(index) for index in range(len(dataset))]
        assert [label for _, label in decoded] == np.concatenate(labels).tolist()
        np.testing.assert_array_equal(np.stack([image for image, _ in decoded]), expected)
    written = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert len(written) == training + 1 and written < {*cifar.files_of(kind, tmp_path)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, r"data_batch_4\.bin does not exist"),
        (lambda whole: whole[:-1], r"data_batch_4\.bin has \d+ bytes.*copy it again"),
        (lambda whole: b"\x0a" + whole[1:], r"data_batch_4\.bin has label 10, .* are 0 to 9"),
    ],
)
def test_binary_files_that_cannot_be(tmp_path: Path, change, message: str) -> None:
    write(TEN, tmp_path)
    path = tmp_path / "data_batch_4.bin"
    whole = path.read_bytes()
    path.unlink()
    if change is not None:
        path.write_bytes(change(whole))
    with pytest.raises(DataError, match=message):
        cifar.read(TEN, tmp_path, "training")


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"data": PIXELS[1:], "labels": [0] * COUNT}, "bytes of pixels"),
        ({"data": PIXELS, "labels": [0]}, "and 1 labels"),
        ({"data": PIXELS, "labels": [9] * 19 + [10]}, "test_batch has label 10, but .* 0 to 9"),
        ({"data": PIXELS, "labels": [-1] * COUNT}, "has label -1, but there are 0 to 9"),
        ({"data": PIXELS, "labels": [1 << 70] * COUNT}, "no CIFAR-10 batch"),
        ({"data": PIXELS, "labels": 1}, "no CIFAR-10 batch"),
        ({"data": np.zeros((COUNT, 3072)), "labels": [0] * COUNT}, "its data is no array of bytes"),
        ([1, 2], "it is no dictionary"),
        ({"data": range(3)}, "it wants to run"),
        # A number of 4,000 digits takes long to read, and one object is the label of many images.
        ({"data": PIXELS, "labels": ["1" * 4000] * COUNT}, "a label is no integer"),
        ({"data": PIXELS, "labels": ["1" * 4000] * 100_000}, "and 100000 labels, not the"),
    ],
)
def test_other_pickles(tmp_path: Path, monkeypatch, batch: object, words: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("test_batch").write_bytes(pickle.dumps(batch, 2))
    began = time.process_time()
    with pytest.raises(DataError, match=words) as caught:
        cifar.read(TEN, Path(), "validation")
    assert time.process_time() - began < 1
    assert "test_batch" in str(caught.value) and "\n" not in str(caught.value)


def write_records(path: Path, classes: int = 10, side: int = 32) -> None:
    """As from MXNet's im2rec, which writes no property."""
    with RecordWriter(path, image_size=(side, side)) as writer:
        for label in range(classes):
            image = np.full((side, side, 3), (5, 0, label), np.uint8)
            writer.write(cv2.imencode(".png", image)[1].tobytes(), label)
    path.with_name("property").unlink()


def assert_packed(sets: Any, classes: int = 10) -> None:
    for dataset in sets:
        assert len(dataset) == dataset.num_classes == classes
    image, label = sets[0].decoded(9)
    assert label == 9 and image.shape == (32, 32, 3) and image[0, 0].tolist() == [9, 0, 5]


# Of Grouping-SGD, of MXNet's own examples, and others that are likely.
@pytest.mark.parametrize(
    ("train", "test", "kind"),
    [
        ("train.rec", "test.rec", CIFAR10),
        ("cifar10_train.rec", "cifar10_val.rec", CIFAR10),
        ("cifar100_train.rec", "cifar100_test.rec", CIFAR100),
    ],
)
def test_record_files(tmp_path: Path, train: str, test: str, kind) -> None:
    paths = tmp_path / train, tmp_path / test
    for path in paths:
        write_records(path, kind.num_classes)
    assert_packed(cifar.open_set(kind, tmp_path), kind.num_classes)
    shared = {path.name for path in cifar.files_of(kind, tmp_path)}
    assert {train, test, train.replace(".rec", ".idx"), "property"} <= shared


def test_folders(tmp_path: Path) -> None:
    image = np.full((32, 32, 3), (5, 0, 9), np.uint8)
    for part in ("train", "val"):
        for label in range(10):
            (tmp_path / part / f"class{label}").mkdir(parents=True)
            cv2.imwrite(str(tmp_path / part / f"class{label}" / "0.png"), image)
    assert_packed(cifar.open_set(CIFAR10, tmp_path))
    assert cifar.files_of(CIFAR10, tmp_path) == [tmp_path / "train", tmp_path / "val"]
    shutil.copytree(tmp_path / "train", tmp_path / "test")
    _, validation = cifar.open_set(CIFAR10, tmp_path)
    assert [*validation.left_out] == [f"{tmp_path}/val: left out, as {tmp_path}/test is there"]
    assert cifar.files_of(CIFAR10, tmp_path) == [tmp_path / "train", tmp_path / "test"]


def test_record_files_of_another_set_or_missing(tmp_path: Path) -> None:
    path = tmp_path / "train.rec"
    for classes, side, message in (
        (9, 32, "train.rec has 9 classes, not the 10 of CIFAR-10; .*imagenet reads any"),
        (11, 32, "train.rec has 11 classes, not the 10 of CIFAR-10"),
        (10, 28, "train.rec: record 1 is an image of 28 x 28, not of the 32 x 32 of CIFAR-10; "),
    ):
        write_records(path, classes, side)
        with pytest.raises(DataError, match=message):
            cifar.open_record_files(CIFAR10, path, path)
    with pytest.raises(DataError, match=r"b\.rec does not exist; .*im2rec"):
        cifar.open_record_files(CIFAR10, path, tmp_path / "b.rec")
