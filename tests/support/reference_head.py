"""The head in one process and float64, written down from the formulas and nothing else.

What adapts while training (AdaFace's margins, CurricularFace's t) is a number for each step, since
no gradient flows through it; what depends on the norms with a gradient comes with its derivatives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np


@dataclass
class ReferenceStep:
    loss: float
    features_gradient: np.ndarray
    centers_gradient: np.ndarray


@dataclass
class ReferenceNormTerms:
    """The derivatives [B] of m2 by the norms; penalties [B] of the images and their derivatives."""

    margin_slopes: np.ndarray
    penalties: np.ndarray
    penalty_slopes: np.ndarray


def margin_logit(cosine: np.ndarray, m1: float, m2: float, m3: float) -> np.ndarray:
    """cos(m1·θ + m2) − m3."""
    return np.cos(m1 * np.arccos(cosine) + m2) - m3


def margin_slope(cosine: np.ndarray, m1: float, m2: float) -> np.ndarray:
    """The derivative of ``margin_logit``: m1·sin(m1·θ + m2) / sin θ."""
    theta = np.arccos(cosine)
    return m1 * np.sin(m1 * theta + m2) / np.sin(theta)


def target_cosines(features: np.ndarray, labels: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """The cosines between features [B, D] and the centers [C, D] of their labels [B]."""
    features, own = features.astype(np.float64), centers[labels]
    norms = np.linalg.norm(features, axis=1) * np.linalg.norm(own, axis=1)
    return np.sum(features * own, axis=1) / norms


def reference_step(
    features: np.ndarray,
    labels: np.ndarray,
    centers: np.ndarray,
    classes: np.ndarray,
    margins: tuple[float, float, float],
    scale: float,
    hardness: Optional[float] = None,
    filter_threshold: float = 1.0,
    norm_terms: Optional[ReferenceNormTerms] = None,
) -> ReferenceStep:
    """Loss and gradients over ``classes``, the sorted ids that take part in the softmax.

    The margins are numbers or arrays [B]. With a hardness t, cosines c of negatives above the
    target's after its margin become c·(t + c). Negatives above the threshold are left out.
    The gradient of the centers has the rows of ``classes``.
    """
    features = features.astype(np.float64)
    rows = centers[classes].astype(np.float64)
    feature_norms = np.linalg.norm(features, axis=1, keepdims=True)
    row_norms = np.linalg.norm(rows, axis=1, keepdims=True)
    units, row_units = features / feature_norms, rows / row_norms

    cosines = units @ row_units.T
    batch = np.arange(labels.size)
    targets = np.searchsorted(classes, labels)
    own_cosines = cosines[batch, targets]
    margined = margin_logit(own_cosines, *margins)
    logits, slopes = scale * cosines, np.ones_like(cosines)
    if hardness is not None:
        hard = cosines > margined[:, None]
        logits = scale * np.where(hard, cosines * (hardness + cosines), cosines)
        slopes = np.where(hard, hardness + 2 * cosines, 1.0)
    logits[(cosines > filter_threshold) & (filter_threshold < 1.0)] = -np.inf
    logits[batch, targets] = scale * margined

    shifted = logits - logits.max(axis=1, keepdims=True)
    log_sum = np.log(np.exp(shifted).sum(axis=1))
    loss = float(np.mean(log_sum - shifted[batch, targets]))

    gradient = np.exp(shifted - log_sum[:, None])
    gradient[batch, targets] = 0.0
    others = gradient.sum(axis=1)
    gradient[batch, targets] = -others
    slopes[batch, targets] = margin_slope(own_cosines, *margins[:2])
    gradient *= slopes * scale / labels.size

    features_gradient = _through_norm(gradient @ row_units, units, feature_norms)
    if norm_terms is not None:
        m1, m2, _ = margins
        by_angle = -scale * -np.sin(m1 * np.arccos(own_cosines) + m2) * others
        by_norm = by_angle * norm_terms.margin_slopes + norm_terms.penalty_slopes
        features_gradient += by_norm[:, None] * units / labels.size
        loss += float(norm_terms.penalties.mean())
    centers_gradient = _through_norm(gradient.T @ units, row_units, row_norms)
    return ReferenceStep(loss, features_gradient, centers_gradient)


def _through_norm(gradient: np.ndarray, units: np.ndarray, norms: np.ndarray) -> np.ndarray:
    radial = np.sum(gradient * units, axis=1, keepdims=True)
    return (gradient - radial * units) / norms
