"""The data sets of classifiers: which images, which shape, and what is done to them."""

from __future__ import annotations

import dataclasses
import gzip
import shutil
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Optional

import cv2
import numpy as np
import pytest

from data import contents
from data.batches.epoch_part import EpochPart
from data.batches.loader import Prefetcher
from data.images import cifar, imagenet, mnist
from data.images.image_set import ImageSet, ImagesInMemory
from data.images.transforms import (
    CenterCrop,
    MiddleCrop,
    PadCropFlip,
    RandomResizedCrop,
    Unchanged,
)
from runtime.errors import ConfigError, DataError
from tests.support import cifar_records
from training import image_data
from training.config.images import ImageConfig, parse
from training.image_data import ImageData, open_images


def opened(config: ImageConfig) -> ImageData:
    return open_images(config.data, config.run.seed)


def gray(count: int, side: int, channels: int) -> ImagesInMemory:
    """Images of the one color of their number."""
    numbers = np.arange(count, dtype=np.uint8)[:, None, None, None]
    images = np.broadcast_to(numbers, (count, side, side, channels))
    return ImagesInMemory(images, (np.arange(count) % 10).astype(np.uint8), 10)


def test_drawn_images() -> None:
    line = "--dataset synthetic --image-size 16 --num-images 57 --num-classes 7 --seed 3"
    dataset = opened(parse(line.split()))
    assert (len(dataset.training), len(dataset.validation)) == (57, 11)
    assert dataset.num_classes == dataset.validation.num_classes == 7
    assert not dataset.files
    assert dataset.shape == (3, 16, 16)
    assert dataset.normalization == ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    transforms = (dataset.training_transform, dataset.validation_transform)
    assert all(isinstance(transform, Unchanged) for transform in transforms)
    first, validation = dataset.training.decoded(4), dataset.validation.decoded(4)
    assert first[0].shape == (16, 16, 3) and (first[0] != validation[0]).any()
    other = opened(parse([*line.split()[:-1], "4"]))
    assert (other.training.decoded(4)[0] != first[0]).any(), "--seed has not arrived"


def test_few_drawn_images_have_one_for_validation() -> None:
    config = parse("--dataset synthetic --num-images 3 --image-size 16".split())
    assert len(opened(config).validation) == 1


