"""On drawn embeddings: what is planted is found, and what is right is left alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from data.verification.bin_file import VerificationSet
from evaluation.clean.faces import EmbeddedFaces
from evaluation.clean.findings import Findings, find_all, find_merges, find_overlap, people_of
from evaluation.clean.labels import (
    Centers,
    Kind,
    at_far,
    cosines_of_strangers,
    exceeded_by_chance,
    find_centers,
    nearest_others,
)
from runtime.errors import DataError

WIDTH = 64
NONE = dict.fromkeys(("own", "agree", "home", "margin", "merge", "overlap", "copy"))


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-9)


def people(counts: list[int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Unit rows float32 [n, WIDTH] and the person of each; cosines of one person are near 0.8."""
    generator = np.random.default_rng(seed)
    owners = np.repeat(np.arange(len(counts)), counts)
    centers = generator.standard_normal((len(counts), WIDTH))
    rows = centers[owners] + 0.5 * generator.standard_normal((len(owners), WIDTH))
    return unit(rows).astype(np.float32), owners


def faces_of(rows: np.ndarray, labels: list[int] | np.ndarray) -> EmbeddedFaces:
    return EmbeddedFaces(rows, np.array(labels, np.int64), int(max(labels)) + 1)


def centers_of(rows: np.ndarray, agree: float = 0.5) -> Centers:
    """Of a single class."""
    return find_centers(faces_of(rows, [0] * len(rows)), agree=agree)


def find(rows: np.ndarray, labels: np.ndarray, **given: float) -> Findings:
    return find_all(faces_of(rows, labels), [], {**NONE, **given})


def pairs_of(same: list[bool], images: str) -> VerificationSet:
    """A set in which equal letters are images of equal bytes."""
    return VerificationSet(Path("t.bin"), [letter.encode() for letter in images], np.array(same))


def test_planted_labels_are_found_in_classes_of_any_size() -> None:
    rows, owners = people([*[3] * 40, *[4] * 40, *[20] * 10, 200])
    labels = owners.copy()
    planted = np.arange(5, len(rows), 17)
    labels[planted] = (owners[planted] + 1 + planted % 89) % 91
    found = find(rows * 3, labels).wrong
    assert {one.image: one.other for one in found} == dict(zip(planted, owners[planted]))
    assert len(found) == len(planted)
    assert all(one.kind == Kind.MOVED and one.cosine > 0.5 > one.own for one in found)
    # The surest first.
    leads = [one.own - one.cosine for one in found]
    assert leads == sorted(leads)
    assert not find(rows, owners).wrong


def test_what_no_class_claims_is_junk_and_two_that_disagree_are_unsure() -> None:
    rows, labels = people([*[6] * 50, *[1] * 5])
    # People of one image, among others.
    labels[-5:] = np.arange(5)
    wrong = find(rows, labels).wrong
    assert {one.image: one.kind for one in wrong} == dict.fromkeys(range(300, 305), Kind.JUNK)
    rows, labels = people([*[5] * 40, 1, 1, 1])
    # One of another class beside one that is alone, and two of which nothing says which is right.
    labels[3], labels[202] = labels[[200, 201]]
    found = {one.image: one.kind for one in find(rows, labels).wrong}
    assert found == {3: Kind.MOVED, 201: Kind.UNSURE, 202: Kind.UNSURE}


def test_a_class_in_which_all_are_claimed_keeps_the_one_that_is_claimed_least() -> None:
    rows, owners = people([*[5] * 40])
    # Both are people of other classes; the second is less sure.
    rows = np.concatenate([rows, rows[:1], rows[[6]] + 0.6 * rows[[11]]])
    found = find(rows, np.append(owners, [40, 40])).wrong
    assert [(one.image, one.other) for one in found] == [(200, 0)]


def test_a_center_is_not_drawn_to_wrong_images() -> None:
    rows, _ = people([5, 4], seed=3)
    centers = centers_of(rows)
    assert centers.in_core.tolist() == [True] * 5 + [False] * 4
    center = unit(rows[:5].sum(axis=0))
    np.testing.assert_allclose(centers.centers[0], center, rtol=1e-4, atol=1e-6)
    rest = unit(rows[1:5].sum(axis=0))
    np.testing.assert_allclose(centers.own[[0, 7]], [rows[0] @ rest, rows[7] @ center], atol=1e-5)
    # An image that is alone is not judged, and disagreement has no center.
    alone = EmbeddedFaces(people([1] * 3)[0], np.array([0, 1, 1]), 3)
    centers = find_centers(alone, agree=0.5)
    assert np.isnan(centers.own[0]) and centers.in_core.tolist() == [True, False, False]
    assert centers.centers.any(axis=1).tolist() == [True, False, False]


def test_large_classes_are_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, _ = people([30, 9])
    whole = centers_of(rows)
    monkeypatch.setattr("evaluation.clean.labels._LARGEST", 7)
    parts = centers_of(rows)
    np.testing.assert_array_equal(parts.in_core, whole.in_core)
    np.testing.assert_allclose(parts.own, whole.own, atol=1e-6)
    # No two agree.
    alone, _ = people([1] * 20)
    cosines = alone @ alone.T - 2 * np.eye(20)
    np.testing.assert_allclose(centers_of(alone, 0.9).own, cosines.max(axis=1), atol=1e-6)


