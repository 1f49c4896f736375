from __future__ import annotations

import pickle
import subprocess
import sys
import tarfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from data.images import cifar
from data.images.cifar import CIFAR10, CIFAR100
from data.records.writer import RecordWriter
from runtime.errors import DataError

ROOT = Path(__file__).resolve().parents[3]
FILES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
COUNT = 20
# Of files with few images.
SMALL = {"training": COUNT, "validation": COUNT}
TEN, HUNDRED = (replace(one, images_per_file=SMALL) for one in (CIFAR10, CIFAR100))


def content(number: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    return rng.integers(0, 10, COUNT), rng.integers(0, 256, (COUNT, 3072), np.uint8)


def write_python(folder: Path, protocol: int = 2, keys=str) -> None:
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


@pytest.mark.parametrize("keys", [str, str.encode])
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_the_python_version(tmp_path: Path, protocol: int, keys) -> None:
    write_python(tmp_path, protocol, keys)
    assert_is_the_set(tmp_path)


def test_the_binary_version(tmp_path: Path) -> None:
    write_binary(tmp_path)
    assert_is_the_set(tmp_path)


def test_its_files_in_every_version_and_place(tmp_path: Path) -> None:
    write_python(tmp_path)
    write_binary(tmp_path / "cifar-10-batches-bin")
    written = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert len(written) == 12 and written < {*cifar.files_of(TEN, tmp_path)}


def test_the_folders_in_which_they_are_published(tmp_path: Path) -> None:
    write_python(tmp_path / "cifar-10-batches-py")
    assert_is_the_set(tmp_path)


def test_missing_files_are_named_with_their_publication(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data_batch_1 .*test_batch.*cs\.toronto\.edu"):
        cifar.read(TEN, tmp_path, "training")
    write_binary(tmp_path)
    (tmp_path / "data_batch_4.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_4\.bin does not exist"):
        cifar.read(TEN, tmp_path, "training")


@pytest.mark.parametrize("change", [-1, 1, -3073, 3073])
def test_a_binary_file_of_the_wrong_length(tmp_path: Path, change: int) -> None:
    write_binary(tmp_path)
    path = tmp_path / "data_batch_2.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:change] if change < 0 else whole + whole[:change])
    with pytest.raises(DataError, match=r"data_batch_2\.bin has \d+ bytes.*copy it again"):
        cifar.read(TEN, tmp_path, "training")


@pytest.mark.parametrize("label", [-1, 10])
def test_an_impossible_label_of_the_python_version(tmp_path: Path, label: int) -> None:
    write_python(tmp_path)
    labels, pixels = content(5)
    wrong = {"labels": [label, *labels.tolist()[1:]], "data": pixels.tobytes()}
    (tmp_path / FILES[5]).write_bytes(pickle.dumps(wrong, 2))
    with pytest.raises(DataError, match=f"{FILES[5]} has label {label}, but there are 0 to 9"):
        cifar.read(TEN, tmp_path, "validation")


@pytest.mark.parametrize("label", [10, 255])
def test_a_binary_file_with_an_impossible_label(tmp_path: Path, label: int) -> None:
    write_binary(tmp_path)
    path = tmp_path / "test_batch.bin"
    content = bytearray(path.read_bytes())
    content[3073 * 4] = label
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"test_batch.bin has label {label}, but there are 0 to 9"):
        cifar.read(TEN, tmp_path, "validation")


def test_how_many_images_the_published_files_have() -> None:
    assert CIFAR10.images_per_file == {"training": 10_000, "validation": 10_000}
    assert CIFAR100.images_per_file == {"training": 50_000, "validation": 10_000}
    assert len(CIFAR10.files["training"]) == 5 and len(CIFAR100.files["training"]) == 1


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"data": np.zeros((COUNT - 1, 3072), np.uint8), "labels": [0] * COUNT}, "bytes of pixels"),
        ({"data": np.zeros((COUNT, 3072), np.uint8), "labels": [0]}, "and 1 labels"),
        ({"data": np.zeros((COUNT, 3072), np.uint8), "labels": [10] * COUNT}, "0 to 9"),
        ({"data": np.zeros((COUNT, 3072), np.uint8), "labels": [-1] * COUNT}, "0 to 9"),
        (
            {"data": np.zeros((COUNT, 3072), np.uint8), "labels": [1 << 70] * COUNT},
            "no CIFAR-10 batch",
        ),
        ({"data": np.zeros((COUNT, 3072), np.uint8), "labels": ["1"] * COUNT}, "is no integer"),
        ({"data": np.zeros((COUNT, 3072), np.uint8), "labels": 1}, "no CIFAR-10 batch"),
        ({"data": np.zeros((COUNT, 3072)), "labels": [0] * COUNT}, "no CIFAR-10 batch"),
        ({"data": np.zeros((COUNT, 32, 32, 3), np.uint8), "labels": []}, "pixels .20 x 32 x 32"),
        ({"labels": [0] * COUNT}, "no CIFAR-10 batch"),
        ([1, 2], "no CIFAR-10 batch"),
    ],
)
def test_other_pickles(tmp_path: Path, batch, words: str) -> None:
    write_python(tmp_path)
    (tmp_path / "test_batch").write_bytes(pickle.dumps(batch, 2))
    with pytest.raises(DataError, match=words) as caught:
        cifar.read(TEN, tmp_path, "validation")
    assert "test_batch" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("count", [COUNT, 100_000])
