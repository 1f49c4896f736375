from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evaluation.features import normalized
from evaluation.folds import distances_of_pairs
from evaluation.verification import EmbeddingRanks, VerificationResult, embed, evaluate, verify
from parallel.world import allgather_numpy
from runtime.errors import DataError
from tests.support.thread_world import run_ranks


def embedded(*distances: float) -> np.ndarray:
    """Return pairs of unit vectors with the given squared distances."""
    cosines = 1 - np.array(distances) / 2
    first = np.stack([np.ones_like(cosines), np.zeros_like(cosines)], axis=1)
    second = np.stack([cosines, np.sqrt(1 - cosines**2)], axis=1)
    return np.stack([first, second], axis=1).reshape(-1, 2)


def bools(letters: str) -> np.ndarray:
    """Return True for every S(ame), False for every D(ifferent)."""
    return np.array([letter == "S" for letter in letters])


def judge(distances: Sequence[float] | np.ndarray, letters: str, **more: Any) -> VerificationResult:
    return verify(embedded(*distances), bools(letters), **{"xnorm": 1.0, "folds": 2, **more})


class FakeTarget:
    """Images of random pixels; a pair of one person shares its left half."""

    name = "fake"

    def __init__(self, pairs: int) -> None:
        generator = np.random.default_rng(3)
        self.images = generator.integers(0, 256, (2 * pairs, 3, 4, 4), dtype=np.uint8)
        self.same = np.arange(pairs) % 2 == 0
        self.images[0::4, :, :, :2] = self.images[1::4, :, :, :2]
        self.firsts = np.arange(2 * pairs)
        self.decoded: list[int] = []

    def decode(self, numbers: Sequence[int], size: tuple[int, int]) -> np.ndarray:
        self.decoded += numbers
        assert size == (4, 4)
        return self.images[numbers]


def corner(images: np.ndarray) -> np.ndarray:
    """Return the upper left pixels, exact numbers that depend on no other image."""
    return images[:, :, :2, :2].reshape(len(images), -1).astype(np.float32)


def test_threshold_comes_from_the_other_fold() -> None:
    result = judge((0.105, 0.305, 0.205, 0.405, 0.105, 0.205, 0.305, 0.405), "SSDDSSDD")
    # Fold 1 is right everywhere at 0.21: there fold 0 has two of four right. Fold 0 has three right
    # from 0.11 on: there fold 1 has three of four right.
    assert result.accuracy == pytest.approx((0.5 + 0.75) / 2)
    assert result.accuracy_std == pytest.approx(0.125)
    assert result.threshold == pytest.approx((0.21 + 0.11) / 2)


def test_a_distance_on_the_threshold_is_not_below_it() -> None:
    embeddings = np.array([[0, 0], [0.5, 0], [0, 0], [1, 0]] * 2, np.float32)
    result = verify(embeddings, bools("SDSD"), xnorm=1.0, folds=2)
    assert (result.accuracy, result.threshold) == pytest.approx((1.0, 0.26))


@pytest.mark.parametrize(
    ("distances", "letters", "tar"),
    [
        # In each fold, the first of 500 wrong acceptances starts above 1.0005, so that the rate
        # grows from 0 at 1.000 to 1/500 at 1.001; it is 1/1000 at 1.0005.
        ([0.5, 0.9, 1.0003, 1.0007, 1.0005, *[3.0] * 499] * 2, ("S" * 4 + "D" * 500) * 2, 0.75),
        # One of 1000 is wrongly accepted from 1.001 to 3.000: the largest threshold counts.
        ([0.5, 2.9995, 3.0003, 3.5, 1.0005, *[3.0005] * 999] * 2, ("SSSS" + "D" * 1000) * 2, 0.5),
        # One wrong acceptance in 1000 allows 3.000 by fold 0 and little more than 2.000 by fold 1.
        (
            [2.5, 1.0005, *[3.0005] * 999, *[2.5] * 3, *[2.0005] * 998],
            "S" + "D" * 1000 + "SSS" + "D" * 998,
            0.75,
        ),
    ],
    ids=["interpolated", "largest", "other fold"],
)
def test_true_accept_rate_by_hand(distances: list[float], letters: str, tar: float) -> None:
    assert judge(distances, letters).tar_at_far == {1e-3: tar}


def test_a_rate_of_one_in_ten_thousand_needs_ten_thousand_pairs() -> None:
    for count, rates in ((9_999, [1e-3]), (10_000, [1e-3, 1e-4])):
        distances = [*[0.1] * 10, *np.random.default_rng(0).uniform(1, 3, count)]
        assert list(judge(distances, "S" * 10 + "D" * count, folds=10).tar_at_far) == rates


def test_equals_the_protocol_written_as_loops() -> None:
    generator = np.random.default_rng(11)
    same = generator.random(400) < 0.5
    distances = np.clip(generator.normal(np.where(same, 1.0, 1.6), 0.4), 0, 4)
    result = verify(embedded(*distances), same, xnorm=1.0)
    accuracies = []
    for fold in np.array_split(np.arange(400), 10):
        others = np.setdiff1d(np.arange(400), fold)
        right = [np.sum((distances[others] < t / 100) == same[others]) for t in range(400)]
        best = int(np.argmax(right)) / 100
        accuracies.append(np.mean((distances[fold] < best) == same[fold]))
    assert result.accuracy == pytest.approx(np.mean(accuracies))
    assert result.accuracy_std == pytest.approx(np.std(accuracies))


def test_separable_pairs_read_as_one_line() -> None:
    result = judge((0.505, 1.5, 0.505, 1.6), "SDSD", xnorm=7.0)
    assert result.xnorm == 7.0 and str(result) == (
        "accuracy 1.0000 ± 0.0000, TAR 1.0000 @ FAR 0.001, threshold 0.510, XNorm 7.00"
    )


