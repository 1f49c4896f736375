"""The head in one process and float64, written down from the formulas and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass
class ReferenceStep:
    loss: float
    features_gradient: np.ndarray
    centers_gradient: np.ndarray


def margin_logit(cosine: np.ndarray, m1: float, m2: float, m3: float) -> np.ndarray:
    """cos(m1·θ + m2) − m3."""
    return np.cos(m1 * np.arccos(cosine) + m2) - m3


def margin_slope(cosine: np.ndarray, m1: float, m2: float) -> np.ndarray:
    """The derivative of ``margin_logit``: m1·sin(m1·θ + m2) / sin θ."""
    theta = np.arccos(cosine)
    return m1 * np.sin(m1 * theta + m2) / np.sin(theta)


def reference_step(
    features: np.ndarray,
    labels: np.ndarray,
    centers: np.ndarray,
    classes: np.ndarray,
    margins: tuple[float, float, float],
    scale: float,
) -> ReferenceStep:
    """Loss and gradients over ``classes``, the sorted ids that take part in the softmax.

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
    target_cosines = cosines[batch, targets]
    logits = scale * cosines
    logits[batch, targets] = scale * margin_logit(target_cosines, *margins)

    shifted = logits - logits.max(axis=1, keepdims=True)
    log_sum = np.log(np.exp(shifted).sum(axis=1))
    loss = float(np.mean(log_sum - shifted[batch, targets]))

    gradient = np.exp(shifted - log_sum[:, None])
    others = gradient.copy()
    others[batch, targets] = 0.0
    gradient[batch, targets] = -others.sum(axis=1) * margin_slope(target_cosines, *margins[:2])
    gradient *= scale / labels.size

    units_gradient = gradient @ row_units
    rows_gradient = gradient.T @ units
    return ReferenceStep(
        loss,
        _through_norm(units_gradient, units, feature_norms),
        _through_norm(rows_gradient, row_units, row_norms),
    )


def _through_norm(gradient: np.ndarray, units: np.ndarray, norms: np.ndarray) -> np.ndarray:
    radial = np.sum(gradient * units, axis=1, keepdims=True)
    return (gradient - radial * units) / norms
