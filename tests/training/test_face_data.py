"""What the options of a face run say about its data reaches the loader."""

from __future__ import annotations

import json
import logging
from itertools import islice
from pathlib import Path
from typing import Optional

import cv2
import numpy as np
import pytest

from data import contents
from data.batches.face_loader import FaceLoader, MemoryBatches
from data.batches.loader import Prefetcher
from data.drawn import face_set
from data.records.joined_set import JoinedSet
from data.records.shards import open_sets
from data.records.writer import RecordWriter
from data.verification.bin_file import write_bin
from runtime.errors import ConfigError, DataError
from runtime.mxnet import mx
from training import face_data, same_data
from training.config.faces import FaceConfig, parse


class World:
    """A rank of a world that nobody meets in."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size, self.local_rank = rank, size, rank

    def allgather_uneven(self, array, name: str):
        return array


def encoded(number: int) -> bytes:
    done, png = cv2.imencode(".png", np.full((16, 16, 3), number, np.uint8))
    assert done
    return png.tobytes()


def write_set(folder: Path, counts: list[int], bad: int = 0, first: int = 0) -> Path:
    with RecordWriter(folder, image_size=(16, 16)) as writer:
        for label, count in enumerate(counts):
            for number in range(count):
                writer.write(encoded(first + 10 * label + number), label)
        for _ in range(bad):
            writer.write(b"junk", len(counts) - 1)
    return folder


def config_of(*words: object) -> FaceConfig:
    return parse([str(word) for word in ("--batch-size", 4, *words)])


def open_batches(config: FaceConfig, world: World):
    return face_data.open_batches(config.data, config.run.seed, world)


def batches_of(config: FaceConfig, count: int, world: World | None = None):
    with open_batches(config, world or World()) as batches:
        return list(islice(batches.batches(0), count))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_set(tmp_path / "set", [3, 1, 4])


def test_a_record_set(folder: Path) -> None:
    with open_batches(config_of("--rec", folder), World()) as batches:
        assert isinstance(batches, FaceLoader)
        assert (batches.num_classes, batches.image_size) == (3, (16, 16))
        assert (batches.num_images, batches.global_batch) == (8, 4)


def test_the_rank_takes_its_share(folder: Path) -> None:
    config = config_of("--rec", folder)
    with open_batches(config, World(1, 2)) as batches:
        assert batches.global_batch == 8
    whole = batches_of(config_of("--rec", folder, "--batch-size", 8), 1)[0]
    parts = [batches_of(config, 1, World(rank, 2))[0] for rank in (0, 1)]
    np.testing.assert_array_equal(np.concatenate([part.labels for part in parts]), whole.labels)


def test_several_record_sets_are_joined(folder: Path, tmp_path: Path) -> None:
    write_set(tmp_path / "more", [5, 5])
    with open_batches(config_of("--rec", folder, "--rec", tmp_path / "more"), World()) as b:
        assert (b.num_classes, b.num_images) == (5, 18)
    twice = config_of("--rec", folder, "--rec", folder)
    with pytest.raises(ConfigError, match="twice, so that each of its people would be two"):
        open_sets(twice.data.rec)


def test_min_images_leaves_identities_out(folder: Path) -> None:
    with open_batches(config_of("--rec", folder, "--min-images", 3), World()) as batches:
        assert (batches.num_classes, batches.num_images) == (2, 7)


def test_the_seed_decides_the_order(folder: Path) -> None:
    first, same, other = (
        np.concatenate([batch.images for batch in batches_of(config, 2)])
        for config in (
            config_of("--rec", folder),
            config_of("--rec", folder, "--seed", 1, "--threads", 3),
            config_of("--rec", folder, "--seed", 2),
        )
    )
    np.testing.assert_array_equal(first, same)
    assert (first != other).any()


def test_as_many_threads_as_asked_for_decode_ahead(folder: Path, monkeypatch) -> None:
    started = []

    def start(threads: int, ahead: int) -> Prefetcher:
        started.append((threads, ahead))
        return Prefetcher(threads, ahead)

    monkeypatch.setattr("data.batches.loader.Prefetcher", start)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    for options in (["--threads", 3], []):
        open_batches(config_of("--rec", folder, *options), World()).close()
    assert started == [(3, 4), (2, 4)]


@pytest.mark.parametrize("option", ["--color-jitter", "--cutout"])
def test_augmentation_is_switched_on_by_its_option(folder: Path, option: str) -> None:
    plain = batches_of(config_of("--rec", folder), 1)[0].images
    assert all(len(np.unique(image)) == 1 for image in plain)
    changed = batches_of(config_of("--rec", folder, option, 1.0), 1)[0].images
    assert (plain != changed).any()


def test_bad_records_are_skipped_up_to_the_number(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set", [4, 4], bad=2)
    assert len(batches_of(config_of("--rec", folder, "--max-bad-records", 2), 2)) == 2
    with pytest.raises(DataError, match="bad|broken"):
        batches_of(config_of("--rec", folder, "--max-bad-records", 1), 2)


def test_more_ranks_than_classes_are_refused(folder: Path) -> None:
    config = config_of("--rec", folder, "--batch-size", 2)
    with open_batches(config, World(2, 3)) as batches:
        assert batches.num_classes == 3
    with pytest.raises(ConfigError, match="3 classes cannot be spread over 4 ranks"):
        open_batches(config, World(0, 4))


def test_another_number_of_classes_is_told(folder: Path, caplog, tmp_path: Path) -> None:
    with caplog.at_level(logging.WARNING):
        batches_of(config_of("--rec", folder, "--num-classes", 3), 1)
        assert not caplog.messages
        batches_of(config_of("--rec", folder, "--num-classes", 9), 1)
    assert "has 3 classes, not the 9 of the configuration" in caplog.messages[0]


def test_batches_in_memory_have_the_classes_asked_for_or_those_of_the_data(folder: Path) -> None:
    with open_batches(config_of("--dataset", "100w"), World()) as batches:
        assert isinstance(batches, MemoryBatches)
        assert (batches.num_classes, batches.image_size) == (10**6, (112, 112))
    with open_batches(config_of("--rec", folder, "--debug"), World(1, 2)) as batches:
        assert isinstance(batches, MemoryBatches)
        assert (batches.num_classes, batches.image_size) == (3, (16, 16))
    first, other = (
        batches_of(config_of("--dataset", "100w", "--seed", seed), 1)[0].labels for seed in (1, 2)
    )
    assert len(first) == 4 and (first != other).any()


def test_the_drawn_set_is_the_one_asked_for(tmp_path: Path, monkeypatch) -> None:
    asked = []

    def ensure(root: Path, **options: object) -> Path:
        asked.append((root, options))
        return write_set(root, [2] * 7)

    monkeypatch.setattr(face_set, "ensure", ensure)
    line = ("--dataset", "synthetic", "--num-classes", 7, "--num-images", 20, "--seed", 5)
    batches_of(config_of(*line, "--rec", tmp_path / "drawn"), 1)
    options = {"identities": 7, "images_per_identity": 2, "image_size": (112, 112), "seed": 5}
    assert asked == [(tmp_path / "drawn", options)]
    # The first of several folders is the one that is drawn.
    write_set(tmp_path / "own", [3, 3])
    more = config_of(*line, "--rec", tmp_path / "other", "--rec", tmp_path / "own")
    batches_of(more, 1)
    assert asked[1:] == [(tmp_path / "other", options)]


def test_what_a_run_reads_is_compared(folder: Path, tmp_path: Path, monkeypatch) -> None:
    compared = []
    monkeypatch.setattr(same_data, "check", lambda paths, world: compared.append((paths, world)))
    other = write_set(tmp_path / "other", [2, 2])
    line = ("--rec", folder, "--rec", other / "train.rec", "--val-targets", "lfw")
    names = ("train.rec", "train.idx", "property")
    files = [path / name for path in (folder, other) for name in names]
    world = World(1, 2)
    for options in ((), ("--debug",)):
        with open_batches(config_of(*line, *options), world):
            pass
        expected = [*files, folder / "lfw.bin", other / "lfw.bin"]
        assert compared.pop() == (expected, world)
    # Each host draws the first; its pixels depend on the processor.
    monkeypatch.setattr(face_set, "ensure", lambda *_, **__: None)
    with open_batches(config_of("--dataset", "synthetic", *line), world):
        pass
    assert compared.pop() == ([*files[3:], other / "lfw.bin"], world)
    with open_batches(config_of("--dataset", "100w"), world):
        pass
    assert compared.pop() == ([], world)


def write_shards(folder: Path, *shards: list[int], first: int = 0) -> Path:
    for number, counts in enumerate(shards):
        written = write_set(folder.with_name(f"{folder.name}.{number}"), counts, first=first)
        folder.mkdir(exist_ok=True)
        for end in ("rec", "idx"):
            (written / f"train.{end}").rename(folder / f"train-{number:05}.{end}")
    (folder / "property").write_text(f"{sum(map(len, shards))},16,16\n")
    return folder


def difference(before: list[Path], now: list[Path]) -> Optional[tuple[bool, str]]:
    """What a run on some folders is told that goes on from one on others."""
    found = []
    for folders in (before, now):
        config = config_of(*(word for folder in folders for word in ("--rec", folder)))
        with open_batches(config, World()) as batches:
            images = face_data.compared_images(config.data, config.run.seed, batches)
            assert images is not None
            found.append((images, contents.describe(images)))
    return contents.find_difference(*found[1], found[0][1])


def test_images_of_records_are_compared(tmp_path: Path) -> None:
    old, moved = (write_set(tmp_path / name, [3, 1, 4]) for name in ("old", "moved"))
    assert difference([old], [moved / "train.rec"]) is None
    more = write_set(tmp_path / "more", [5, 2, 4])
    assert difference([old], [more]) == (True, "8 images there, 11 here")
    assert difference([more], [old]) == (False, "11 images there, 8 here")
    others = ", of which some are others"
    other = write_set(tmp_path / "other", [3, 1, 4], first=100)
    assert difference([old], [other]) == (False, f"8 images there, 8 here{others}")
    assert difference([old, other], [moved, other]) is None
    assert difference([old, other], [more, other]) == (True, "16 images there, 19 here")
    assert difference([old, other], [other, old]) == (False, f"16 images there, 16 here{others}")


def test_images_of_shards_are_compared(tmp_path: Path) -> None:
    old, moved = (write_shards(tmp_path / name, [3, 1], [4]) for name in ("old", "moved"))
    assert difference([old], [moved]) is None
    more = write_shards(tmp_path / "more", [3, 2], [4])
    assert difference([old], [more]) == (True, "8 images there, 9 here")
    other = write_shards(tmp_path / "other", [3, 1], [4], first=100)
    text = "8 images there, 8 here, of which some are others"
    assert difference([old], [other]) == (False, text)


def test_drawn_images_are_compared_by_what_they_are_drawn_from(tmp_path: Path, monkeypatch) -> None:
    """Processors round their pixels in several ways."""
    monkeypatch.setattr(face_set, "ensure", lambda *_, **__: None)
    folder = write_set(tmp_path / "drawn", [3, 1, 4])

    def described(images: int, seed: int, *further: object):
        line = ("--dataset", "synthetic", "--num-classes", 3, "--num-images", images)
        config = config_of(*line, "--rec", folder, "--seed", seed, *further)
        with open_batches(config, World()) as batches:
            return face_data.compared_images(config.data, config.run.seed, batches)

    old = described(9, 1)
    for images, seed, expected in (
        (9, 1, None),
        (12, 1, (True, "9 images there, 12 here")),
        (6, 1, (False, "9 images there, 6 here")),
        (9, 2, (False, "9 images there, 9 here, of which some are others")),
    ):
        now = described(images, seed)
        described_now = contents.describe(now)
        assert contents.find_difference(now, described_now, contents.describe(old)) == expected
    assert described(9, 1, "--debug") is None
    # With others, all are compared by their bytes.
    joined = described(9, 1, "--rec", write_set(tmp_path / "own", [2, 2]))
    assert isinstance(joined, JoinedSet)


def test_other_data_on_another_host_is_refused_before_it_is_opened(folder: Path) -> None:
    class Other(World):
        def allgather_uneven(self, array, name: str):
            theirs = json.dumps(["elsewhere", {str(folder / "train.rec"): "9 bytes"}])
            line = np.frombuffer(f"{theirs}\n".encode(), np.uint8)
            return mx.nd.concat(array, mx.nd.array(line, dtype="uint8"), dim=0)

    (folder / "train.rec").write_bytes(b"no record")
    with pytest.raises(ConfigError, match="elsewhere has another .*train.rec than .*: 9 bytes, "):
        open_batches(config_of("--rec", folder), Other(0, 2))


def test_verification_sets_lie_beside_the_data(folder: Path, tmp_path: Path, caplog) -> None:
    write_set(tmp_path / "more", [5, 5])
    for place, number in (("set/lfw", 2), ("more/lfw", 4), ("more/agedb", 6)):
        images = [encoded(number)] * number
        write_bin(tmp_path / f"{place}.bin", images, [True] * (number // 2))
    line = ("--rec", folder, "--rec", tmp_path / "more", "--val-targets", "lfw,none,agedb")
    with caplog.at_level(logging.INFO):
        targets = face_data.open_targets(config_of(*line).data)
    assert [(target.name, len(target)) for target in targets] == [("lfw", 2), ("agedb", 6)]
    first, missing = caplog.messages
    assert f"verifying 'lfw' on {folder / 'lfw.bin'}, not on {tmp_path / 'more/lfw.bin'}" in first
    assert f"MISSING: {folder / 'none.bin'} or {tmp_path / 'more/none.bin'}" in missing


def test_the_set_that_chooses_the_best_model_may_not_be_missing(folder: Path) -> None:
    data = config_of("--rec", folder, "--val-targets", "none").data
    with pytest.raises(DataError, match=r"--best none: .*none\.bin does not exist; put the file"):
        face_data.open_targets(data, "none")


def test_a_record_file_means_its_folder(folder: Path) -> None:
    write_bin(folder / "lfw.bin", [encoded(2)] * 2, [True])
    config = config_of("--rec", folder / "train.rec", "--val-targets", "lfw")
    assert [target.name for target in face_data.open_targets(config.data)] == ["lfw"]
    with open_batches(config, World()) as batches:
        assert batches.num_images == 8


def test_one_of_several_record_files_is_named(folder: Path) -> None:
    (folder / "train.rec").rename(folder / "a.rec")
    write_set(folder, [4, 4, 4])
    (folder / "train.rec").rename(folder / "b.rec")
    with open_batches(config_of("--rec", folder / "b.rec"), World()) as batches:
        assert batches.num_images == 12