def test_mirror_image_is_added_before_normalizing() -> None:
    images = np.array([[[[3, 4]]]], np.uint8)
    features, mirrored = np.array([3, 8]), np.array([4, 6])
    both = (features + mirrored) / np.linalg.norm(features + mirrored)
    for flip, embedding, norm in (
        (True, both, (np.sqrt(73) + np.sqrt(52)) / 2),
        (False, features / np.sqrt(73), np.sqrt(73)),
    ):
        found, norms = embed(
            lambda batch: batch.reshape(len(batch), 2).astype(np.float32) * [[1, 2]],
            lambda a, b: images[a:b], 1, 1, flip=flip,
        )  # fmt: skip
        np.testing.assert_allclose(found, [embedding], rtol=1e-6)
        np.testing.assert_allclose(norms, [norm], rtol=1e-6)


def test_every_batch_has_one_shape() -> None:
    images, shapes = FakeTarget(pairs=5).images, set()

    def extract(images: np.ndarray) -> np.ndarray:
        shapes.add(images.shape)
        return corner(images)

    embeddings, norms = embed(extract, lambda a, b: images[a:b], 10, 4)
    assert shapes == {(4, 3, 4, 4)} and norms.shape == (10,)
    whole, _ = embed(corner, lambda a, b: images[a:b], 10, 10)
    np.testing.assert_array_equal(embeddings, whole)
    embeddings, norms = embed(corner, lambda a, b: np.zeros_like(images[a:b]), 2, 2)
    assert not embeddings.any() and not norms.any()


def evaluate_over_ranks(target: Any, size: int) -> list[VerificationResult]:
    """Evaluate on every rank, one after the other."""

    def run(world: Any) -> VerificationResult:
        ranks = EmbeddingRanks(
            world.rank, size, lambda rows, name: allgather_numpy(world, rows, name)
        )
        return evaluate(corner, target, batch_size=4, ranks=ranks, image_size=(4, 4))

    target.decoded.clear()
    return run_ranks(size, run)


@pytest.mark.parametrize(("pairs", "ranks"), [(20, 3), (10, 12)])
def test_one_rank_and_several_find_the_same(pairs: int, ranks: int) -> None:
    target = FakeTarget(pairs)
    (alone,) = evaluate_over_ranks(target, 1)
    mirrored = target.images[..., ::-1]
    norms = [np.linalg.norm(corner(images), axis=1) for images in (target.images, mirrored)]
    assert alone.xnorm == pytest.approx(np.mean(norms), rel=1e-6)
    assert 0.5 < alone.accuracy < 1.0
    for result in evaluate_over_ranks(target, ranks):
        assert result.xnorm == pytest.approx(alone.xnorm, rel=1e-6)
        assert replace(result, xnorm=alone.xnorm) == alone
    # Every image is embedded once.
    assert sorted(target.decoded) == list(range(2 * pairs))


@pytest.mark.parametrize("ranks", [1, 3])
def test_an_image_of_several_pairs_is_embedded_once(ranks: int) -> None:
    target = FakeTarget(pairs=20)
    target.images[[5, 8, 39]] = target.images[[3, 3, 12]]
    (expected,) = evaluate_over_ranks(target, 1)
    target.firsts[[5, 8, 39]] = [3, 3, 12]
    for result in evaluate_over_ranks(target, ranks):
        assert str(result) == str(expected)
        assert result.xnorm == pytest.approx(expected.xnorm, rel=1e-6)
    assert sorted(target.decoded) == [n for n in range(40) if n not in (5, 8, 39)]


@pytest.mark.parametrize("letters", ["SDSDSDSDS", "S" * 20, "D" * 20])
def test_sets_that_cannot_be_judged(letters: str) -> None:
    target = FakeTarget(pairs=len(letters))
    target.same = bools(letters)
    with pytest.raises(DataError, match=f"'fake' has {len(letters)} pairs"):
        evaluate_over_ranks(target, 1)


ACCURACIES = {10: (0.919178, 0.025616), 7: (0.919206, 0.018360), 2: (0.912259, 0.004076),
              1: (0.919242, 0.0)}  # fmt: skip
"""Mean and deviation by the number of folds, of InsightFace's ``verification.py`` and ``lfw.py``.

They are what the programs gave for ``synthetic()``, run with their sources.
"""


def synthetic() -> tuple[np.ndarray, np.ndarray]:
    """Embeddings [2 P, D] and answers [P] of pairs that no fold has equally many of."""
    rng = np.random.default_rng(7)
    same = rng.random(1003) < 0.4
    first = rng.normal(0, 1, (1003, 16))
    noise, other = rng.normal(0, 1.3, first.shape), rng.normal(size=first.shape)
    second = np.where(same[:, None], first + noise, other)
    rows = np.stack([first, second], axis=1).reshape(-1, 16)
    return normalized(rows.astype(np.float32)), same


@pytest.mark.parametrize("folds", ACCURACIES)
def test_accuracies_are_those_of_the_programs(folds: int) -> None:
    result = verify(*synthetic(), xnorm=1.0, folds=folds)
    found = (result.accuracy, result.accuracy_std)
    assert found == pytest.approx(ACCURACIES[folds], abs=1e-6)


def test_a_single_fold_chooses_its_own_rate() -> None:
    """As many pairs of two people as the rate allows are accepted, of all of them."""
    embeddings, same = synthetic()
    result = verify(embeddings, same, xnorm=1.0, folds=1)
    distances, _ = distances_of_pairs(embeddings, same, 1)
    others = np.sort(distances[~same])
    threshold = others[int(1e-3 * len(others))]
    assert result.tar_at_far[1e-3] == pytest.approx((distances[same] < threshold).mean(), abs=0.01)
