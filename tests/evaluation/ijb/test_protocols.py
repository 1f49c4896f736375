"""Templates, 1:1 and 1:N: what InsightFace's programs gave, and loops in float64; tables, JSON."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.ijb import protocols
from evaluation.ijb.lists import Faces, Pairs, Subjects
from evaluation.ijb.protocols import (
    cosines_of_pairs,
    identify,
    mean_of,
    template_features,
    verify,
)  # fmt: skip
from runtime.errors import DataError


def faces_of(templates: Any, media: Any, scores: Any) -> Faces:
    ids, rows = np.unique(templates, return_inverse=True)
    points = np.zeros((len(rows), 5, 2))
    return Faces([""] * len(rows), points, np.array(scores), ids, rows, np.array(media))


@pytest.mark.parametrize(
    ("program", "norm", "expected"),
    [
        ("ijb.py", True, [0.238687, 0.238687, 0.328305, 0.559006, 0.779059, 0.953860]),
        ("ijb_11.py", True, [0.176575, 0.182786, 0.226264, 0.371783, 0.597161, 0.906832]),
        ("ijb.py", False, [0.224490, 0.224490, 0.330967, 0.552795, 0.778172, 0.952085]),
        ("ijb_11.py", False, [0.217391, 0.244898, 0.280390, 0.456078, 0.694765, 0.932564]),
    ],
)
def test_rates_are_those_of_the_programs(program: str, norm: bool, expected: list[float]) -> None:
    """What both gave for this set, run with their sources.

    The views of a face have other lengths: by them one of ``ijb_11.py`` counts more or less.
    """
    rng = np.random.default_rng(43)
    people, templates, faces, width = 60, 500, 2500, 24
    of_template = rng.integers(0, people, templates)
    template = np.concatenate([np.arange(templates), rng.integers(0, templates, faces - templates)])
    centers = rng.normal(0, 1, (people, width))
    views = centers[of_template[template]] + rng.normal(0, 2.4, (2, faces, width))
    # A blurred face has short features.
    views *= np.exp(rng.normal(0, 0.8, (2, faces, 1)))
    chosen = rng.integers(0, templates, (60_000, 2))
    same = of_template[chosen[:, 0]] == of_template[chosen[:, 1]]
    scores = rng.uniform(0.3, 1, faces).astype(np.float32).astype(np.float64)
    listed = faces_of(template, rng.integers(0, 4, faces), scores)
    parts = np.split(views.astype(np.float32), [700, 1900], axis=1)
    features = template_features(parts, listed, unit_views=program == "ijb.py", norm_score=norm)
    first, second = chosen.astype(np.int32).T
    cosines = cosines_of_pairs(features, Pairs(first, second, same))
    found, _ = verify(cosines, same)
    rates = found.pop("tar_at_far")
    assert [rate["tar"] for rate in rates] == pytest.approx(expected, abs=1e-6)
    assert [rate["far"] for rate in rates] == list(protocols.FALSE_ACCEPT_RATES)
    assert (found["pairs"], found["same"]) == (60_000, same.sum())


def test_templates_by_hand() -> None:
    """Two frames of a video, averaged, and an image; a template of one face, and one of none."""
    features = np.array([[4, 0], [0, 6], [0, 3], [0, -2], [1, 1]], np.float32)
    faces = faces_of([5, 5, 5, 2, 7], [1, 1, 2, 1, 1], [1, 0.5, 2, 0.1, 0])
    parts = [features[np.newaxis, :2], features[np.newaxis, 2:]]
    rows = template_features(parts, faces, unit_views=False)
    # (4, 3) / 2 + (0, 6)
    assert rows == pytest.approx(np.array([[0, -1], np.array([2, 7.5]) / np.hypot(2, 7.5), [0, 0]]))
    rows = template_features(parts, faces, unit_views=False, detector_score=False)
    assert rows[1:] == pytest.approx(np.array([[2, 6], [1, 1]]) / [[np.hypot(2, 6)], [2**0.5]])


def rate(scores: Any, same: Any, place: int) -> tuple[Any, ...]:
    """One of the rates: wanted, and those of the nearest point, with its threshold."""
    found = verify(np.array(scores), np.array(same, np.bool_))[0]["tar_at_far"][place]
    return tuple(found[name] for name in ("far", "nearest_far", "tar", "threshold"))


def test_rates_by_hand() -> None:
    """Ten pairs of two people; one of them is more similar than two of one person."""
    scores, same = np.concatenate([np.arange(10) / 20, [0.9, 0.8, 0.43, 0.2]]), np.arange(14) >= 10
    assert rate(scores, same, -1) == (0.1, 0.1, 0.75, 0.43)
    assert rate(scores, same, 0) == (1e-6, 0.0, 0.5, 0.8)
    found, curve = verify(scores, same)
    assert found["auc"] == pytest.approx((2 * 10 + 9 + 4.5) / 40)
    assert curve[:, 0].tolist() == [0, 0] and curve[:, -1].tolist() == [1, 1]
    # Points on a line are left out as in the original: from 0 to 0.5 nothing is gained, so 0 is
    # nearer to 0.1 than any point that is left.
    scores[-2:] = 0.47, 0.22
    assert rate(scores, same, -1) == (0.1, 0.0, 0.75, 0.47)
    # Nothing is accepted before the first pair of two people.
    assert rate([1.0, 0.5], [False, True], 0) == (1e-6, 0.0, 0.0, None)


def loops(features: np.ndarray, gallery: Subjects, probes: Subjects) -> dict[str, Any]:
    """The shares of mated probes within ranks, and those identified at false alarm rates."""
    vectors = {one: features[row] for row, one in zip(gallery.templates, gallery.subjects)}
    mated, strangers = [], []
    for row, subject in zip(probes.templates, probes.subjects):
        found = {one: float(features[row] @ vector) for one, vector in vectors.items()}
        if subject in found:
            mated.append((found.pop(subject), max(found.values()), [*found.values()]))
        else:
            strangers.append(max(found.values()))
    strangers.sort(reverse=True)
    places = [sum(other >= own for other in others) for own, _, others in mated]
    shares: dict[str, Any] = {f"rank-{n}": np.mean(np.array(places) < n) for n in (1, 5, 10)}
    for rate in (0.01, 0.1):
        threshold = strangers[max(int(len(strangers) * rate) - 1, 0)]
        shares[str(rate)] = np.mean([own > max(best, threshold) for own, best, _ in mated])
    return shares


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 13), st.integers(1, 30), st.integers(1, 35), st.integers(0, 1000))
def test_identification_equals_the_loops_with_ties(
    people: int, mated: int, others: int, seed: int
) -> None:
    """Templates of small whole numbers, many of which are equal: cosines are exact."""
    rng = np.random.default_rng(seed)
    count = people + mated + others
    features = rng.integers(-1, 2, (count, 3)).astype(np.float64)
    owners = np.array([*range(people), *rng.integers(0, people, mated), *range(50, 50 + others)])
    places, rest = rng.permutation(people), np.arange(people, count)
    gallery, probes = Subjects(places, owners[places]), Subjects(rest, owners[rest])
    found = identify(features, gallery, probes)
    counts = {"templates": people, "mated": mated, "others": others}
    shares = {**found.pop("tpir_at_fpir"), **found}
    del shares["thresholds"]
    assert shares == pytest.approx({**counts, **loops(features, gallery, probes)})


@pytest.mark.parametrize(
    ("gallery", "probes", "message"),
    [
        ([(0, 5), (1, 5)], [(1, 5), (2, 6)], "the subject 5 has several templates in one gallery"),
        ([(0, 5), (1, 6)], [(1, 5), (2, 6)], "2 of 2 probes are of subjects in a gallery of 2; "),
        ([(0, 5)], [(1, 7)], "0 of 1 probes are of subjects in a gallery of 1; the protocol needs"),
    ],
)
def test_what_the_protocol_is_not_for(gallery, probes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        identify(np.eye(3), *(Subjects(*np.array(one).T) for one in (gallery, probes)))


def gallery(templates: int, mated: int, others: int, ranks: list[int], rates: list[float]) -> Any:
    shares = {f"rank-{rank}": count / mated for rank, count in zip((1, 5, 10), ranks)}
    return {"templates": templates, "mated": mated, "others": others, **shares,
            "tpir_at_fpir": dict(zip(("0.01", "0.1"), rates)), "thresholds": {}}  # fmt: skip


def test_the_curve_is_drawn_over_the_logarithm_of_its_rate(tmp_path: Path) -> None:
    curve, paths = np.array([[0, 1e-4, 0.5], [0.4, 0.6, 1]]), (tmp_path / "npy", tmp_path / "pdf")
    with matplotlib.rc_context({"pdf.compression": 0, "path.simplify": False}):
        protocols.write_results(paths, np.ones(3), curve, "$job")
    (line,) = re.findall(rb"(?:[\d.]+ [\d.]+ [ml]\n){500,}", paths[1].read_bytes())
    points = np.array(line.split()).reshape(-1, 3)[:, :2].astype(float)
    far = np.geomspace(1e-6, 0.1, len(points))
    assert np.corrcoef(points[:, 0], np.log(far))[0, 1] == pytest.approx(1)
    assert np.corrcoef(points[:, 1], np.interp(far, *curve))[0, 1] == pytest.approx(1)


def test_tables() -> None:
    """Ranks are averaged over probes, rates over galleries."""
    verified = {"tar_at_far": [{"tar": 0.9 + n / 100} for n in range(6)], "auc": 0.99}
    galleries = {
        "G1": gallery(1772, 10, 30, [5, 6, 8], [0.25, 0.5]),
        "G2": gallery(1759, 30, 10, [30, 30, 30], [0.75, 1.0]),
    }
    table = """\
