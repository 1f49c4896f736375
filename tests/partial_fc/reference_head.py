"""The head, its losses and its optimizers in one process and float64, from the formulas alone.

What adapts while training (AdaFace's margins, CurricularFace's t) is a number for each step, since
no gradient flows through it; what depends on the norms with a gradient comes with its derivatives.
A reference of a loss returns these arguments of ``reference_step`` for each update.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy as np

from partial_fc.optimizers import SGD, Adam, RowOptimizer

MARGINS = {
    "arcface": (1.0, 0.5, 0.0),
    "cosface": (1.0, 0.0, 0.35),
    "combined": (0.9, 0.4, 0.15),
    "softmax": (1.0, 0.0, 0.0),
}


class ReferenceStep(NamedTuple):
    loss: float
    features_gradient: np.ndarray
    centers_gradient: np.ndarray


class ReferenceNormTerms(NamedTuple):
    """The derivatives [B] of m2 by the norms; penalties [B] of the images and their derivatives."""

    margin_slopes: np.ndarray
    penalties: np.ndarray
    penalty_slopes: np.ndarray


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
    m1, m2, m3 = margins
    angles = np.arccos(cosines[batch, targets])
    margined = np.cos(m1 * angles + m2) - m3
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
    slopes[batch, targets] = m1 * np.sin(m1 * angles + m2) / np.sin(angles)
    gradient *= slopes * scale / labels.size

    features_gradient = _through_norm(gradient @ row_units, units, feature_norms)
    if norm_terms is not None:
        by_angle = scale * np.sin(m1 * angles + m2) * others
        by_norm = by_angle * norm_terms.margin_slopes + norm_terms.penalty_slopes
        features_gradient += by_norm[:, None] * units / labels.size
        loss += float(norm_terms.penalties.mean())
    centers_gradient = _through_norm(gradient.T @ units, row_units, row_norms)
    return ReferenceStep(loss, features_gradient, centers_gradient)


def _through_norm(gradient: np.ndarray, units: np.ndarray, norms: np.ndarray) -> np.ndarray:
    radial = np.sum(gradient * units, axis=1, keepdims=True)
    return (gradient - radial * units) / norms


def fixed_margins(*margins: float) -> Any:
    """Return the reference of a loss whose margins stay as they are."""
    return lambda norms, cosines: {"margins": margins}


class ReferenceAdaFace:
    """Kim et al. 2022: m = 0.4, h = 0.33, running mean and deviation of the norms."""

    mean = deviation = None

    def __call__(self, norms: np.ndarray, cosines: np.ndarray) -> dict[str, Any]:
        if self.mean is None:
            self.mean, self.deviation = norms.mean(), norms.std()
        else:
            self.mean = 0.99 * self.mean + 0.01 * norms.mean()
            self.deviation = 0.99 * self.deviation + 0.01 * norms.std()
        distance = np.clip(0.33 * (norms - self.mean) / (self.deviation + 1e-3), -1, 1)
        return {"margins": (1.0, -0.4 * distance, 0.4 * distance + 0.4)}


class ReferenceCurricularFace:
    """Huang et al. 2020: m = 0.5, t the running mean of the targets' cosines."""

    t = 0.0

    def __call__(self, norms: np.ndarray, cosines: np.ndarray) -> dict[str, Any]:
        self.t = 0.99 * self.t + 0.01 * cosines.mean()
        return {"margins": (1.0, 0.5, 0.0), "hardness": self.t}


def zero_states(optimizer: RowOptimizer, centers: np.ndarray) -> dict[str, np.ndarray]:
    """The centers in float64 and the states that ``reference_update`` changes."""
    arrays = {"centers": centers.astype(np.float64)}
    for name, state in optimizer.states.items():
        arrays[name] = np.zeros(state.shape(*centers.shape))
    return arrays


def reference_update(
    optimizer: RowOptimizer,
    arrays: dict[str, np.ndarray],
    rows: np.ndarray,
    gradients: np.ndarray,
    lr: float,
) -> None:
    """Update ``rows`` of ``arrays`` in place by the gradients of these centers."""
    centers = arrays["centers"]
    if isinstance(optimizer, SGD):
        momenta, decayed = arrays["momenta"], gradients + optimizer.weight_decay * centers[rows]
        momenta[rows] = optimizer.momentum * momenta[rows] - lr * decayed
        centers[rows] += momenta[rows]
        return
    assert isinstance(optimizer, Adam)
    for row, gradient in zip(rows, gradients):
        center = centers[row].copy()
        if not optimizer.decoupled:
            gradient = gradient + optimizer.weight_decay * center
        arrays["step_counts"][row] += 1
        t = arrays["step_counts"][row]
        first, second = arrays["first_moments"][row], arrays["second_moments"][row]
        first[:] = 0.9 * first + 0.1 * gradient
        second[:] = 0.999 * second + 0.001 * gradient**2
        step = (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)
        decay = optimizer.weight_decay * center if optimizer.decoupled else 0.0
        centers[row] = center - lr * (step + decay)
