"""The optimizers of the centers in float64, row by row, from the papers' algorithms."""

from __future__ import annotations

import numpy as np

from partial_fc.optimizers import SGD, Adam, RowOptimizer


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
