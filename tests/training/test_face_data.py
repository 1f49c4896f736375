from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import cv2
import numpy as np
import pytest

from data import contents
from data.batches.face_loader import FaceLoader, MemoryBatches
from data.drawn import face_set
from data.records.shards import JoinedSet, open_sets
from data.records.writer import RecordWriter
from data.verification.bin_file import write_bin
from runtime.errors import ConfigError, DataError
from training import face_data, same_data
from training.config.faces import FaceConfig, parse


def world_of(rank: int = 0, size: int = 1) -> Any:
    """A rank of a world that nobody meets in."""
    gather = Mock(side_effect=lambda array, name: array)
    return SimpleNamespace(rank=rank, size=size, local_rank=rank, allgather_uneven=gather)


def encoded(number: int) -> bytes:
    return cv2.imencode(".png", np.full((16, 16, 3), number, np.uint8))[1].tobytes()


def write_set(folder: Path, *counts: int, first: int = 0) -> Path:
    with RecordWriter(folder, image_size=(16, 16)) as writer:
        for label, count in enumerate(counts):
            for number in range(count):
                writer.write(encoded(first + 10 * label + number), label)
    return folder


def config_of(*words: object) -> FaceConfig:
    return parse([str(word) for word in ("--batch-size", 4, *words)])


def open_batches(*words: object, rank: int = 0, size: int = 1):
    config = config_of(*words)
    return face_data.open_batches(config.data, config.run.seed, world_of(rank, size))


def labels_of(*words: object, rank: int = 0, size: int = 1) -> np.ndarray:
    """Those of the first batch."""
    with open_batches(*words, rank=rank, size=size) as batches:
        return next(iter(batches.batches(0))).labels.copy()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_set(tmp_path / "set", 3, 1, 4)


def test_record_sets_are_opened_joined_and_filtered(folder: Path, tmp_path: Path) -> None:
    more = write_set(tmp_path / "more", 5, 5)
    for line, classes, images in (
        (["--rec", folder], 3, 8),
        # A record file means its folder.
        (["--rec", folder / "train.rec"], 3, 8),
        (["--rec", folder, "--rec", more], 5, 18),
        (["--rec", folder, "--min-images", 3], 2, 7),
    ):
        with open_batches(*line) as batches:
            assert isinstance(batches, FaceLoader)
            assert (batches.num_classes, batches.num_images) == (classes, images)
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


def test_another_number_of_classes_is_told(folder: Path, caplog) -> None:
    open_batches("--rec", folder, "--num-classes", 3).close()
    assert not caplog.messages
    open_batches("--rec", folder, "--num-classes", 9).close()
    assert "has 3 classes, not the 9 of the configuration" in caplog.messages[0]


def test_batches_in_memory_have_the_classes_asked_for_or_those_of_the_data(folder: Path) -> None:
    for line, ranks, classes, size in (
        (["--dataset", "100w"], {}, 10**6, (112, 112)),
        (["--rec", folder, "--debug"], {"rank": 1, "size": 2}, 3, (16, 16)),
    ):
        with open_batches(*line, **ranks) as batches:
            assert isinstance(batches, MemoryBatches)
            assert (batches.num_classes, batches.image_size) == (classes, size)
    first, other = (labels_of("--dataset", "100w", "--seed", seed) for seed in (1, 2))
    assert len(first) == 4 and (first != other).any()


def test_the_drawn_set_is_the_one_asked_for(tmp_path: Path, monkeypatch) -> None:
    ensure = Mock(side_effect=lambda root, **options: write_set(root, *[2] * 7))
    monkeypatch.setattr(face_set, "ensure", ensure)
    line = ("--dataset", "synthetic", "--num-classes", 7, "--num-images", 20, "--seed", 5)
    # The first of several folders is the one that is drawn.
    own = write_set(tmp_path / "own", 3, 3)
    for name, more in (("drawn", []), ("other", ["--rec", own])):
        open_batches(*line, "--rec", tmp_path / name, *more).close()
        options = {"identities": 7, "images_per_identity": 2, "image_size": (112, 112), "seed": 5}
        ensure.assert_called_once_with(tmp_path / name, **options)
        ensure.reset_mock()