def test_labels_that_are_long_text(tmp_path: Path, count: int) -> None:
    """A number of 4,000 digits takes long to read, and one object is the label of many images."""
    write_python(tmp_path)
    batch = {"data": np.zeros((COUNT, 3072), np.uint8), "labels": ["1" * 4000] * count}
    (tmp_path / "test_batch").write_bytes(pickle.dumps(batch, 2))
    began = time.process_time()
    message = "a label is no integer" if count == COUNT else "and 100000 labels, not the"
    with pytest.raises(DataError, match=message):
        cifar.read(TEN, tmp_path, "validation")
    assert time.process_time() - began < 1


@pytest.mark.parametrize("kind", [np.int64, np.uint8, list])
@pytest.mark.parametrize("order", ["C", "F"])
def test_batches_that_others_have_written_again(tmp_path: Path, kind, order) -> None:
    write_python(tmp_path)
    expected = cifar.read(TEN, tmp_path, "validation")
    batch = pickle.loads((tmp_path / "test_batch").read_bytes())
    labels = next(key for key in batch if key in ("labels", b"labels"))
    data = next(key for key in batch if key in ("data", b"data"))
    batch[labels] = list(batch[labels]) if kind is list else np.array(batch[labels], kind)
    batch[data] = np.array(batch[data], order=order)
    (tmp_path / "test_batch").write_bytes(pickle.dumps(batch, 4))
    found = cifar.read(TEN, tmp_path, "validation")
    assert len(found) == len(expected)
    for number in range(len(expected)):
        (one, label), (other, wanted) = found.decoded(number), expected.decoded(number)
        assert label == wanted and (one == other).all()


class Attack:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_a_pickle_runs_nothing(tmp_path: Path) -> None:
    write_python(tmp_path)
    trace = tmp_path / "trace"
    (tmp_path / "test_batch").write_bytes(pickle.dumps({"data": Attack(trace)}, 2))
    with pytest.raises(DataError, match="it wants to run"):
        cifar.read(TEN, tmp_path, "validation")
    assert not trace.exists()


@pytest.mark.parametrize("cut", [10, 1000, -10])
def test_a_truncated_pickle(tmp_path: Path, cut: int) -> None:
    write_python(tmp_path)
    path = tmp_path / "test_batch"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match="test_batch is no CIFAR-10 batch"):
        cifar.read(TEN, tmp_path, "validation")


