"""Accuracies, curves, thresholds and groups: by hand, by loops, and by the original's numbers."""

from __future__ import annotations

import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backbones.model import Backbone
from data.verification.bin_file import VerificationSet
from evaluation.features import FaceNetwork, normalized
from evaluation.verification import curves, embed_pairs, evaluate, verify
from evaluation.verification.curves import (
    FOLDS,
    hold_out,
    pairs_of,
    roc,
    tar_at,
    threshold_for,
)
from evaluation.verification.report import (
    compare_groups,
    group_lines,
    read_groups,
    spread_of,
)
from tests.support.sets import assert_refused
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


def judge(distances: Any, letters: str, **more: Any) -> Any:
    found = {"xnorm": 1.0, "folds": 2, **more}
    pairs = pairs_of(embedded(*distances), bools(letters), found.pop("folds"))
    return verify(pairs, **found)


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

    def pixels(self, number: int, size: tuple[int, int]) -> np.ndarray:
        self.decoded.append(number)
        assert size == self.images.shape[2:]
        return self.images[number]


def corner(images: np.ndarray) -> np.ndarray:
    """Return the upper left pixels, exact numbers that depend on no other image."""
    return images[:, :, :2, :2].reshape(len(images), -1).astype(np.float32)


def test_a_distance_on_the_threshold_is_not_below_it() -> None:
    embeddings = np.array([[0, 0], [0.5, 0], [0, 0], [1, 0]] * 2, np.float32)
    result = verify(pairs_of(embeddings, bools("SDSD"), 2), xnorm=1.0)
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


def test_separable_pairs_read_as_one_line() -> None:
    result = judge((0.505, 1.5, 0.505, 1.6), "SDSD", xnorm=7.0)
    assert result.xnorm == 7.0 and str(result) == (
        "accuracy 1.0000 ± 0.0000, TAR 1.0000 @ FAR 0.001, threshold 0.510, XNorm 7.00"
    )


def test_mirror_image_is_added_before_normalizing() -> None:
    def doubled(batch: np.ndarray) -> np.ndarray:
        return batch.reshape(len(batch), 2) * np.float32([1, 2])

    target = FakeTarget(pairs=1)
    target.images = np.array([[[[3, 4]]], [[[4, 3]]]], np.uint8)
    features, mirrored = np.array([3, 8]), np.array([4, 6])
    for flip, expected in ((True, features + mirrored), (False, features)):
        found, mean = embed_pairs(FaceNetwork(doubled, (1, 2), 1, flip), target)
        np.testing.assert_allclose(found[0], expected / np.linalg.norm(expected), rtol=1e-6)
        assert mean == pytest.approx((np.sqrt(73) + np.sqrt(52)) / 2, rel=1e-6)


def test_every_batch_has_one_shape() -> None:
    def spoiled(images: np.ndarray) -> np.ndarray:
        """Give what fills a batch up a row that is not finite."""
        return np.where(images.any(axis=(1, 2, 3))[:, None], corner(images), np.nan)

    target, extract = FakeTarget(pairs=5), Mock(side_effect=spoiled)
    embeddings, _ = embed_pairs(FaceNetwork(extract, (4, 4), 4, False), target)
    shapes = [call.args[0].shape for call in extract.call_args_list]
    assert {*shapes} == {(4, 3, 4, 4)} and embeddings.flags.c_contiguous
    whole, _ = embed_pairs(FaceNetwork(corner, (4, 4), 10, False), target)
    np.testing.assert_array_equal(embeddings, whole)
    target.images[:] = 0
    embeddings, norm = embed_pairs(FaceNetwork(corner, (4, 4), 2, False), target)
    assert not embeddings.any() and not norm


def evaluate_over_ranks(target: Any, size: int) -> list[Any]:
    def run(world: Any) -> Any:
        return evaluate(FaceNetwork(corner, (4, 4), 4), target, world)

    target.decoded.clear()
    return run_ranks(size, run)


@pytest.mark.parametrize(("pairs", "ranks"), [(20, 3), (10, 12)])
def test_one_rank_and_several_find_the_same(pairs: int, ranks: int) -> None:
    """They embed every image once, also one of several pairs."""
    target, copies, originals = FakeTarget(pairs), [4, 5, 19], [0, 1, 3]
    target.images[copies] = target.images[originals]
    (alone,) = evaluate_over_ranks(target, 1)
    mirrored = target.images[..., ::-1]
    norms = [np.linalg.norm(corner(images), axis=1) for images in (target.images, mirrored)]
    assert alone.xnorm == pytest.approx(np.mean(norms), rel=1e-6)
    assert 0.5 < alone.accuracy < 1.0
    for size, firsts in ((ranks, copies), (1, originals), (ranks, originals)):
        target.firsts[copies] = firsts
        for result in evaluate_over_ranks(target, size):
            assert result.xnorm == pytest.approx(alone.xnorm, rel=1e-6)
            assert replace(result, xnorm=alone.xnorm) == alone
        assert sorted(target.decoded) == np.unique(target.firsts).tolist()


