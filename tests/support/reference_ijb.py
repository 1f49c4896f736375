"""The protocols of IJB once more, in float64 and with a loop for everything."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from tests.support.ijb_set import MadeSet


def faces(views: np.ndarray, *, unit: bool) -> np.ndarray:
    """The features [n, D] of faces, given those of their views [v, n, D]."""
    found = []
    for of_face in views.astype(np.float64).swapaxes(0, 1):
        found.append(sum(one / np.linalg.norm(one) if unit else one for one in of_face))
    return np.stack(found)


def templates(
    features: np.ndarray, made: MadeSet, *, detector_score: bool = True, norm: bool = True
) -> dict[int, np.ndarray]:
    """The vector of each template, by its number."""
    found = {}
    for template in sorted(set(made.templates.tolist())):
        total = np.zeros(features.shape[1])
        of_template = [n for n, one in enumerate(made.templates) if one == template]
        for media in sorted({int(made.media[n]) for n in of_template}):
            rows = []
            for number in of_template:
                if made.media[number] == media:
                    row = features[number].astype(np.float64)
                    row = row if norm else row / np.linalg.norm(row)
                    rows.append(row * made.scores[number] if detector_score else row)
            total += sum(rows) / len(rows)
        found[template] = total / np.linalg.norm(total)
    return found


def curve(scores: np.ndarray, same: np.ndarray) -> list[tuple[int, int, float]]:
    """False and true accepts, and the threshold, at each score, without points on a line."""
    points = []
    for threshold in sorted(set(scores.tolist()), reverse=True):
        accepted = scores >= threshold
        points.append((int((accepted & ~same).sum()), int((accepted & same).sum()), threshold))
    kept = [points[0]]
    for before, here, after in zip(points, points[1:], points[2:]):
        steps = [(b[0] - a[0], b[1] - a[1]) for a, b in ((before, here), (here, after))]
        if steps[0] != steps[1]:
            kept.append(here)
    kept += points[-1:] if len(points) > 1 else []
    return [(0, 0, np.inf), *kept]


def accept_rate(points: list[tuple[int, int, float]], far: float) -> tuple[float, float]:
    """False and true accept rate of the point whose false accept rate is nearest."""
    others, same, _ = points[-1]
    # As floats, as in the code: what is equally near must not depend on rounding.
    best = min(points, key=lambda point: (abs(point[0] / others - far), -point[0], -point[1]))
    return best[0] / others, best[1] / same


def area(points: list[tuple[int, int, float]]) -> float:
    others, same, _ = points[-1]
    total = Fraction(0)
    for one, two in zip(points, points[1:]):
        total += Fraction((two[0] - one[0]) * (one[1] + two[1]), 2)
    return float(total / (others * same))


def identification(
    vectors: dict[int, np.ndarray], made: MadeSet, ids: np.ndarray, gallery: np.ndarray
) -> tuple[dict[int, float], dict[float, float]]:
    """The shares of mated probes within ranks, and those identified at false alarm rates."""
    of_gallery = {int(made.subjects[place]): vectors[int(ids[place])] for place in gallery}
    mated, strangers = [], []
    for place in made.probes.tolist():
        probe, subject = vectors[int(ids[place])], int(made.subjects[place])
        found = {person: float(probe @ vector) for person, vector in of_gallery.items()}
        if subject in found:
            mated.append((found.pop(subject), sorted(found.values(), reverse=True)))
        else:
            strangers.append(max(found.values()))
    strangers.sort(reverse=True)
    ranks = {
        rank: sum(sum(other >= own for other in others) < rank for own, others in mated)
        / len(mated)
        for rank in (1, 5, 10)
    }
    rates = {}
    for rate in (0.01, 0.1):
        threshold = strangers[max(int(len(strangers) * rate) - 1, 0)]
        identified = sum(own > others[0] and own > threshold for own, others in mated)
        rates[rate] = identified / len(mated)
    return ranks, rates
