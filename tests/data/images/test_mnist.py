from __future__ import annotations

import gzip
import io
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from data.images import mnist
from runtime.errors import DataError

NAMES = {"training": "train", "validation": "t10k"}


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(f">{1 + array.ndim}I", 0x0800 | array.ndim, *array.shape)
    return header + array.tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    for part, count in (("training", 20), ("validation", 7)):
        images = rng.integers(0, 256, (count, 28, 28), np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        (tmp_path / f"{NAMES[part]}-images-idx3-ubyte").write_bytes(idx(images))
        packed = gzip.compress(idx(labels))
        (tmp_path / f"{NAMES[part]}-labels-idx1-ubyte.gz").write_bytes(packed)
    return tmp_path


def test_plain_and_compressed_files(folder: Path) -> None:
    dataset = mnist.read(folder, "training")
    image, label = dataset.decoded(13)
    expected = np.random.default_rng(1).integers(0, 256, (20, 28, 28), np.uint8)[13]
    assert len(dataset) == 20 and dataset.num_classes == 10 and label == 3
    np.testing.assert_array_equal(image, expected[..., None])
    assert len(mnist.read(folder, "validation")) == 7


def test_its_files_in_both_forms(folder: Path) -> None:
    assert len(mnist.files_of(folder)) == 8 and {*folder.iterdir()} < {*mnist.files_of(folder)}


def test_an_image_is_the_callers_own(folder: Path) -> None:
    dataset = mnist.read(folder, "training")
    dataset.decoded(0)[0][:] = 0
    assert dataset.decoded(0)[0].any()


def test_missing_files_are_named_with_their_publication(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="train-images-idx3-ubyte.*t10k-labels.*MNIST Database"):
        mnist.read(tmp_path, "training")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: content[:-100], "truncated"),
        (lambda content: content[:3], "no IDX file"),
        (lambda content: b"\0\0\x0d\x03" + content[4:], "no IDX file"),
        (lambda content: idx(np.zeros((20, 4, 4), np.uint8)), "not MNIST"),
        (lambda content: idx(np.zeros((19, 28, 28), np.uint8)), "not MNIST"),
    ],
)
def test_a_damaged_file_is_one_line(folder: Path, damage, words: str) -> None:
    path = folder / "train-images-idx3-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=words) as caught:
        mnist.read(folder, "training")
    assert path.name in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("cut", [5, 30])
def test_a_truncated_compressed_file(folder: Path, cut: int) -> None:
    path = folder / "train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(DataError, match=r"labels-idx1-ubyte\.gz cannot be read"):
        mnist.read(folder, "training")


def bomb(header: bytes, size: int) -> bytes:
    """A compressed file of a header and many zeros, some thousandth of what it unpacks to."""
    packed = io.BytesIO()
    with gzip.open(packed, "wb", compresslevel=9) as file:
        file.write(header)
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))
    return packed.getvalue()


def header(*shape: int) -> bytes:
    return struct.pack(f">{1 + len(shape)}I", 0x0800 | len(shape), *shape)


@pytest.mark.parametrize(
    ("promise", "words"),
    [
        (header(20, 28, 28), "more bytes than the 15696"),
        (header(1 << 20, 28, 28), "1048576 x 28 x 28 bytes, more than the 219,520,000"),
        (header(2**32 - 1, 2**32 - 1, 2**32 - 1), "unpack it yourself"),
        (header(20), "no IDX file of 3 dimensions"),
        (b"", "no IDX file of 3 dimensions"),
    ],
)
def test_a_compressed_file_is_unpacked_as_far_as_its_header_promises(
    folder: Path, promise: bytes, words: str
) -> None:
    (folder / "train-images-idx3-ubyte").unlink()
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(bomb(promise, 100 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=words) as caught:
            mnist.read(folder, "training")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    assert most < 4 << 20


def test_a_plain_file_may_have_any_size(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading it needs no more memory than its size."""
    monkeypatch.setattr(mnist, "_MAX_UNPACKED", 100)
    assert len(mnist.read(folder, "training")) == 20


def test_a_compressed_file_of_many_images(folder: Path) -> None:
    """As those of EMNIST, read in one piece."""
    (folder / "train-images-idx3-ubyte").unlink()
    images = np.random.default_rng(1).integers(0, 256, (20, 28, 28), np.uint8)
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
    dataset = mnist.read(folder, "training")
    read = np.stack([dataset.decoded(index)[0] for index in range(20)])
    np.testing.assert_array_equal(read[..., 0], images)


def test_labels_of_another_set(folder: Path) -> None:
    (folder / "train-labels-idx1-ubyte.gz").unlink()
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(np.full(20, 10, np.uint8)))
    with pytest.raises(DataError, match="0 to 9"):
        mnist.read(folder, "training")


def test_the_published_files(toolkit_data: Path) -> None:
    training = mnist.read(toolkit_data / "mnist", "training")
    validation = mnist.read(toolkit_data / "mnist", "validation")
    assert (len(training), len(validation)) == (60_000, 10_000)
    assert [training.decoded(i)[1] for i in range(5)] == [5, 0, 4, 1, 9]