def synthetic() -> tuple[np.ndarray, np.ndarray]:
    """Embeddings [2 P, D] and answers [P] of pairs that no fold has equally many of."""
    rng = np.random.default_rng(7)
    same = rng.random(1003) < 0.4
    first = rng.normal(0, 1, (1003, 16))
    noise, other = rng.normal(0, 1.3, first.shape), rng.normal(size=first.shape)
    second = np.where(same[:, None], first + noise, other)
    rows = np.stack([first, second], axis=1).reshape(-1, 16)
    return normalized(rows.astype(np.float32)), same


@pytest.mark.parametrize(
    ("folds", "accuracy", "deviation", "tar"),
    [
        (10, 0.919178, 0.025616, 0.339901), (7, 0.919206, 0.01836, 0.347291),
        (2, 0.912259, 0.004076, 0.41133), (1, 0.919242, 0, 0.317734),
    ],
)  # fmt: skip
def test_accuracies_are_those_of_the_programs(folds: int, accuracy, deviation, tar) -> None:
    """As InsightFace's ``verification.py`` and ``lfw.py`` give them; the TAR is our own."""
    result = verify(pairs_of(*synthetic(), folds), xnorm=1.0)
    found = (result.accuracy, result.accuracy_std, result.tar_at_far[1e-3])
    assert found == pytest.approx((accuracy, deviation, tar), abs=1e-6)


DRAWN = st.lists(st.tuples(st.integers(-9, 9), st.booleans()), min_size=2, max_size=60).filter(
    lambda drawn: len({same for _, same in drawn}) == 2
)


@given(DRAWN, st.sampled_from([0.05, 0.1, 0.2, 0.25, 0.5, 0.9]))
@settings(max_examples=25, deadline=None)
def test_curves_are_what_counting_says(drawn, wanted: float) -> None:
    scores, same = (np.array(column) for column in zip(*drawn))
    cosines = scores / 10
    curve, different = roc(cosines, same), cosines[~same]
    gaps = cosines[same][:, None] - different
    assert curves.area_under(curve) == pytest.approx(np.mean((gaps > 0) + 0.5 * (gaps == 0)))
    far, tar = curve.far, curve.tar
    error = curves.equal_error_rate(curve)
    assert 0 <= error <= 1 and np.interp(error, far, tar) >= 1 - error - 1e-9
    found = tar_at(curve, wanted)
    assert (found is None) == (wanted * len(different) < 1 - 1e-9)
    assert found is None or found == tar[far <= wanted + 1e-9].max()
    # A lower threshold would accept too many.
    threshold = threshold_for(different, wanted)
    if threshold is None:
        assert wanted * len(different) < 1
    else:
        assert np.mean(different >= threshold) <= wanted + 1e-9
        assert np.mean(different >= different[different < threshold].max()) > wanted


@pytest.mark.parametrize(
    ("cosines", "far", "threshold"),
    [
        # In the middle, on which no pair lies.
        ([0.1, 0.5, 0.3, 0.2], 0.25, 0.4),
        ([0.1, 0.9, 0.30005, 0.2, 0.5, *[0.0] * 5], 0.29, 0.4),
        # Equal ones are accepted together; a threshold of theirs would do so.
        ([0.5, 0.5, 0.3, 0.2], 0.25, 0.5001),
        ([0.5, 0.4], 0.25, None),
        # Where the middle has more digits, it is rounded, but not to where too many are accepted.
        ([0.12344, 0.12346, 0.0], 0.34, 0.1235),
        ([0.12351, 0.12356, 0.0], 0.34, 0.1236),
        # 0.001 * 3000 is 3, which rounding may make less.
        (np.arange(3000) / 3000, 0.001, 0.9988),
    ],
)
def test_thresholds_by_hand(cosines, far: float, threshold: float) -> None:
    assert threshold_for(np.array(cosines), far) == threshold


def test_held_out_pairs_do_not_choose_their_threshold() -> None:
    cosines = np.where(bools("SD" * 20), 0.9, np.arange(40) / 100)
    pairs = pairs_of(embedded(*(2 - 2 * cosines)), bools("SD" * 20), folds=2)
    found = hold_out(pairs, 0.1)
    assert found is not None
    # Of ten pairs in each fold one may be accepted: 0.01 ... 0.19 and 0.21 ... 0.39.
    assert found["fold_thresholds_cosine"] == pytest.approx([0.38, 0.18])
    assert (found["held_out_far"]["accepted"], found["held_out_far"]["pairs"]) == (10, 20)
    assert found["threshold_cosine"] == pytest.approx(0.36) and found["held_out_tar"] == 1.0
    assert hold_out(pairs, 0.06) is None


