"""The teacher's part of loss and gradient, against float64; and what is no teacher."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import numpy as np
import pytest

from backbones.model import Backbone
from backbones.options import BackboneOptions
from parallel.world import LoneWorld, World
from partial_fc.head import HeadStep
from runtime.errors import ConfigError, DataError
from runtime.mxnet import mx
from tests.support.thread_world import run_ranks
from training.config.faces import TeacherOptions
from training.update.teacher import Teacher

BATCH, EMBEDDING, SIZE, WEIGHT = 6, 8, 32, 3.0
IMAGES = np.random.default_rng(0).integers(256, size=(BATCH, 3, SIZE, SIZE), dtype=np.uint8)
FEATURES = np.random.default_rng(1).normal(size=(BATCH, EMBEDDING))
TAUGHT = np.random.default_rng(2).normal(size=(BATCH, EMBEDDING)).astype(np.float32)


def distance(features: np.ndarray) -> float:
    """The mean of 1 - cosine in float64."""
    norms = np.linalg.norm(features, axis=1) * np.linalg.norm(TAUGHT.astype(np.float64), axis=1)
    return float(np.mean(1 - (features * TAUGHT).sum(axis=1) / norms))


def slopes() -> np.ndarray:
    """Its derivatives, by differences."""
    steps = 1e-6 * np.eye(FEATURES.size).reshape(-1, *FEATURES.shape)
    found = [(distance(FEATURES + step) - distance(FEATURES - step)) / 2e-6 for step in steps]
    return np.reshape(found, FEATURES.shape)


def lesson(world: World, weight: float) -> tuple[HeadStep, HeadStep, float]:
    """What a rank's head has computed, with the teacher's part, and the reported distance."""
    share = BATCH // world.size
    own = slice(world.rank * share, (world.rank + 1) * share)

    def infer(images: np.ndarray) -> np.ndarray:
        np.testing.assert_array_equal(images, IMAGES[own])
        return TAUGHT[own]

    teacher = Teacher(infer, weight, world)
    before = HeadStep(mx.nd.array([5.0]), mx.nd.ones((share, EMBEDDING)), lambda: None)
    after = teacher.add_to(before, mx.nd.array(FEATURES[own]), IMAGES[own])
    return before, after, teacher.averages()["teacher_loss"]


@pytest.mark.parametrize("ranks", [1, 3])
def test_loss_and_gradient_are_those_of_the_global_batch(ranks: int) -> None:
    results = run_ranks(ranks, lambda world: lesson(world, WEIGHT))
    for _, after, reported in results:
        assert reported == pytest.approx(distance(FEATURES), rel=1e-5)
        assert after.loss.asscalar() == pytest.approx(5 + WEIGHT * distance(FEATURES), rel=1e-5)
    gradient = np.concatenate([after.gradient.asnumpy() for _, after, _ in results])
    np.testing.assert_allclose(gradient, 1 + WEIGHT * slopes(), rtol=1e-4, atol=1e-5)


def test_embeddings_that_teach_nothing() -> None:
    # With a weight of 0 they are measured alone.
    before, after, reported = lesson(LoneWorld(), 0.0)
    assert after is before and reported == pytest.approx(distance(FEATURES), rel=1e-5)

    def add(taught: np.ndarray) -> HeadStep:
        teacher = Teacher(lambda images: taught, 1.0, LoneWorld())
        return teacher.add_to(before, mx.nd.array(FEATURES), IMAGES)

    # Without a direction they have no gradient.
    after = add(np.zeros((BATCH, EMBEDDING), np.float32))
    assert (after.gradient.asnumpy() == 1).all() and after.loss.asscalar() == 6
    # Not finite: the loss of the update would be the student's fault.
    with pytest.raises(DataError, match="embeddings that are not finite"):
        add(np.where(TAUGHT > 2, np.nan, TAUGHT))


def make(seed: int, size: int = EMBEDDING) -> Backbone:
    chosen = BackboneOptions(network="tiny", embedding_size=size)
    return Backbone.create(chosen, image_size=(SIZE, SIZE), seed=seed)


def test_a_teacher_is_loaded(tmp_path: Path) -> None:
    def load(name: str) -> Optional[Teacher]:
        options = TeacherOptions(teacher=f"{tmp_path}/{name}", teacher_weight=2.0)
        return Teacher.create(options, make(1), (SIZE, SIZE), LoneWorld())

    make(2).export(tmp_path / "strong", 4)
    teacher = load("strong,4")
    assert teacher is not None
    taught, expected = teacher._infer(IMAGES), make(2).extract(IMAGES)
    np.testing.assert_allclose(taught, expected, rtol=1e-3, atol=1e-4)
    assert Teacher.create(TeacherOptions(), make(1), (SIZE, SIZE), LoneWorld()) is None
    make(2, size=12).export(tmp_path / "other")
    with pytest.raises(ConfigError, match=r"other,0 has embeddings of 12 numbers, .* have 8; "):
        load("other,0")
    # One without a row per image.
    means = mx.sym.Pooling(mx.sym.var("data"), global_pool=True, kernel=(1, 1), pool_type="avg")
    symbol = mx.sym.Convolution(means, kernel=(1, 1), num_filter=EMBEDDING, name="fc1")
    symbol.save(f"{tmp_path}/maps-symbol.json")
    (tmp_path / "strong-0004.params").rename(tmp_path / "maps-0000.params")
    with pytest.raises(DataError, match=r"gives \[2, 8, 1, 1\] for two images; its output has"):
        load("maps,0")
