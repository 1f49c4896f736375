from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from data.images import cifar
from data.images.cifar import CIFAR10, CIFAR100
from data.pack.__main__ import main as pack
from data.records.writer import RecordWriter
from runtime.errors import DataError

FILES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
COUNT = 20
SMALL = {"training": COUNT, "validation": COUNT}
TEN, HUNDRED = (replace(one, images_per_file=SMALL) for one in (CIFAR10, CIFAR100))
PIXELS = np.zeros((COUNT, 3072), np.uint8)


def content(number: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    return rng.integers(0, 10, COUNT), rng.integers(0, 256, (COUNT, 3072), np.uint8)


def write_python(folder: Path, protocol: int = 2, keys: Callable[[str], Any] = str) -> None:
    folder.mkdir(exist_ok=True)
    for number, name in enumerate(FILES):
        labels, pixels = content(number)
        batch = {"batch_label": name, "labels": labels.tolist(), "data": pixels, "filenames": ["a"]}
        batch = {keys(key): value for key, value in batch.items()}
        (folder / name).write_bytes(pickle.dumps(batch, protocol))


def write_binary(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for number, name in enumerate(FILES):
        labels, pixels = content(number)
        rows = np.hstack([labels.astype(np.uint8)[:, None], pixels])
        (folder / f"{name}.bin").write_bytes(rows.tobytes())


def assert_is_the_set(folder: Path) -> None:
    training, validation = (cifar.read(TEN, folder, part) for part in ("training", "validation"))
    assert (len(training), len(validation)) == (5 * COUNT, COUNT)
    for dataset, index, number in ((training, 47, 2), (validation, 7, 5)):
        labels, pixels = content(number)
        image, label = dataset.decoded(index)
        assert label == labels[7] and image.shape == (32, 32, 3) and dataset.num_classes == 10
        np.testing.assert_array_equal(image, pixels[7].reshape(3, 32, 32).transpose(1, 2, 0))


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: write_python(folder, 2, str.encode),
        lambda folder: write_python(folder / "cifar-10-batches-py", 5),
        write_binary,
        lambda folder: write_binary(folder / "cifar-10-batches-bin"),
    ],
)
def test_both_versions_in_the_folder_or_where_they_are_published(tmp_path: Path, write) -> None:
    write(tmp_path)
    assert_is_the_set(tmp_path)
    written = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert len(written) == 6 and written < {*cifar.files_of(TEN, tmp_path)}


def test_missing_files_are_named_with_their_publication(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data_batch_1 .*test_batch.*cs\.toronto\.edu"):
        cifar.read(TEN, tmp_path, "training")
    write_binary(tmp_path)
    (tmp_path / "data_batch_4.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_4\.bin does not exist"):
        cifar.read(TEN, tmp_path, "training")


@pytest.mark.parametrize("change", [-1, 1, 3073])
def test_a_binary_file_of_the_wrong_length(tmp_path: Path, change: int) -> None:
    write_binary(tmp_path)
    path = tmp_path / "data_batch_2.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:change] if change < 0 else whole + whole[:change])
    with pytest.raises(DataError, match=r"data_batch_2\.bin has \d+ bytes.*copy it again"):
        cifar.read(TEN, tmp_path, "training")


def test_a_binary_file_with_an_impossible_label(tmp_path: Path) -> None:
    write_binary(tmp_path)
    path = tmp_path / "test_batch.bin"
    rows = bytearray(path.read_bytes())
    rows[3073 * 4] = 10
    path.write_bytes(rows)
    with pytest.raises(DataError, match="test_batch.bin has label 10, but there are 0 to 9"):
        cifar.read(TEN, tmp_path, "validation")


def test_how_many_images_the_published_files_have() -> None:
    assert CIFAR10.images_per_file == {"training": 10_000, "validation": 10_000}
    assert CIFAR100.images_per_file == {"training": 50_000, "validation": 10_000}
    assert len(CIFAR10.files["training"]) == 5 and len(CIFAR100.files["training"]) == 1


class Attack:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"data": PIXELS[1:], "labels": [0] * COUNT}, "bytes of pixels"),
        ({"data": PIXELS, "labels": [0]}, "and 1 labels"),
        ({"data": PIXELS, "labels": [9] * 19 + [10]}, "test_batch has label 10, but .* 0 to 9"),
        ({"data": PIXELS, "labels": [-1] * COUNT}, "has label -1, but there are 0 to 9"),
        ({"data": PIXELS, "labels": [1 << 70] * COUNT}, "no CIFAR-10 batch"),
        ({"data": PIXELS, "labels": ["1"] * COUNT}, "is no integer"),
        ({"data": PIXELS, "labels": 1}, "no CIFAR-10 batch"),
        ({"data": np.zeros((COUNT, 3072)), "labels": [0] * COUNT}, "no CIFAR-10 batch"),
        ({"data": PIXELS.reshape(COUNT, 32, 32, 3), "labels": []}, "pixels .20 x 32 x 32"),
        ({"labels": [0] * COUNT}, "no CIFAR-10 batch"),
        ([1, 2], "no CIFAR-10 batch"),
        # A number of 4,000 digits takes long to read, and one object is the label of many images.
        ({"data": PIXELS, "labels": ["1" * 4000] * COUNT}, "a label is no integer"),
        ({"data": PIXELS, "labels": ["1" * 4000] * 100_000}, "and 100000 labels, not the"),
    ],
)
def test_other_pickles(tmp_path: Path, batch: object, words: str) -> None:
    write_python(tmp_path)
    (tmp_path / "test_batch").write_bytes(pickle.dumps(batch, 2))
    began = time.process_time()
    with pytest.raises(DataError, match=words) as caught:
        cifar.read(TEN, tmp_path, "validation")
    assert time.process_time() - began < 1
    assert "test_batch" in str(caught.value) and "\n" not in str(caught.value)