+------------+-------+-------+--------+-------+-------+-------+-------+
| TAR at FAR | 1e-06 | 1e-05 | 0.0001 | 0.001 | 0.01  |  0.1  |  AUC  |
+------------+-------+-------+--------+-------+-------+-------+-------+
|    m,0     | 90.00 | 91.00 | 92.00  | 93.00 | 94.00 | 95.00 | 99.00 |
+------------+-------+-------+--------+-------+-------+-------+-------+"""
    assert protocols.verification_table("m,0", verified) == table
    lines = protocols.identification_table(galleries).splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
    names = ["gallery", "templates", "mated", "others", "rank-1", "rank-5", "rank-10"]
    assert rows == [
        [*names, "TPIR at FPIR 0.01", "TPIR at FPIR 0.1"],
        ["G1", "1,772", "10", "30", "50.00", "60.00", "80.00", "25.00", "50.00"],
        ["G2", "1,759", "30", "10", "100.00", "100.00", "100.00", "75.00", "100.00"],
        ["mean", "", "", "", "87.50", "90.00", "95.00", "50.00", "75.00"],
    ]
    mean = {"rank-1": 35 / 40, "rank-5": 36 / 40, "rank-10": 38 / 40}
    assert mean_of(galleries) == {**mean, "tpir_at_fpir": {"0.01": 0.5, "0.1": 0.75}}
