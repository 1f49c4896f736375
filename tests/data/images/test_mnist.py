from __future__ import annotations

import gzip
import io
import struct
import tracemalloc
from pathlib import Path
from typing import Optional

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
    assert len(mnist.files_of(folder)) == 8 and {*folder.iterdir()} < {*mnist.files_of(folder)}
    assert len(mnist.read(folder, "validation")) == 7
    expected = np.random.default_rng(1).integers(0, 256, (20, 28, 28), np.uint8)
    for is_compressed in (False, True):
        if is_compressed:
            (folder / "train-images-idx3-ubyte").unlink()
            packed = gzip.compress(idx(expected))
            (folder / "train-images-idx3-ubyte.gz").write_bytes(packed)
        dataset = mnist.read(folder, "training")
        assert len(dataset) == 20 and dataset.num_classes == 10 and dataset.decoded(13)[1] == 3
        for number in range(20):
            image, _ = dataset.decoded(number)
            np.testing.assert_array_equal(image, expected[number, ..., None])
            # It is the caller's own.
            image[:] = 0
            assert dataset.decoded(number)[0].any()


def test_missing_files_are_named_with_their_publication(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="train-images-idx3-ubyte.*t10k-labels.*MNIST Database"):
        mnist.read(tmp_path, "training")


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        (IMAGES, lambda content: content[:-100], "truncated"),
        (IMAGES, lambda content: content[:3], "no IDX file"),
        (IMAGES, lambda content: b"\0\0\x0d\x03" + content[4:], "no IDX file"),
        (IMAGES, lambda _: idx(np.zeros((20, 4, 4), np.uint8)), "not MNIST"),
        (IMAGES, lambda _: idx(np.zeros((19, 28, 28), np.uint8)), "not MNIST"),
        (f"{LABELS}.gz", lambda content: content[:-5], "cannot be read"),
        (f"{LABELS}.gz", lambda content: content[:-30], "cannot be read"),
        (f"{LABELS}.gz", lambda _: gzip.compress(idx(np.full(20, 10, np.uint8))), "0 to 9"),
    ],
)
def test_a_damaged_file_is_one_line(folder: Path, name: str, damage, words: str) -> None:
    path = folder / name
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=words) as caught:
        mnist.read(folder, "training")
    assert path.name in str(caught.value)
    assert "\n" not in str(caught.value)


def bomb(header: bytes, size: int) -> bytes:
    """A compressed file of a header and many zeros, some thousandth of what it unpacks to."""
    packed = io.BytesIO()
    with gzip.open(packed, "wb", compresslevel=9) as file:
        file.write(header)
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))
    return packed.getvalue()


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((20, 28, 28), "more bytes than the 15696"),
        ((1 << 20, 28, 28), "1048576 x 28 x 28 bytes, more than the 219,520,000"),
        ((2**32 - 1, 2**32 - 1, 2**32 - 1), "unpack it yourself"),
        ((20,), "no IDX file of 3 dimensions"),
        (None, "no IDX file of 3 dimensions"),
    ],
)
def test_a_compressed_file_is_unpacked_as_far_as_its_header_promises(
    folder: Path, shape: Optional[tuple[int, ...]], words: str
) -> None:
    (folder / IMAGES).unlink()
    path = folder / f"{IMAGES}.gz"
    header = b""
    if shape is not None:
        header = struct.pack(f">{1 + len(shape)}I", 0x0800 | len(shape), *shape)
    path.write_bytes(bomb(header, 100 << 20))
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


def test_the_published_files(toolkit_data: Path) -> None:
    training = mnist.read(toolkit_data / "mnist", "training")
    validation = mnist.read(toolkit_data / "mnist", "validation")
    assert (len(training), len(validation)) == (60_000, 10_000)
    assert [training.decoded(i)[1] for i in range(5)] == [5, 0, 4, 1, 9]
