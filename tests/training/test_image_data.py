"""The data sets of classifiers: which images, which shape, and what is done to them."""

from __future__ import annotations

import dataclasses
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from data.batches.epoch_part import EpochPart
from data.batches.loader import Prefetcher
from data.images import cifar, imagenet, mnist
from data.images.image_set import ImagesInMemory
from data.images.transforms import (
    CenterCrop,
    MiddleCrop,
    PadCropFlip,
    RandomResizedCrop,
    Unchanged,
)
from runtime.errors import ConfigError, DataError
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