def test_sets_in_files(monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(
        mnist, "read", lambda folder, part: asked.append((folder, part)) or gray(9, 28, 1)
    )
    dataset = opened(parse(["--dataset", "mnist", "--data-dir", "/there"]))
    assert asked == [(Path("/there"), "training"), (Path("/there"), "validation")]
    assert dataset.shape == (1, 28, 28)
    assert dataset.normalization == ((0.1307,), (0.3081,))
    assert dataset.files == mnist.files_of(Path("/there"))
    assert isinstance(dataset.training_transform, Unchanged)
    assert isinstance(dataset.validation_transform, Unchanged)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("reads_records", [True, False])
def test_cifar(name: str, reads_records: bool, monkeypatch) -> None:
    asked = []
    sets = (gray(8, 32, 3), gray(4, 32, 3))
    for function in ("open_set", "open_record_files"):
        monkeypatch.setattr(cifar, function, lambda *words: asked.append(words) or sets)
    words = ["--rec-train", "a.rec", "--rec-val", "b.rec"] if reads_records else ["--data-dir", "d"]
    dataset = opened(parse(["--dataset", name, *words]))
    paths = (Path("a.rec"), Path("b.rec")) if reads_records else (Path("d"),)
    assert asked == [(cifar.SETS[name], *paths)] and asked[0][0].stem == name
    assert (dataset.training, dataset.validation) == sets and dataset.shape == (3, 32, 32)
    assert dataset.normalization == ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
    assert dataset.training_transform == PadCropFlip(padding=4)
    assert isinstance(dataset.validation_transform, Unchanged)
    if reads_records:
        files = [Path(f"{name}.{end}") for name in "ab" for end in ("rec", "idx")]
        assert set(dataset.files) == {*files, Path("property")}
    else:
        assert dataset.files == cifar.files_of(cifar.SETS[name], Path("d"))


def test_crops_of_cifar(monkeypatch) -> None:
    sets = (gray(8, 32, 3), gray(4, 32, 3))
    monkeypatch.setattr(cifar, "open_set", lambda *words: sets)
    line = ["--dataset", "cifar10", "--data-dir", "d", "--image-size"]
    dataset = opened(parse([*line, "28"]))
    assert dataset.shape == (3, 28, 28)
    assert dataset.training_transform == PadCropFlip(padding=0, size=28)
    assert dataset.validation_transform == MiddleCrop(28)
    with pytest.raises(ConfigError, match="--image-size 33 is larger than the images of CIFAR-10"):
        opened(parse([*line, "33"]))


@pytest.mark.parametrize("reads_records", [True, False])
def test_imagenet(reads_records: bool, monkeypatch) -> None:
    asked = []
    sets = (gray(8, 9, 3), gray(4, 9, 3))
    monkeypatch.setattr(imagenet, "read_records", lambda *paths: asked.append(paths) or sets)
    monkeypatch.setattr(imagenet, "read_folders", lambda *paths: asked.append(paths) or sets)
    words = ["--rec-train", "a.rec", "--rec-val", "b.rec"] if reads_records else ["--data-dir", "d"]
    dataset = opened(parse(["--dataset", "imagenet", "--image-size", "96", *words]))
    assert asked == [(Path("a.rec"), Path("b.rec")) if reads_records else (Path("d"),)]
    assert (dataset.training, dataset.validation) == sets
    if reads_records:
        files = [Path(f"{name}.{end}") for name in "ab" for end in ("rec", "idx")]
        assert set(dataset.files) == {*files, Path("property")}
    else:
        assert dataset.files == [Path("d/train"), Path("d/val")]
    assert dataset.shape == (3, 96, 96)
    assert dataset.normalization == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert dataset.training_transform == RandomResizedCrop(96)
    assert dataset.validation_transform == CenterCrop(96)


def small() -> ImageData:
    config = parse("--dataset synthetic --image-size 16 --num-images 30".split())
    training, validation = gray(30, 16, 3), gray(11, 16, 3)
    dataset = opened(config)
    return dataclasses.replace(dataset, training=training, validation=validation)


def test_examples_are_all_or_the_first_so_many() -> None:
    line = "--dataset synthetic --image-size 16 --num-images 30".split()
    assert small().num_examples(parse(line).data) == 30
    assert small().num_examples(parse([*line, "--num-examples", "30"]).data) == 30
    assert small().num_examples(parse([*line, "--num-examples", "7"]).data) == 7
    with pytest.raises(DataError, match="--num-examples 31 is more than the 30 images"):
        small().num_examples(parse([*line, "--num-examples", "31"]).data)


def test_options_reach_the_loader() -> None:
    def labels(*options: str) -> list[int]:
        config = parse(["--dataset", "synthetic", "--batch-size", "6", *options])
        part = EpochPart.of_rank(30, 6, 0, 1)
        with small().open_loader(config.data, config.run.seed, part) as loader:
            batches = list(islice(loader.batches(0), 5))
        assert all(batch.images.shape == (6, 3, 16, 16) for batch in batches)
        return [int(number) for batch in batches for number in batch.images[:, 0, 0, 0]]

    first = labels("--seed", "1", "--threads", "1")
    assert sorted(first) == list(range(30))
    assert first == labels("--seed", "1", "--threads", "3") != labels("--seed", "2")


def test_as_many_threads_as_asked_for_make_batches_ahead(monkeypatch) -> None:
    started = []

    def start(threads: int, ahead: int) -> Prefetcher:
        started.append((threads, ahead))
        return Prefetcher(threads, ahead)

    monkeypatch.setattr("data.batches.loader.Prefetcher", start)
    monkeypatch.setattr(image_data, "Prefetcher", start)
    config = parse("--dataset synthetic --batch-size 6 --threads 3".split())
    with small().open_loader(config.data, config.run.seed, EpochPart.of_rank(30, 6, 0, 1)):
        pass
    world = SimpleNamespace(rank=0, size=1)
    assert len(list(small().validation_batches(config.data, world))) == 2
    assert started == [(3, 4), (3, 4)]


def test_every_image_is_validated_once_over_the_ranks() -> None:
    config = parse("--dataset synthetic --batch-size 4".split())
    found = []
    for rank in (0, 1):
        for batch in small().validation_batches(config.data, SimpleNamespace(rank=rank, size=2)):
            assert batch.images.shape == (4, 3, 16, 16)
            found += batch.images[batch.labels >= 0, 0, 0, 0].tolist()
    assert sorted(found) == list(range(11))


def test_threads_are_those_asked_for_or_the_share_of_the_rank(monkeypatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    line = "--dataset synthetic".split()
    assert image_data._threads(parse(line).data) == 5
    assert image_data._threads(parse([*line, "--threads", "3"]).data) == 3


def difference(before: str, now: str) -> Optional[tuple[bool, str]]:
    """What a run with some options is told that goes on from one with others."""
    old, new = (opened(parse(line.split())).compared_images for line in (before, now))
    assert old is not None and new is not None
    return contents.find_difference(new, contents.describe(new), contents.describe(old))


OTHERS = ", of which some are others"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("", None),
        ("--threads 3 --batch-size 2", None),
        ("--num-images 90", (True, "70 images there, 90 here")),
        ("--num-images 60", (False, "70 images there, 60 here")),
        ("--seed 2", (False, f"70 images there, 70 here{OTHERS}")),
        ("--seed 2 --num-images 90", (False, f"70 images there, 90 here{OTHERS}")),
        ("--image-size 17", (False, f"70 images there, 70 here{OTHERS}")),
    ],
)
def test_drawn_images_are_compared(change: str, expected: object) -> None:
    line = "--dataset synthetic --image-size 16 --num-classes 7 --num-images 70"
    assert difference(line, f"{line} {change}") == expected


