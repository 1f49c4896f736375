from __future__ import annotations

import dataclasses
import gzip
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Optional
from unittest.mock import Mock, call

import cv2
import numpy as np
import pytest

from data import contents
from data.images import cifar, class_files, mnist
from data.images.image_set import ImagesInMemory
from data.images.transforms import CenterCrop, MiddleCrop, PadCropFlip, RandomResizedCrop, Unchanged
from runtime.errors import ConfigError, DataError
from tests.support import foreign_records
from training.config.images import parse
from training.image_data import ImageData, open_images


def opened(line: str) -> ImageData:
    config = parse(line.split())
    return open_images(config.data, config.run.seed)


def gray(count: int, side: int, channels: int) -> ImagesInMemory:
    """Images of the one color of their number."""
    numbers = np.arange(count, dtype=np.uint8)[:, None, None, None]
    images = np.broadcast_to(numbers, (count, side, side, channels))
    return ImagesInMemory(images, (np.arange(count) % 10).astype(np.uint8), 10)


def test_drawn_images() -> None:
    line = "--dataset synthetic --image-size 16 --num-images 57 --num-classes 7 --seed"
    dataset = opened(f"{line} 3")
    assert (len(dataset.training), len(dataset.validation)) == (57, 11)
    assert dataset.num_classes == dataset.validation.num_classes == 7
    assert dataset.shape == (3, 16, 16) and not dataset.files
    assert dataset.normalization == ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    for transform in (dataset.training_transform, dataset.validation_transform):
        assert isinstance(transform, Unchanged)
    first, validation = dataset.training.decoded(4), dataset.validation.decoded(4)
    assert first[0].shape == (16, 16, 3) and (first[0] != validation[0]).any()
    assert (opened(f"{line} 4").training.decoded(4)[0] != first[0]).any()
    assert len(opened("--dataset synthetic --num-images 3 --image-size 16").validation) == 1


def test_mnist(monkeypatch) -> None:
    read = Mock(return_value=gray(9, 28, 1))
    monkeypatch.setattr(mnist, "read", read)
    folder = Path("/there")
    dataset = opened("--dataset mnist --data-dir /there")
    assert read.mock_calls[:2] == [call(folder, "training"), call(folder, "validation")]
    assert (dataset.shape, dataset.normalization) == ((1, 28, 28), ((0.1307,), (0.3081,)))
    assert dataset.files == mnist.files_of(folder)
    for transform in (dataset.training_transform, dataset.validation_transform):
        assert isinstance(transform, Unchanged)


SETS = (gray(8, 32, 3), gray(4, 32, 3))
RECORDS, D = (Path("a.rec"), Path("b.rec")), Path("d")
RECORD_FILES = [*map(Path, ("a.rec", "a.idx", "b.rec", "b.idx", "property"))]
CIFAR10, CIFAR100 = cifar.SETS["cifar10"], cifar.SETS["cifar100"]


@pytest.mark.parametrize(
    ("name", "function", "arguments", "files"),
    [
        ("cifar10", "open_record_files", (CIFAR10, *RECORDS), RECORD_FILES),
        ("cifar100", "open_set", (CIFAR100, D), cifar.files_of(CIFAR100, D)),
        ("imagenet", "open_records", RECORDS, RECORD_FILES),
        ("imagenet", "open_folders", (D / "train", D / "val"), (D / "train", D / "val")),
    ],
)
def test_folders_and_records(name: str, function: str, arguments, files, monkeypatch) -> None:
    is_imagenet = name == "imagenet"
    opens, size = Mock(return_value=SETS), 96 if is_imagenet else 32
    monkeypatch.setattr(class_files if is_imagenet else cifar, function, opens)
    words = "--rec-train a.rec --rec-val b.rec" if "record" in function else "--data-dir d"
    dataset = opened(f"--dataset {name} --image-size {size} {words}")
    opens.assert_called_once_with(*arguments)
    assert (dataset.training, dataset.validation) == SETS and dataset.shape == (3, size, size)
    assert {*dataset.files} == {*files}
    transforms = dataset.training_transform, dataset.validation_transform
    if is_imagenet:
        assert dataset.normalization == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        assert transforms == (RandomResizedCrop(96), CenterCrop(96))
    else:
        assert arguments[0].stem == name
        assert dataset.normalization == ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
        assert transforms[0] == PadCropFlip(padding=4) and isinstance(transforms[1], Unchanged)


def test_crops_of_cifar(monkeypatch) -> None:
    monkeypatch.setattr(cifar, "open_set", lambda *words: SETS)
    line = "--dataset cifar10 --data-dir d --image-size"
    dataset = opened(f"{line} 28")
    assert dataset.shape == (3, 28, 28)
    assert dataset.training_transform == PadCropFlip(padding=0, size=28)
    assert dataset.validation_transform == MiddleCrop(28)
    with pytest.raises(ConfigError, match="--image-size 33 is larger than the images of CIFAR-10"):
        opened(f"{line} 33")