def test_the_nearest_other_class_is_never_the_own_one() -> None:
    rows, owners = people([4] * 30)
    centers = np.stack([rows[owners == n].mean(axis=0) for n in range(30)])
    centers[11] = 0
    found, nearest = nearest_others(rows, owners, centers)
    cosines = rows @ unit(centers).T
    cosines[np.arange(120), owners] = cosines[:, 11] = -2
    assert found.tolist() == cosines.argmax(axis=1).tolist()
    np.testing.assert_allclose(nearest, cosines.max(axis=1), atol=1e-6)
    # There may be none.
    for left in (centers * 0, centers * (np.arange(30) == 0)[:, None]):
        found, nearest = nearest_others(rows[:4], owners[:4], left)
        assert set(found) == {-1} and set(nearest) == {-1}


def test_one_identity_in_several_classes() -> None:
    rows, owners = people([6] * 60)
    labels = owners.copy()
    labels[:4], labels[6:9] = [60, 60, 61, 61], 62
    merges = find(rows, labels).merges
    assert sorted(group for group, _ in merges) == [(0, 60, 61), (1, 62)]
    assert merges[0][1] >= merges[1][1]
    assert not find(rows, owners).merges


def test_look_alikes_do_not_chain() -> None:
    """Each center is near to the next one, and no further."""
    angles = np.arange(8) * 0.4
    centers = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    merges = find_merges(centers, float(np.cos(0.5)))
    assert all(len(group) == 2 for group, _ in merges) and len(merges) <= 4
    merges = find_merges(centers, float(np.cos(0.9)))
    assert all(len(group) <= 3 for group, _ in merges)
    for group, cosine in merges:
        # That of the two which are furthest apart.
        assert cosine == pytest.approx(np.cos(0.4 * (group[-1] - group[0])), abs=1e-5)


def test_overlap_names_classes_and_copies() -> None:
    rows, owners = people([5] * 50)
    inside = np.arange(len(rows)) % 5 < 3
    faces = faces_of(rows[inside], owners[inside])
    centers = find_centers(faces, agree=0.5).centers
    outside = people([2, 2], seed=9)[0]
    # Person 7 by two images that are not in the set, two strangers, and a copy from class 3.
    shown = np.concatenate([rows[[38, 39]], outside, rows[[15]], outside[:1]])
    pairs = pairs_of([True, True, True, False], "abcdefgc")
    found = find_overlap(faces, centers, pairs, shown, (0.6, 0.95))
    assert found.people == 4
    assert [person[:2] for person in found.persons] == [(0, 7), (6, 3)]
    ((original, copy, cosine),) = found.copies
    assert (original, np.flatnonzero(inside)[copy]) == (6, 15) and cosine == pytest.approx(1)
    # Pairs of one person, and equal images, join others.
    images, person_of = people_of(pairs_of([True, False, True, True], "abcdbfgc"))
    groups = {tuple(images[person_of == person]) for person in set(person_of)}
    assert groups == {(0, 1, 5), (2, 6), (3,)}


def test_thresholds_say_how_often_they_are_reached_by_chance() -> None:
    rows, owners = people([1] * 800, seed=5)
    strangers, cosines = cosines_of_strangers(faces_of(rows, owners)), rows @ rows.T
    upper = cosines[np.triu_indices(800, 1)]
    for far, error in ((1e-2, 0.1), (1e-3, 0.5)):
        assert np.mean(upper > at_far(strangers, far)) == pytest.approx(far, rel=error)
    largest = (cosines - 2 * np.eye(800)).max(axis=1).astype(np.float32)
    limit = exceeded_by_chance(largest, 0.05)
    assert np.mean(largest > limit) == pytest.approx(0.05, abs=0.03)
    # People who are in the set twice hardly change it.
    largest[:80] = 0.95
    assert exceeded_by_chance(largest, 0.05) == pytest.approx(limit, abs=0.04)
    assert exceeded_by_chance(largest[:0], 0.05) == 1


def test_given_cosines_replace_those_that_are_found() -> None:
    rows, owners = people([4] * 20)
    given = {"own": 0.11, "agree": 0.22, "home": 0.33, "merge": 0.99, "overlap": 0.44}
    assert find(rows, owners, **given).limits._asdict() == given
    assert not find(rows, owners, own=-1.0, agree=-1.0, home=1.0).wrong
    # Everything is far from its class, and nothing is claimed.
    found = find(rows, owners, own=1.0, home=1.0)
    assert len(found.of_kind(Kind.JUNK)) == len(found.wrong) == 80


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.nan, 1e30])
def test_what_cannot_be_compared_is_refused(value: float) -> None:
    """The squares of 1e30 are no float32: such an embedding would be far from all others."""
    with pytest.raises(DataError, match="1 identities with images"):
        find(np.ones((3, WIDTH), np.float32), np.zeros(3))
    rows, owners = people([4] * 20)
    spoiled = rows.copy()
    spoiled[7, 3] = value
    with pytest.raises(DataError, match="row 7 of the set is not finite"):
        find(spoiled, owners)
    target = (pairs_of([True] * 40, "x" * 80), spoiled)
    with pytest.raises(DataError, match="row 7 of t is not finite"):
        find_all(faces_of(rows, owners), [target], NONE)