def write_idx(path: Path, array: np.ndarray) -> None:
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    content = head + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_mnist(folder: Path, count: int, first: int = 0, end: str = "") -> str:
    folder.mkdir()
    numbers = np.arange(first, first + count)
    for name, shown in (("train", numbers), ("t10k", numbers[:1])):
        pixels = np.broadcast_to(shown[:, None, None], (len(shown), 28, 28))
        write_idx(folder / f"{name}-images-idx3-ubyte{end}", pixels)
        write_idx(folder / f"{name}-labels-idx1-ubyte{end}", shown % 10)
    return f"--dataset mnist --data-dir {folder}"


def test_images_of_mnist_are_compared(tmp_path: Path) -> None:
    old = write_mnist(tmp_path / "old", 99)
    assert difference(old, write_mnist(tmp_path / "packed", 99, end=".gz")) is None
    more, other = write_mnist(tmp_path / "more", 110), write_mnist(tmp_path / "other", 99, 50)
    assert difference(old, more) == (True, "99 images there, 110 here")
    assert difference(more, old) == (False, "110 images there, 99 here")
    assert difference(old, other) == (False, f"99 images there, 99 here{OTHERS}")
    # One label, which no sample has.
    path = tmp_path / "old/train-labels-idx1-ubyte"
    labels = bytearray(path.read_bytes())
    labels[-2] = 9 - labels[-2]
    (shutil.copytree(tmp_path / "old", tmp_path / "label") / path.name).write_bytes(labels)
    label = f"--dataset mnist --data-dir {tmp_path}/label"
    assert difference(old, label) == (False, f"99 images there, 99 here{OTHERS}")


def write_cifar(folder: Path, count: int, first: int = 0) -> str:
    """CIFAR-10's record files; ``first`` images at the beginning are left out."""
    cifar_records.write(folder, count + first, 10)
    if first:
        lines = (folder / "train.idx").read_text().splitlines()[first:]
        start = int(lines[0].split()[1])
        (folder / "train.rec").write_bytes((folder / "train.rec").read_bytes()[start:])
        (folder / "train.idx").unlink()
    return f"--dataset cifar10 --data-dir {folder}"


def test_images_of_cifar_are_compared(tmp_path: Path) -> None:
    old, moved = (write_cifar(tmp_path / name, 70) for name in ("old", "moved"))
    named = f"--rec-train {tmp_path}/moved/train.rec --rec-val {tmp_path}/moved/test.rec"
    assert difference(old, moved) is None
    assert difference(old, f"--dataset cifar10 {named}") is None
    assert difference(old, write_cifar(tmp_path / "more", 80)) == (True, "70 images there, 80 here")
    other = write_cifar(tmp_path / "other", 70, 10)
    assert difference(old, other) == (False, f"70 images there, 70 here{OTHERS}")


def write_folders(folder: Path, count: int, first: int = 0) -> str:
    """Three classes of so many images each, in the form of ImageNet."""
    for part in ("train", "val"):
        for label in range(3):
            (folder / part / f"class{label}").mkdir(parents=True)
            for number in range(count):
                pixels = np.full((9, 9, 3), first + 50 * label + number, np.uint8)
                path = folder / part / f"class{label}/{number:03}.png"
                cv2.imwrite(str(path), pixels)
    return f"--dataset imagenet --image-size 8 --data-dir {folder}"


def test_images_in_folders_are_compared(tmp_path: Path) -> None:
    old, moved = (write_folders(tmp_path / name, 40) for name in ("old", "moved"))
    assert difference(old, moved) is None
    more = write_folders(tmp_path / "more", 42)
    assert difference(old, more) == (True, "120 images there, 126 here")
    assert difference(more, old) == (False, "126 images there, 120 here")
    other = write_folders(tmp_path / "other", 40, 90)
    assert difference(old, other) == (False, f"120 images there, 120 here{OTHERS}")
    # One file, which no sample has, of another name or another size.
    path = tmp_path / "moved/train/class1/002.png"
    for change in (
        lambda: path.rename(path.with_name("0021.png")),
        lambda: path.with_name("0021.png").rename(path).write_bytes(b"other"),
    ):
        change()
        assert difference(old, moved) == (False, f"120 images there, 120 here{OTHERS}")


class Decoded(ImageSet):
    """A set that says nothing but its images."""

    num_classes = 2

    def __init__(self, color: int) -> None:
        self._color = color

    def __len__(self) -> int:
        return 3

    def decoded(self, index: int) -> tuple[np.ndarray, int]:
        return np.full((4, 4, 3), self._color, np.uint8), 1


def test_images_of_other_sets_are_compared_decoded() -> None:
    old = dataclasses.replace(small(), training=Decoded(1)).compared_images
    said = contents.describe(old)
    assert contents.find_difference(old, said, contents.describe(Decoded(1))) is None
    found = contents.find_difference(old, said, contents.describe(Decoded(2)))
    assert found == (False, f"3 images there, 3 here{OTHERS}")
    # And those of a set that cannot say what it has not at all.
    bare = SimpleNamespace(decoded=Decoded(1).decoded)
    assert dataclasses.replace(small(), training=bare).compared_images is None