def test_what_a_run_reads_is_compared(folder: Path, tmp_path: Path, monkeypatch) -> None:
    check = Mock()
    monkeypatch.setattr(same_data, "check", check)
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
        open_batches(*words, rank=1, size=2).close()
        paths, world = check.call_args.args
        assert paths == expected and world.size == 2


def compared_images(*words: object) -> tuple[Any, Any]:
    config = config_of(*words)
    with open_batches(*words) as batches:
        images = face_data.compared_images(config.data, config.run.seed, batches)
        return images, images and contents.describe(images)


OTHERS = ", of which some are others"


def test_images_of_records_are_compared(tmp_path: Path) -> None:
    def write(name: str, *counts: int, first: int = 0) -> list[object]:
        return ["--rec", write_set(tmp_path / name, *counts, first=first)]

    old, moved, more = write("old", 3, 1, 4), write("moved", 3, 1, 4), write("more", 5, 2, 4)
    other = write("other", 3, 1, 4, first=100)
    for before, now, expected in (
        (old, more, (True, "8 images there, 11 here")),
        (old, other, (False, f"8 images there, 8 here{OTHERS}")),
        (old + other, moved + other, None),
        (old + other, other + old, (False, f"16 images there, 16 here{OTHERS}")),
    ):
        described = compared_images(*before)[1]
        assert contents.find_difference(*compared_images(*now), described) == expected


def test_drawn_images_are_compared_by_what_they_are_drawn_from(tmp_path: Path, monkeypatch) -> None:
    """Processors round their pixels in several ways."""
    monkeypatch.setattr(face_set, "ensure", Mock())
    folder = write_set(tmp_path / "drawn", 3, 1, 4)

    def described(images: int, seed: int, *further: object) -> tuple[Any, Any]:
        line = ("--dataset", "synthetic", "--num-classes", 3, "--num-images", images)
        return compared_images(*line, "--rec", folder, "--seed", seed, *further)

    _, old = described(9, 1)
    for images, seed, expected in (
        (9, 1, None),
        (12, 1, (True, "9 images there, 12 here")),
        (6, 1, (False, "9 images there, 6 here")),
        (9, 2, (False, f"9 images there, 9 here{OTHERS}")),
    ):
        assert contents.find_difference(*described(images, seed), old) == expected
    assert described(9, 1, "--debug")[0] is None
    # With others, all are compared by their bytes.
    own = write_set(tmp_path / "own", 2, 2)
    assert isinstance(described(9, 1, "--rec", own)[0], JoinedSet)


def test_verification_sets_lie_beside_the_data(folder: Path, tmp_path: Path, caplog) -> None:
    caplog.set_level("INFO")
    more = write_set(tmp_path / "more", 5, 5)
    for place, number in ((folder / "lfw", 2), (more / "lfw", 4), (more / "agedb", 6)):
        write_bin(place.with_suffix(".bin"), [encoded(number)] * number, [True] * (number // 2))
    line = ("--rec", folder / "train.rec", "--rec", more, "--val-targets", "lfw,none,agedb")
    data = config_of(*line).data
    targets = face_data.open_targets(data)
    assert [(target.name, len(target)) for target in targets] == [("lfw", 2), ("agedb", 6)]
    first, missing = caplog.messages
    assert f"verifying 'lfw' on {folder / 'lfw.bin'}, not on {more / 'lfw.bin'}" in first
    assert f"MISSING: {folder / 'none.bin'} or {more / 'none.bin'}" in missing
    # The set that chooses the best model may not be missing.
    with pytest.raises(DataError, match=r"--best none: .*none\.bin does not exist; put the"):
        face_data.open_targets(data, "none")
