from __future__ import annotations

import gzip
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from data.images import mnist
from runtime.errors import DataError

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def idx(array: np.ndarray) -> bytes:
    return idx_header(*array.shape) + array.tobytes()


def idx_header(*shape: int) -> bytes:
    return struct.pack(f">{1 + len(shape)}I", 0x0800 | len(shape), *shape)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    for part, count in (("train", 20), ("t10k", 7)):
        images = rng.integers(0, 256, (count, 28, 28), np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(idx(images))
        (tmp_path / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    return tmp_path


def test_plain_and_compressed_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain file may have any size: reading it needs no more memory."""
    monkeypatch.setattr(mnist, "_MAX_UNPACKED", 20 * 28 * 28)
    assert len(mnist.files_of(folder)) == 8 and {*folder.iterdir()} < {*mnist.files_of(folder)}
    assert len(mnist.read(folder, "validation")) == 7
    expected = np.random.default_rng(1).integers(0, 256, (20, 28, 28), np.uint8)
    for is_compressed in (False, True):
        if is_compressed:
            (folder / IMAGES).unlink()
            (folder / f"{IMAGES}.gz").write_bytes(gzip.compress(idx(expected)))
        dataset = mnist.read(folder, "training")
        assert len(dataset) == 20 and dataset.num_classes == 10 and dataset.decoded(13)[1] == 3
        for number in range(20):
            image, _ = dataset.decoded(number)
            np.testing.assert_array_equal(image, expected[number, ..., None])
            # It is the caller's own.
            image[:] = 0
            assert dataset.decoded(number)[0].any()


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        (IMAGES, None, "train-images-idx3-ubyte.*t10k-labels.*MNIST Database"),
        (IMAGES, lambda content: content[:-100], "truncated"),
        (IMAGES, lambda content: b"\0\0\x0d\x03" + content[4:], "no IDX file"),
        (IMAGES, lambda _: idx(np.zeros((20, 4, 4), np.uint8)), "not MNIST"),
        (IMAGES, lambda _: idx(np.zeros((19, 28, 28), np.uint8)), "not MNIST"),
        (f"{LABELS}.gz", lambda content: content[:-5], "cannot be read"),
        (f"{LABELS}.gz", lambda _: gzip.compress(idx(np.full(20, 10, np.uint8))), "0 to 9"),
    ],
)
def test_a_missing_or_damaged_file_is_one_line(folder: Path, name: str, damage, words) -> None:
    path = folder / name
    content = path.read_bytes()
    path.unlink()
    if damage is not None:
        path.write_bytes(damage(content))
    with pytest.raises(DataError, match=words) as caught:
        mnist.read(folder, "training")
    assert path.name in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (idx_header(20, 28, 28), "more bytes than the 15696"),
        (idx_header(1 << 20, 28, 28), "1048576 x 28 x 28 bytes, more than the 219,520,000"),
        (idx_header(2**32 - 1, 2**32 - 1, 2**32 - 1), "unpack it yourself"),
        (idx_header(20), "no IDX file of 3 dimensions"),
    ],
)
def test_a_compressed_file_is_unpacked_as_far_as_its_header_promises(
    folder: Path, header: bytes, words: str
) -> None:
    (folder / IMAGES).unlink()
    path = folder / f"{IMAGES}.gz"
    path.write_bytes(gzip.compress(header + bytes(50 << 20), 1))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=words) as caught:
            mnist.read(folder, "training")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value) and most < 4 << 20


def test_the_published_files(toolkit_data: Path) -> None:
    training = mnist.read(toolkit_data / "mnist", "training")
    assert (len(training), len(mnist.read(toolkit_data / "mnist", "validation"))) == (60000, 10000)
    assert [training.decoded(i)[1] for i in range(5)] == [5, 0, 4, 1, 9]
