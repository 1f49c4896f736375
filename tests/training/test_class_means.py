"""Centers from the means of embeddings: of the right images, on any number of ranks, and once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import cv2
import numpy as np
import pytest

import train as program
from backbones.model import Backbone
from backbones.options import BackboneOptions
from data.batches.face_loader import FaceLoader
from data.batches.loader import Batch
from data.options import FaceDataOptions
from data.records.record_set import RecordSet
from data.records.writer import RecordWriter
from partial_fc.head import PartialFC
from partial_fc.initial import initial_centers
from partial_fc.optimizers import SGD
from partial_fc.options import CLASS_MEANS, HeadOptions
from partial_fc.shard import Shard
from runtime.errors import DataError
from runtime.mxnet import mx
from tests.support.alone import run_alone
from tests.support.thread_world import ThreadWorld, run_ranks
from training import class_means

CLASSES, IMAGES, SIZE, EMBEDDING = 7, 5, 32, 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root, generator = tmp_path_factory.mktemp("means"), np.random.default_rng(3)
    with RecordWriter(root / "set", image_size=(SIZE, SIZE)) as writer:
        for label in np.repeat(np.arange(CLASSES), IMAGES):
            pixels = generator.integers(256, size=(SIZE, SIZE, 3), dtype=np.uint8)
            writer.write(cv2.imencode(".png", pixels)[1].tobytes(), int(label))
    backbone().export(root / "trained")
    return root


def backbone() -> Backbone:
    options = BackboneOptions(network="tiny", embedding_size=EMBEDDING)
    return Backbone.create(options, image_size=(SIZE, SIZE), seed=5)


def centers_on(world: ThreadWorld, folder: Path) -> np.ndarray:
    head = PartialFC.create(
        HeadOptions(pretrained_centers=CLASS_MEANS), (CLASSES, EMBEDDING), world, mx.cpu(),
        optimizer=SGD(momentum=0.9, weight_decay=0.0), seed=3,
    )  # fmt: skip
    data, beat = FaceDataOptions(batch_size=4, threads=1), Mock()
    ranks = {"rank": world.rank, "world_size": world.size}
    with FaceLoader(RecordSet(folder / "set"), data, **ranks, seed=7) as faces:
        class_means.start_from_means(head, backbone(), faces, beat)
    assert beat.call_count == -(-head.shard.size * IMAGES // 4)
    return head.rows.export()["centers"].copy()


def test_centers_are_the_mean_directions_as_long_as_drawn_ones(folder: Path) -> None:
    (centers,) = run_ranks(1, lambda world: centers_on(world, folder))
    data = FaceDataOptions(batch_size=4)
    with FaceLoader(RecordSet(folder / "set"), data, rank=0, world_size=1, seed=1) as faces:
        images, labels = zip(*((one.images, one.labels) for one in faces.images_of(0, CLASSES)))
    labels = np.concatenate(labels)
    assert np.bincount(labels).tolist() == [IMAGES] * CLASSES
    embeddings = backbone().extract(np.concatenate(images)).astype(np.float64)
    units = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    for label, center in enumerate(centers):
        mean = units[labels == label].mean(axis=0)
        expected = mean / np.linalg.norm(mean) * 0.01 * np.sqrt(EMBEDDING)
        np.testing.assert_allclose(center, expected, rtol=1e-3, atol=1e-5)
    drawn = np.linalg.norm(initial_centers(Shard(0, 1, 1000), EMBEDDING, 3), axis=1)
    np.testing.assert_allclose(np.linalg.norm(centers, axis=1), drawn.mean(), rtol=0.03)
    # Several ranks have the centers of one.
    several = np.concatenate(run_ranks(3, lambda world: centers_on(world, folder)))
    np.testing.assert_allclose(several, centers, rtol=1e-4, atol=1e-6)


def test_a_class_without_readable_images_keeps_its_drawn_center(caplog) -> None:
    caplog.set_level("INFO")

    def images_of(start: int, stop: int) -> Iterator[Batch]:
        """Images without a direction are black; one cannot be read."""
        assert (start, stop) == (3, 5)
        images = np.zeros((4, 3, 2, 2), np.uint8)
        images[:, 0, 0, 0] = [3, 0, 5, 9]
        yield Batch(images, np.array([3, 4, 3, -1]))

    def infer(images: np.ndarray) -> np.ndarray:
        return np.stack([images[:, 0, 0, 0], images[:, 0, 0, 0] * 0], axis=1).astype(np.float32)

    faces = SimpleNamespace(images_of=images_of)
    means = class_means.class_means(infer, faces, Shard(1, 3, 7), 2, lambda: None)
    np.testing.assert_array_equal(means, [[2, 0], [0, 0]])
    assert "means of 3 images of 2 classes" in caplog.text
    assert "1 classes without a readable image keep random ones" in caplog.text
    not_finite = np.array([[1, 0], [1, 1], [np.nan, 1], [1, 1]], np.float32)
    with pytest.raises(DataError, match=r"not finite \(1 of 4\)"):
        class_means.class_means(lambda _: not_finite, faces, Shard(1, 3, 7), 2, lambda: None)


@pytest.mark.thorough
def test_a_run_computes_them_once(folder: Path, tmp_path: Path) -> None:
    """And a run that goes on has those of its checkpoint."""
    words = (
        *("--rec", folder / "set", "--network", "tiny", "--embedding-size", EMBEDDING),
        *("--batch-size", 4, "--models-root", tmp_path, "--save-interval", 2, "--lr", 0.001),
        *("--pretrained", f"{folder}/trained,0", "--frequent", 1, "--pretrained-centers"),
    )
    for updates in (2, 4):
        done = run_alone(program, *words, "--max-update", updates)
        assert done.returncode == 0, done.stderr
        written = (tmp_path / "logs/rank-0000.log").read_text()
        assert written.count("initial class centers: means of 35 images of 7 classes") == 1
    assert "resumed at update 2" in written
