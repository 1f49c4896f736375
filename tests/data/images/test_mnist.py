from __future__ import annotations

import gzip
import struct
import tracemalloc

import numpy as np
import pytest

from data.images import mnist
from tests.support.sets import assert_refused

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte.gz"
DIGITS = np.random.default_rng(1).integers(0, 256, (20, 28, 28), np.uint8)


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
    """A plain file may have any size: reading it needs no more memory."""
    monkeypatch.setattr(mnist, "_MAX_UNPACKED", 20 * 28 * 28)
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
            # It is the caller's own.
            image[:] = 0
            assert dataset.decoded(number)[0].any()


@pytest.mark.parametrize(("name", "damage", "words"), [
    (IMAGES, None, ".*t10k-labels.*MNIST Database"),
    (IMAGES, lambda content: content[:-100], ".*truncated"),
    (IMAGES, lambda content: b"\0\0\x0d\x03" + content[4:], ".*no IDX file"),
    (IMAGES, lambda _: idx(np.zeros((20, 4, 4))), ".*not MNIST"),
    (IMAGES, lambda _: idx(np.zeros((19, 28, 28))), ".*not MNIST"),
    (LABELS, lambda content: content[:-5], ".*cannot be read"),
    (LABELS, lambda _: gzip.compress(idx(np.full(20, 10))), ".*0 to 9"),
])  # fmt: skip
def test_a_missing_or_damaged_file_is_one_line(folder, name: str, damage, words: str) -> None:
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    if damage is not None:
        (folder / name).write_bytes(damage(content))
    assert_refused(name + words, mnist.read, folder, "training")


@pytest.mark.parametrize(("begin", "words"), [
    (header(20, 28, 28), "more bytes than the 15696"),
    (header(1 << 20, 28, 28), "1048576 x 28 x 28 bytes, more than the 219,520,000"),
    (header(2**32 - 1, 2**32 - 1, 2**32 - 1), "unpack it yourself"),
    (header(20), "no IDX file of 3 dimensions"),
])  # fmt: skip
def test_a_compressed_file_is_unpacked_as_far_as_its_header_promises(folder, begin, words) -> None:
    (folder / IMAGES).unlink()
    (folder / f"{IMAGES}.gz").write_bytes(gzip.compress(begin + bytes(50 << 20), 1))
    tracemalloc.start()
    try:
        assert_refused(rf"{folder}/{IMAGES}\.gz .*{words}", mnist.read, folder, "training")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 4 << 20


def test_the_published_files(toolkit_data) -> None:
    training = mnist.read(toolkit_data / "mnist", "training")
    assert (len(training), len(mnist.read(toolkit_data / "mnist", "validation"))) == (60000, 10000)
    assert [training.decoded(i)[1] for i in range(5)] == [5, 0, 4, 1, 9]