def content_of_hundred(part: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Superclasses, classes and pixels."""
    rng = np.random.default_rng(len(part))
    pixels = rng.integers(0, 256, (COUNT, 3072), np.uint8)
    return rng.integers(0, 20, COUNT), rng.integers(0, 100, COUNT), pixels


def write_hundred(folder: Path, is_binary: bool) -> None:
    folder.mkdir(parents=True)
    for part in ("train", "test"):
        coarse, fine, pixels = content_of_hundred(part)
        if is_binary:
            labels = np.stack([coarse, fine], axis=1).astype(np.uint8)
            (folder / f"{part}.bin").write_bytes(np.hstack([labels, pixels]).tobytes())
        else:
            batch = {"coarse_labels": coarse.tolist(), "fine_labels": fine.tolist()}
            (folder / part).write_bytes(pickle.dumps({**batch, "data": pixels}, 2))


@pytest.mark.parametrize("is_binary", [True, False], ids=["binary", "python"])
@pytest.mark.parametrize("published", [True, False])
def test_a_hundred_classes_are_the_fine_ones(tmp_path: Path, is_binary, published) -> None:
    version = "binary" if is_binary else "python"
    folder = tmp_path / f"cifar-100-{version}" if published else tmp_path / "here"
    write_hundred(folder, is_binary)
    training, validation = cifar.open_set(HUNDRED, tmp_path if published else folder)
    for dataset, part in ((training, "train"), (validation, "test")):
        _, fine, pixels = content_of_hundred(part)
        assert len(dataset) == COUNT and dataset.num_classes == 100
        assert [dataset.decoded(index)[1] for index in range(COUNT)] == fine.tolist()
        expected = pixels[7].reshape(3, 32, 32).transpose(1, 2, 0)
        np.testing.assert_array_equal(dataset.decoded(7)[0], expected)


def test_the_files_of_one_set_are_not_taken_for_the_other(tmp_path: Path) -> None:
    write_hundred(tmp_path / "cifar-100-binary", is_binary=True)
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


def assert_packed(training, validation, images: int) -> None:
    assert len(training) == len(validation) == images
    assert training.num_classes == validation.num_classes == 10
    image, label = training.decoded(images - 1)
    assert label == 9 and image.shape == (32, 32, 3) and image[0, 0].tolist() == [9, 0, 1]


@pytest.mark.parametrize(
    ("train", "test"),
    [
        # Of Grouping-SGD, of MXNet's own examples, and others that are likely.
        ("train.rec", "test.rec"),
        ("cifar10_train.rec", "cifar10_val.rec"),
        ("cifar10_train.rec", "cifar10_test.rec"),
        ("train.rec", "val.rec"),
    ],
)
def test_record_files(tmp_path: Path, train: str, test: str) -> None:
    for name in (train, test):
        write_records(tmp_path / name)
    assert_packed(*cifar.open_set(CIFAR10, tmp_path), images=20)
    files = [tmp_path / name for name in (train, test)]
    assert_packed(*cifar.open_record_files(CIFAR10, *files), images=20)
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


def test_record_files_that_data_pack_has_made_of_folders(tmp_path: Path) -> None:
    """As docs/data.md types it."""
    for part in ("train", "test"):
        write_folders(tmp_path / "cifar10" / part)
        out = tmp_path / "packed" / f"{part}.rec"
        words = ["data.pack", tmp_path / "cifar10" / part, out, "--png"]
        line = [sys.executable, "-m", *map(str, words)]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert_packed(*cifar.open_set(CIFAR10, tmp_path / "packed"), images=20)


def write_folders(part: Path) -> None:
    for label in range(10):
        (part / f"class{label}").mkdir(parents=True)
        for number in range(2):
            path = part / f"class{label}" / f"{number}.png"
            path.write_bytes(encoded(label, number))


@pytest.mark.parametrize("test", ["test", "val"])
def test_folders_with_a_folder_per_class(tmp_path: Path, test: str) -> None:
    for part in ("train", test):
        write_folders(tmp_path / part)
    assert_packed(*cifar.open_set(CIFAR10, tmp_path), images=20)
    assert cifar.files_of(CIFAR10, tmp_path) == [tmp_path / "train", tmp_path / test]


def test_a_third_folder_is_named(tmp_path: Path) -> None:
    for part in ("train", "test", "val"):
        write_folders(tmp_path / part)
    _, validation = cifar.open_set(CIFAR10, tmp_path)
    assert [*validation.left_out] == [f"{tmp_path}/val: left out, as {tmp_path}/test is there"]


@pytest.mark.parametrize(
    ("classes", "side", "message"),
    [
        (9, 32, "train.rec has 9 classes, not the 10 of CIFAR-10; .*imagenet reads any"),
        (11, 32, "train.rec has 11 classes, not the 10 of CIFAR-10"),
        (10, 28, "train.rec: record 1 is an image of 28 x 28, not of the 32 x 32 of CIFAR-10; "),
    ],
)
def test_record_files_of_another_set(tmp_path: Path, classes, side, message: str) -> None:
    for name in ("train.rec", "test.rec"):
        write_records(tmp_path / name, classes, side)
    with pytest.raises(DataError, match=message) as caught:
        cifar.open_record_files(CIFAR10, tmp_path / "train.rec", tmp_path / "test.rec")
    assert "\n" not in str(caught.value)


def test_a_missing_record_file(tmp_path: Path) -> None:
    write_records(tmp_path / "a.rec")
    with pytest.raises(DataError, match=r"b\.rec does not exist; CIFAR-10 as record files.*im2rec"):
        cifar.open_record_files(CIFAR10, tmp_path / "a.rec", tmp_path / "b.rec")


def test_the_real_images_in_folders(toolkit_data: Path, tmp_path: Path) -> None:
    """Three of each class and part, as JPEGs."""
    with tarfile.open(toolkit_data / "cifar10_jpeg.tar.gz") as archive:
        counted: Counter[str] = Counter()
        for member in archive:
            place = str(Path(member.name).parent)
            if member.isfile() and counted[place] < 3:
                counted[place] += 1
                target = tmp_path / Path(*Path(member.name).parts[-3:])
                target.parent.mkdir(parents=True, exist_ok=True)
                content = archive.extractfile(member)
                assert content is not None
                target.write_bytes(content.read())
            if len(counted) == 20 and set(counted.values()) == {3}:
                break
    training, validation = cifar.open_set(CIFAR10, tmp_path)
    assert len(training) == len(validation) == 30
    labels = [training.decoded(index)[1] for index in range(30)]
    assert labels == [label for label in range(10) for _ in range(3)]
