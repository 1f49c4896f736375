from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from data.images import cifar10
from runtime.errors import DataError

FILES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
COUNT = 20
PUBLISHED_COUNT = cifar10._IMAGES_PER_FILE


@pytest.fixture(autouse=True)
def small_files(monkeypatch) -> None:
    monkeypatch.setattr(cifar10, "_IMAGES_PER_FILE", COUNT)


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
    training, validation = (cifar10.read(folder, part) for part in ("training", "validation"))
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
    assert len(written) == 12 and written < {*cifar10.files_of(tmp_path)}


def test_the_folders_in_which_they_are_published(tmp_path: Path) -> None:
    write_python(tmp_path / "cifar-10-batches-py")
    assert_is_the_set(tmp_path)


def test_missing_files_are_named_with_their_publication(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data_batch_1 .*test_batch.*cs\.toronto\.edu"):
        cifar10.read(tmp_path, "training")
    write_binary(tmp_path)
    (tmp_path / "data_batch_4.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_4\.bin does not exist"):
        cifar10.read(tmp_path, "training")


@pytest.mark.parametrize("change", [-1, 1, -3073, 3073])
def test_a_binary_file_of_the_wrong_length(tmp_path: Path, change: int) -> None:
    write_binary(tmp_path)
    path = tmp_path / "data_batch_2.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:change] if change < 0 else whole + whole[:change])
    with pytest.raises(DataError, match=r"data_batch_2\.bin has \d+ bytes.*copy it again"):
        cifar10.read(tmp_path, "training")


@pytest.mark.parametrize("label", [-1, 10])
def test_an_impossible_label_of_the_python_version(tmp_path: Path, label: int) -> None:
    write_python(tmp_path)
    labels, pixels = content(5)
    wrong = {"labels": [label, *labels.tolist()[1:]], "data": pixels.tobytes()}
    (tmp_path / FILES[5]).write_bytes(pickle.dumps(wrong, 2))
    with pytest.raises(DataError, match=f"{FILES[5]} has label {label}, but there are 0 to 9"):
        cifar10.read(tmp_path, "validation")


@pytest.mark.parametrize("label", [10, 255])
def test_a_binary_file_with_an_impossible_label(tmp_path: Path, label: int) -> None:
    write_binary(tmp_path)
    path = tmp_path / "test_batch.bin"
    content = bytearray(path.read_bytes())
    content[3073 * 4] = label
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"test_batch.bin has label {label}, but there are 0 to 9"):
        cifar10.read(tmp_path, "validation")


def test_a_published_file_has_10000_images() -> None:
    assert PUBLISHED_COUNT == 10_000


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"data": np.zeros((COUNT - 1, 3072), np.uint8), "labels": [0] * COUNT}, "bytes of pixels"),
        ({"data": np.zeros((COUNT, 3072), np.uint8), "labels": [0]}, "and 1 labels"),
        ({"data": np.zeros((COUNT, 3072), np.uint8), "labels": [10] * COUNT}, "0 to 9"),
        ({"data": np.zeros((COUNT, 3072), np.uint8), "labels": [-1] * COUNT}, "0 to 9"),
        ({"data": np.zeros((COUNT, 3072), np.uint8), "labels": [1 << 70]}, "no CIFAR-10 batch"),
        ({"data": np.zeros((COUNT, 3072)), "labels": [0] * COUNT}, "no CIFAR-10 batch"),
        ({"data": np.asfortranarray(np.zeros((COUNT, 3072), np.uint8)), "labels": []}, "Fortran"),
        ({"labels": [0] * COUNT}, "no CIFAR-10 batch"),
        ([1, 2], "no CIFAR-10 batch"),
    ],
)
def test_other_pickles(tmp_path: Path, batch, words: str) -> None:
    write_python(tmp_path)
    (tmp_path / "test_batch").write_bytes(pickle.dumps(batch, 2))
    with pytest.raises(DataError, match=words) as caught:
        cifar10.read(tmp_path, "validation")
    assert "test_batch" in str(caught.value) and "\n" not in str(caught.value)


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
        cifar10.read(tmp_path, "validation")
    assert not trace.exists()


@pytest.mark.parametrize("cut", [10, 1000, -10])
def test_a_truncated_pickle(tmp_path: Path, cut: int) -> None:
    write_python(tmp_path)
    path = tmp_path / "test_batch"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match="test_batch is no CIFAR-10 batch"):
        cifar10.read(tmp_path, "validation")