def test_each_group_by_the_common_threshold_and_by_its_own() -> None:
    generator = np.random.default_rng(7)
    same, groups = bools("SD" * 200), np.array(["b", "b", "a", "a"] * 100)
    shift = np.where(groups == "a", 0.4, 0.0)
    distances = np.clip(generator.normal(np.where(same, 1.0, 1.6) + shift, 0.2), 0, 4)
    pairs = pairs_of(embedded(*distances), same)
    thresholds: Any = {far: hold_out(pairs, far) for far in (0.1, 1e-3)}
    rows = compare_groups(pairs, groups.tolist(), thresholds)
    assert [(row["name"], row["pairs"]) for row in rows] == [("b", 200), ("a", 200)]
    whole = verify(pairs, xnorm=1.0)
    assert np.mean([row["accuracy"] for row in rows]) == pytest.approx(whole.accuracy)
    for row in rows:
        own = groups == row["name"]
        alone = verify(pairs_of(embedded(*distances[own]), same[own]), xnorm=1.0)
        assert row["own_accuracy"] == pytest.approx(alone.accuracy)
        judged = (row["tar"]["share"] + 1 - row["far"]["share"]) / 2
        assert row["accuracy"] == pytest.approx(judged)
    assert rows[0]["far"]["share"] > rows[1]["far"]["share"]
    # What all groups together accept by the threshold for a FAR is what its report counts.
    fars, tars = ([row["for_far"][0][kind]["share"] for row in rows] for kind in ("far", "tar"))
    assert fars[0] > fars[1] and thresholds[1e-3] is None
    assert np.mean(fars) == pytest.approx(thresholds[0.1]["held_out_far"]["share"])
    assert np.mean(tars) == pytest.approx(thresholds[0.1]["held_out_tar"])
    assert [row["for_far"][1] for row in rows] == [{"wanted": 1e-3, "far": None, "tar": None}] * 2


def test_a_small_group_has_no_accuracy_of_its_own_and_one_group_no_spread() -> None:
    pairs = pairs_of(embedded(*[0.5, 1.5] * 10), bools("SD" * 10))
    few, many = compare_groups(pairs, ["few"] + ["many"] * 19, {0.2: hold_out(pairs, 0.2)})
    assert (few["accuracy"], few["own_accuracy"], few["far"]) == (1.0, None, None)
    header, *rows = group_lines([few, many])
    assert header.split()[-8:] == [*"FAR TAR FAR for 0.2 TAR for 0.2".split()]
    assert rows[0].split() == ["few", "1", "1.0000", "-", "-", "1.0000", "-", "1.0000"]
    assert rows[1].split()[:4] == ["many", "19", "1.0000", "1.0000"]
    found = spread_of([0.9, 0.8, 0.7])
    assert found == pytest.approx({"mean": 0.8, "deviation": 0.1, "error_ratio": 3.0})
    assert spread_of([0.9]) is None
    assert (spread_of([1.0, 0.9]) or {})["error_ratio"] is None


def test_files_of_groups(tmp_path: Path) -> None:
    path = tmp_path / "g.txt"
    assert_refused("cannot be read", read_groups, path, 3, "lfw")
    for content in (b"\xef\xbb\xbfa b\r\n\xc3\xa9\r\n", b"a b\r\xc3\xa9"):
        path.write_bytes(content)
        assert read_groups(path, 2, "lfw") == ["a b", "é"]
    path.write_text("a\nb\n")
    assert_refused("has 2 lines, and the set 'lfw' 3 pairs", read_groups, path, 3, "lfw")


def lfw_pairs(folder: Path, same: int, different: int) -> VerificationSet:
    """The first pairs of each of LFW's ten folds, so many of one person and of two."""
    lines = (folder / "lfw_pairs.txt").read_text().splitlines()[1:]
    names = []
    for start in range(0, 600 * FOLDS, 600):
        for line in [*lines[start:][:same], *lines[start + 300 :][:different]]:
            # NAME 1 4, or NAME 1 OTHER 4.
            first, number, *other, last = line.split()
            sides = (first, number), ([*other, first][0], last)
            names += [f"{person}_{int(image):04d}.jpg" for person, image in sides]
    wanted = set(names)
    with tarfile.open(folder / "lfw_112x112.tar.gz") as archive:
        found = {
            Path(member.name).name: archive.extractfile(member).read()
            for member in archive
            if Path(member.name).name in wanted
        }
    answers = bools(("S" * same + "D" * different) * FOLDS)
    return VerificationSet(Path("lfw.bin"), [found[name] for name in names], answers)


LONG = [pytest.mark.models, pytest.mark.timeout(1800)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("same", "different", "fars"),
    [(6, 60, (0.1, 0.02)), pytest.param(300, 300, (0.1, 0.01, 0.001), marks=LONG)],
)
def test_a_threshold_keeps_its_rate(toolkit_data, same, different, fars) -> None:
    """And a published checkpoint its accuracy, without which channels or the scale are wrong."""
    target = lfw_pairs(toolkit_data, same, different)
    backbone = Backbone.load(toolkit_data / "mobilefacenet_y1" / "model")
    embeddings, _ = embed_pairs(FaceNetwork(backbone.inference(), flip=False), target)
    pairs = pairs_of(embeddings, target.same)
    assert verify(pairs, xnorm=1.0).accuracy >= 0.97
    for far in fars:
        found = hold_out(pairs, far)
        assert found is not None
        held_out = found["held_out_far"]
        assert held_out["pairs"] == FOLDS * different
        assert held_out["low"] <= far <= held_out["high"], (far, held_out)
        assert found["held_out_tar"] > 0.9, (far, found["held_out_tar"])