def test_a_pickle_that_is_cut_off_or_runs_something(tmp_path: Path) -> None:
    write_python(tmp_path)
    whole, trace = (tmp_path / "test_batch").read_bytes(), tmp_path / "trace"
    attack = pickle.dumps({"data": Attack(trace)}, 2)
    for damaged, words in ((whole[:10], "test_batch is no CIFAR-10 batch"),
                           (whole[:-10], "test_batch is no CIFAR-10 batch"),
                           (attack, "it wants to run")):  # fmt: skip
        (tmp_path / "test_batch").write_bytes(damaged)
        with pytest.raises(DataError, match=words):
            cifar.read(TEN, tmp_path, "validation")
    assert not trace.exists()


@pytest.mark.parametrize(("kind", "order"), [(np.int64, "F"), (np.uint8, "C")])
def test_batches_that_others_have_written_again(tmp_path: Path, kind, order: Any) -> None:
    write_python(tmp_path)
    labels, pixels = content(5)
    batch = {"labels": labels.astype(kind), "data": np.array(pixels, order=order)}
    (tmp_path / "test_batch").write_bytes(pickle.dumps(batch, 4))
    assert_is_the_set(tmp_path)


def content_of_hundred(part: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Superclasses, classes and pixels."""
    rng = np.random.default_rng(len(part))
    pixels = rng.integers(0, 256, (COUNT, 3072), np.uint8)
    return rng.integers(0, 20, COUNT), rng.integers(0, 100, COUNT), pixels


def write_hundred(folder: Path, version: str) -> None:
    folder.mkdir(parents=True)
    for part in ("train", "test"):
        coarse, fine, pixels = content_of_hundred(part)
        if version == "binary":
            labels = np.stack([coarse, fine], axis=1).astype(np.uint8)
            (folder / f"{part}.bin").write_bytes(np.hstack([labels, pixels]).tobytes())
        else:
            batch = {"coarse_labels": coarse.tolist(), "fine_labels": fine.tolist()}
            (folder / part).write_bytes(pickle.dumps({**batch, "data": pixels}, 2))


@pytest.mark.parametrize("version", ["binary", "python"])
@pytest.mark.parametrize("is_published", [True, False])
def test_a_hundred_classes_are_the_fine_ones(tmp_path: Path, version, is_published) -> None:
    folder = tmp_path / f"cifar-100-{version}" if is_published else tmp_path / "here"
    write_hundred(folder, version)
    sets = cifar.open_set(HUNDRED, tmp_path if is_published else folder)
    for dataset, part in zip(sets, ("train", "test")):
        _, fine, pixels = content_of_hundred(part)
        assert len(dataset) == COUNT and dataset.num_classes == 100
        assert [dataset.decoded(index)[1] for index in range(COUNT)] == fine.tolist()
        expected = pixels[7].reshape(3, 32, 32).transpose(1, 2, 0)
        np.testing.assert_array_equal(dataset.decoded(7)[0], expected)


def test_the_files_of_one_set_are_not_taken_for_the_other(tmp_path: Path) -> None:
    write_hundred(tmp_path / "cifar-100-binary", "binary")
    with pytest.raises(DataError, match="data_batch_1 does not exist.*CIFAR-10's python or"):
        cifar.open_set(TEN, tmp_path)
    path = tmp_path / "cifar-100-binary" / "train.bin"
    path.write_bytes(path.read_bytes()[: COUNT * 3073])
    with pytest.raises(DataError, match=r"train\.bin has \d+ bytes.*no CIFAR-100 file"):
        cifar.open_set(HUNDRED, tmp_path)


def encoded(label: int, number: int, side: int = 32) -> bytes:
    image = np.full((side, side, 3), (number, 0, label), np.uint8)
    return cv2.imencode(".png", image)[1].tobytes()


def write_records(path: Path, classes: int = 10, side: int = 32) -> None:
    with RecordWriter(path, image_size=(side, side)) as writer:
        for label in range(classes):
            for number in range(2):
                writer.write(encoded(label, number, side), label)
    # As from MXNet's im2rec, which writes none.
    path.with_name("property").unlink()


def write_folders(part: Path) -> None:
    for label in range(10):
        (part / f"class{label}").mkdir(parents=True)
        for number in range(2):
            (part / f"class{label}" / f"{number}.png").write_bytes(encoded(label, number))


def assert_packed(sets: Any) -> None:
    for dataset in sets:
        assert len(dataset) == 20 and dataset.num_classes == 10
    image, label = sets[0].decoded(19)
    assert label == 9 and image.shape == (32, 32, 3) and image[0, 0].tolist() == [9, 0, 1]


# Of Grouping-SGD, of MXNet's own examples, and others that are likely.
@pytest.mark.parametrize("train, test", [
    ("train.rec", "test.rec"), ("cifar10_train.rec", "cifar10_val.rec"),
    ("cifar10_train.rec", "cifar10_test.rec"), ("train.rec", "val.rec"),
])  # fmt: skip
def test_record_files(tmp_path: Path, train: str, test: str) -> None:
    for name in (train, test):
        write_records(tmp_path / name)
    assert_packed(cifar.open_set(CIFAR10, tmp_path))
    assert_packed(cifar.open_record_files(CIFAR10, *(tmp_path / name for name in (train, test))))
    shared = {path.name for path in cifar.files_of(CIFAR10, tmp_path)}
    assert {train, test, train.replace(".rec", ".idx"), "property"} <= shared


def test_record_files_of_a_hundred_classes(tmp_path: Path) -> None:
    for name in ("cifar100_train.rec", "cifar100_test.rec"):
        write_records(tmp_path / name, classes=100)
    with pytest.raises(DataError, match="data_batch_1 does not exist"):
        cifar.open_set(CIFAR10, tmp_path)
    training, validation = cifar.open_set(CIFAR100, tmp_path)
    assert len(training) == len(validation) == 200
    assert validation.decoded(199)[1] == 99 and training.num_classes == 100


def test_folders_and_what_data_pack_makes_of_them(tmp_path: Path, monkeypatch) -> None:
    for part in ("train", "val"):
        write_folders(tmp_path / part)
        out = tmp_path / "packed" / f"{part}.rec"
        monkeypatch.setattr("sys.argv", ["pack", str(tmp_path / part), str(out), "--png"])
        pack()
    assert_packed(cifar.open_set(CIFAR10, tmp_path / "packed"))
    assert_packed(cifar.open_set(CIFAR10, tmp_path))
    assert cifar.files_of(CIFAR10, tmp_path) == [tmp_path / "train", tmp_path / "val"]
    write_folders(tmp_path / "test")
    sets = cifar.open_set(CIFAR10, tmp_path)
    assert_packed(sets)
    assert [*sets[1].left_out] == [f"{tmp_path}/val: left out, as {tmp_path}/test is there"]
    assert cifar.files_of(CIFAR10, tmp_path) == [tmp_path / "train", tmp_path / "test"]


@pytest.mark.parametrize(
    ("classes", "side", "message"),
    [
        (9, 32, "train.rec has 9 classes, not the 10 of CIFAR-10; .*imagenet reads any"),
        (11, 32, "train.rec has 11 classes, not the 10 of CIFAR-10"),
        (10, 28, "train.rec: record 1 is an image of 28 x 28, not of the 32 x 32 of CIFAR-10; "),
    ],
)
def test_record_files_of_another_set_or_missing(tmp_path: Path, classes, side, message) -> None:
    write_records(tmp_path / "train.rec", classes, side)
    with pytest.raises(DataError, match=message) as caught:
        cifar.open_record_files(CIFAR10, tmp_path / "train.rec", tmp_path / "train.rec")
    assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match=r"b\.rec does not exist; CIFAR-10 as record files.*im2rec"):
        cifar.open_record_files(CIFAR10, tmp_path / "train.rec", tmp_path / "b.rec")
