"""Data of both programs: how it is opened, and compared with that of a checkpoint."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional
from unittest.mock import Mock, call

import cv2
import numpy as np
import pytest

from data import contents
from data.batches.face_loader import FaceLoader
from data.drawn import face_set
from data.images import cifar, image_set, mnist
from data.images.image_set import ImagesInMemory
from data.images.transforms import CenterCrop, MiddleCrop, PadCropFlip, RandomResizedCrop, Unchanged
from data.records.shards import open_sets
from data.verification.bin_file import write_bin
from runtime.errors import ConfigError, DataError
from tests.support.sets import pack_set
from training import face_data
from training.config import faces, images
from training.image_data import ImageData, open_images

RECORDS, D = (Path("a.rec"), Path("b.rec")), Path("d")
RECORD_FILES = [*map(Path, ("a.rec", "a.idx", "b.rec", "b.idx", "property"))]
CIFAR10, CIFAR100 = cifar.SETS["cifar10"], cifar.SETS["cifar100"]


def world_of(rank: int = 0, size: int = 1) -> Any:
    gather = Mock(side_effect=lambda value, name: [value])
    return SimpleNamespace(rank=rank, size=size, local_rank=rank, gather_objects=gather)


def encoded(number: int) -> bytes:
    return cv2.imencode(".png", np.full((16, 16, 3), number, np.uint8))[1].tobytes()


def write_set(folder: Path, *counts: int, first: int = 0) -> Path:
    labels = np.repeat(np.arange(len(counts)), counts).tolist()
    return pack_set(folder, map(encoded, range(first, first + len(labels))), labels)


def config_of(*words: object) -> faces.FaceConfig:
    return faces.parse([str(word) for word in ("--batch-size", 4, *words)])


def open_batches(*words: object, rank: int = 0, size: int = 1):
    config = config_of(*words)
    return face_data.open_batches(config.data, config.run.seed, world_of(rank, size))


def labels_of(*words: object, rank: int = 0, size: int = 1) -> np.ndarray:
    with open_batches(*words, rank=rank, size=size) as batches:
        return next(iter(batches.batches(0))).labels.copy()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_set(tmp_path / "set", 3, 1, 4)


def test_record_sets_are_opened_joined_and_filtered(folder: Path, tmp_path: Path) -> None:
    more = write_set(tmp_path / "more", 5, 5)
    for line, classes, count in (
        (["--rec", folder], 3, 8),
        (["--rec", folder / "train.rec"], 3, 8),
        (["--rec", folder, "--rec", more], 5, 18),
        (["--rec", folder, "--min-images", 3], 2, 7),
    ):
        with open_batches(*line) as batches:
            assert isinstance(batches, FaceLoader)
            assert (batches.num_classes, batches.num_images) == (classes, count)
            assert (batches.image_size, batches.global_batch) == ((16, 16), 4)
    with pytest.raises(ConfigError, match="twice, so that each of its people would be two"):
        open_sets(config_of("--rec", folder, "--rec", folder).data.rec)
    # One of several files of a folder is the one that is named.
    (folder / "train.rec").rename(folder / "a.rec")
    write_set(folder, 4, 4, 4)
    (folder / "train.rec").rename(folder / "b.rec")
    with open_batches("--rec", folder / "b.rec") as batches:
        assert batches.num_images == 12


def test_each_rank_takes_its_share_and_has_a_class(folder: Path) -> None:
    line = ("--rec", folder, "--batch-size")
    parts = [labels_of(*line, 4, rank=rank, size=2) for rank in (0, 1)]
    np.testing.assert_array_equal(np.concatenate(parts), labels_of(*line, 8))
    with open_batches(*line, 2, rank=2, size=3) as batches:
        assert (batches.num_classes, batches.global_batch) == (3, 6)
    with pytest.raises(ConfigError, match="3 classes cannot be spread over 4 ranks"):
        open_batches(*line, 2, size=4)


def test_what_a_run_reads_is_compared(folder: Path, tmp_path: Path, monkeypatch) -> None:
    check = Mock()
    monkeypatch.setattr(face_data, "check_data", check)
    monkeypatch.setattr(face_set, "ensure", Mock())
    other = write_set(tmp_path / "other", 2, 2)
    line = ("--rec", folder, "--rec", other / "train.rec", "--val-targets", "lfw")
    names = ("train.rec", "train.idx", "property")
    files = [path / name for path in (folder, other) for name in names]
    everything = [*files, folder / "lfw.bin", other / "lfw.bin"]
    for words, expected in (
        (line, everything),
        ([*line, "--debug"], everything),
        # Each host draws the first; its pixels depend on the processor.
        (["--dataset", "synthetic", *line], [*files[3:], other / "lfw.bin"]),
        (["--dataset", "100w"], []),
    ):
        with open_batches(*words, rank=1, size=2):
            pass
        paths, world = check.call_args.args
        assert paths == expected and world.size == 2


def described(*words: object) -> Optional[dict[str, Any]]:
    config = config_of(*words)
    with open_batches(*words) as batches:
        found = face_data.compared_images(config.data, config.run.seed, batches)
        return found and contents.describe(found)


def test_images_of_records_are_compared(tmp_path: Path) -> None:
    def write(name: str, *counts: int, first: int = 0) -> list[object]:
        return ["--rec", write_set(tmp_path / name, *counts, first=first)]

    old, moved, more = write("old", 3, 1, 4), write("moved", 3, 1, 4), write("more", 5, 2, 4)
    other = write("other", 3, 1, 4, first=100)
    assert described(*old) not in (described(*more), described(*other))
    assert described(*old, *other) == described(*moved, *other) != described(*other, *old)


def test_drawn_images_are_compared_by_what_they_are_drawn_from(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(face_set, "ensure", Mock())
    folder = write_set(tmp_path / "drawn", 3, 1, 4)

    def drawn(count: int, seed: int, *further: object) -> Any:
        line = ("--dataset", "synthetic", "--num-classes", 3, "--num-images", count)
        return described(*line, "--rec", folder, "--seed", seed, *further)

    assert drawn(9, 1) == drawn(9, 1) not in (drawn(12, 1), drawn(6, 1), drawn(9, 2))
    assert drawn(9, 1, "--debug") is None
    assert drawn(9, 1, "--rec", write_set(tmp_path / "own", 2, 2))["images"] == 12


def test_verification_sets_lie_beside_the_data(folder: Path, tmp_path: Path, caplog) -> None:
    caplog.set_level("INFO")
    more = write_set(tmp_path / "more", 5, 5)
    for place, number in ((folder / "lfw", 2), (more / "lfw", 4), (more / "agedb", 6)):
        write_bin(place.with_suffix(".bin"), [encoded(number)] * number, [True] * (number // 2))
    line = ("--rec", folder / "train.rec", "--rec", more, "--val-targets", "lfw,none,agedb")
    data = config_of(*line).data
    targets = face_data.open_targets(data)
    assert [(target.name, len(target)) for target in targets] == [("lfw", 2), ("agedb", 6)]
    (missing,) = caplog.messages
    assert f"MISSING: {folder / 'none.bin'} or {more / 'none.bin'}" in missing
    with pytest.raises(DataError, match=r"--best none: .*none\.bin does not exist; put the"):
        face_data.open_targets(data, "none")


def opened(line: str) -> ImageData:
    config = images.parse(line.split())
    return open_images(config.data, config.run.seed)


def gray(count: int, side: int, channels: int) -> ImagesInMemory:
    numbers = np.arange(count, dtype=np.uint8)[:, None, None, None]
    images = np.broadcast_to(numbers, (count, side, side, channels))
    return ImagesInMemory(images, (np.arange(count) % 10).astype(np.uint8), 10)


def test_drawn_images() -> None:
    dataset = opened("--dataset synthetic --num-images 3 --image-size 16")
    assert [len(one.dataset) for one in (dataset.training, dataset.validation)] == [3, 1]
    assert dataset.training.shape == (3, 16, 16) and not dataset.files
    assert dataset.normalization == ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    first, other = (one.dataset.decoded(0)[0] for one in (dataset.training, dataset.validation))
    assert (first != other).any()


def test_mnist(monkeypatch) -> None:
    read = Mock(return_value=gray(9, 28, 1))
    monkeypatch.setattr(mnist, "read", read)
    dataset = opened("--dataset mnist --data-dir d")
    assert read.mock_calls[:2] == [call(D, "training"), call(D, "validation")]
    assert (dataset.training.shape, dataset.normalization) == ((1, 28, 28), ((0.1307,), (0.3081,)))
    assert dataset.files == mnist.files_of(D)
    for transform in (dataset.training.transform, dataset.validation.transform):
        assert isinstance(transform, Unchanged)


SETS = (gray(8, 32, 3), gray(4, 32, 3))


@pytest.mark.parametrize(("name", "function", "arguments", "files"), [
    ("cifar10", "open_record_files", (CIFAR10, *RECORDS), RECORD_FILES),
    ("cifar100", "open_set", (CIFAR100, D), [D / "train.rec"]),
    ("imagenet", "open_records", RECORDS, RECORD_FILES),
    ("imagenet", "open_folders", (D / "train", D / "val"), (D / "train", D / "val")),
])  # fmt: skip
def test_folders_and_records(name: str, function: str, arguments, files, monkeypatch) -> None:
    is_imagenet = name == "imagenet"
    found = (*SETS, list(files)) if function == "open_set" else SETS
    opens, size = Mock(return_value=found), 96 if is_imagenet else 32
    monkeypatch.setattr(image_set if is_imagenet else cifar, function, opens)
    words = "--rec-train a.rec --rec-val b.rec" if "record" in function else "--data-dir d"
    dataset = opened(f"--dataset {name} --image-size {size} {words}")
    opens.assert_called_once_with(*arguments)
    assert (dataset.training.dataset, dataset.validation.dataset) == SETS
    assert dataset.training.shape == (3, size, size)
    assert {*dataset.files} == {*files}
    transforms = dataset.training.transform, dataset.validation.transform
    if is_imagenet:
        assert dataset.normalization == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        assert transforms == (RandomResizedCrop(96), CenterCrop(96))
    else:
        assert arguments[0].stem == name
        assert dataset.normalization == ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
        assert transforms[0] == PadCropFlip(padding=4) and isinstance(transforms[1], Unchanged)


def test_crops_of_cifar(monkeypatch) -> None:
    monkeypatch.setattr(cifar, "open_set", lambda *words: (*SETS, []))
    line = "--dataset cifar10 --data-dir d --image-size"
    dataset = opened(f"{line} 28")
    assert dataset.training.shape == (3, 28, 28)
    assert dataset.training.transform == PadCropFlip(padding=0, size=28)
    assert dataset.validation.transform == MiddleCrop(28)
    with pytest.raises(ConfigError, match="--image-size 33 is larger than the images of CIFAR-10"):
        opened(f"{line} 33")


def test_examples_are_all_or_the_first_so_many() -> None:
    dataset = opened("--dataset synthetic --image-size 16 --num-images 30")

    def count(options: str) -> int:
        return dataset.num_examples(images.parse(f"--dataset synthetic {options}".split()).data)

    assert count("") == count("--num-examples 30") == 30 and count("--num-examples 7") == 7
    with pytest.raises(DataError, match="--num-examples 31 is more than the 30 images"):
        count("--num-examples 31")


def test_every_image_is_validated_once_over_the_ranks() -> None:
    dataset = opened("--dataset synthetic --image-size 16 --num-images 55 --num-classes 11")
    data, found = images.parse("--dataset synthetic --batch-size 4".split()).data, []
    for rank in (0, 1):
        for batch in dataset.validation_batches(data, world_of(rank, 2)):
            found += batch.labels[batch.labels >= 0].tolist()
    assert sorted(found) == list(range(11))


def said_of(line: str) -> dict[str, Any]:
    return contents.describe(opened(line).training.dataset)


def test_drawn_images_are_compared() -> None:
    line = "--dataset synthetic --image-size 16 --num-classes 7 --num-images 120"
    assert said_of(line) == said_of(f"{line} --threads 3 --batch-size 2")
    for change in ("--num-images 130", "--seed 2", "--image-size 17"):
        assert said_of(line) != said_of(f"{line} {change}")


def test_images_in_memory_are_compared_with_their_labels() -> None:
    def said(images: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
        return contents.describe(ImagesInMemory(images, labels, 10))

    pixels, labels = np.zeros((9, 8, 8, 1), np.uint8), np.arange(9, dtype=np.uint8)
    expected = said(pixels, labels)
    assert said(pixels.copy(), labels.copy()) == expected
    assert expected not in (said(pixels + 1, labels), said(pixels, labels[::-1]))
    assert said(pixels[:8], labels[:8])["images"] == 8


def test_images_in_folders_are_compared(tmp_path: Path) -> None:
    folder, moved = tmp_path / "old", tmp_path / "moved"
    for part, number in product(("train", "val"), range(9)):
        path = folder / part / f"class{number % 3}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(number))
    line = "--dataset imagenet --image-size 8 --data-dir"
    old = said_of(f"{line} {folder}")
    folder.rename(moved)
    assert said_of(f"{line} {moved}") == old
    (moved / "train/class1/7.png").write_bytes(b"other")
    assert said_of(f"{line} {moved}") != old