@pytest.fixture
def small() -> ImageData:
    dataset = opened("--dataset synthetic --image-size 16 --num-images 30")
    return dataclasses.replace(dataset, training=gray(30, 16, 3), validation=gray(11, 16, 3))


def test_examples_are_all_or_the_first_so_many(small: ImageData) -> None:
    for options, count in (("", 30), ("--num-examples 30", 30), ("--num-examples 7", 7)):
        assert small.num_examples(parse(f"--dataset synthetic {options}".split()).data) == count
    with pytest.raises(DataError, match="--num-examples 31 is more than the 30 images"):
        small.num_examples(parse("--dataset synthetic --num-examples 31".split()).data)


def test_every_image_is_validated_once_over_the_ranks(small: ImageData) -> None:
    data, found = parse("--dataset synthetic --batch-size 4".split()).data, []
    for rank in (0, 1):
        for batch in small.validation_batches(data, SimpleNamespace(rank=rank, size=2)):
            assert batch.images.shape == (4, 3, 16, 16)
            found += batch.images[batch.labels >= 0, 0, 0, 0].tolist()
    assert sorted(found) == list(range(11))


def difference(before: str, now: str) -> Optional[tuple[bool, str]]:
    old, new = (opened(line).compared_images for line in (before, now))
    assert old is not None and new is not None
    return contents.find_difference(new, contents.describe(new), contents.describe(old))


OTHERS = "120 images there, 120 here, of which some are others"


def test_drawn_images_are_compared() -> None:
    line = "--dataset synthetic --image-size 16 --num-classes 7 --num-images 120"
    for change, expected in (
        ("--threads 3 --batch-size 2", None),
        ("--num-images 130", (True, "120 images there, 130 here")),
        ("--seed 2", (False, OTHERS)),
        ("--image-size 17", (False, OTHERS)),
    ):
        assert difference(line, f"{line} {change}") == expected


def write_mnist(folder: Path, count: int, first: int = 0, end: str = "") -> str:
    folder.mkdir()
    for name, shown in (("train", np.arange(first, first + count)), ("t10k", np.arange(1))):
        pixels = np.broadcast_to(shown[:, None, None], (len(shown), 28, 28))
        for kind, array in (("images-idx3", pixels), ("labels-idx1", shown % 10)):
            head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
            content = head + array.astype(np.uint8).tobytes()
            path = folder / f"{name}-{kind}-ubyte{end}"
            path.write_bytes(gzip.compress(content) if end else content)
    return f"--dataset mnist --data-dir {folder}"


def write_cifar(folder: Path, count: int, first: int = 0) -> str:
    """CIFAR-10's record files; with another ``first`` all images are others."""
    foreign_records.write_cifar(folder, count, 10, seed=1 + first)
    return f"--dataset cifar10 --data-dir {folder}"


def write_folders(folder: Path, count: int, first: int = 0) -> str:
    """Images of three classes, in the form of ImageNet."""
    for part in ("train", "val"):
        for number in range(count):
            path = folder / f"{part}/class{number % 3}/{number:03}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), np.full((9, 9, 3), first + number, np.uint8))
    return f"--dataset imagenet --image-size 8 --data-dir {folder}"


@pytest.mark.parametrize("write", [write_mnist, write_cifar, write_folders])
def test_images_in_files_are_compared(write: Callable[..., str], tmp_path: Path) -> None:
    old, moved = (write(tmp_path / name, 120) for name in ("old", "moved"))
    assert difference(old, moved) is None
    assert difference(old, write(tmp_path / "more", 126)) == (True, "120 images there, 126 here")
    other = write(tmp_path / "other", 120, 90)
    assert difference(old, other) == (False, OTHERS)


def test_forms_and_files_that_no_sample_has_are_compared(tmp_path: Path) -> None:
    old, packed = write_mnist(tmp_path / "m", 120), write_mnist(tmp_path / "z", 120, end=".gz")
    assert difference(old, packed) is None
    cifar_line = write_cifar(tmp_path / "c", 70)
    named = f"--dataset cifar10 --rec-train {tmp_path}/c/train.rec --rec-val {tmp_path}/c/test.rec"
    assert difference(cifar_line, named) is None
    path = shutil.copytree(tmp_path / "m", tmp_path / "label") / "train-labels-idx1-ubyte"
    labels = bytearray(path.read_bytes())
    labels[-2] = 9 - labels[-2]
    path.write_bytes(labels)
    assert difference(old, f"--dataset mnist --data-dir {tmp_path}/label") == (False, OTHERS)
    # Another name, and another size.
    folders, changed = (write_folders(tmp_path / name, 120) for name in ("f", "g"))
    path = tmp_path / "g/train/class1/007.png"
    for change in (
        lambda: path.rename(path.with_name("0071.png")),
        lambda: path.with_name("0071.png").rename(path).write_bytes(b"other"),
    ):
        change()
        assert difference(folders, changed) == (False, OTHERS)


def test_a_set_that_cannot_say_what_it_has_is_not_compared(small: ImageData) -> None:
    bare = SimpleNamespace(decoded=small.training.decoded)
    assert dataclasses.replace(small, training=bare).compared_images is None
