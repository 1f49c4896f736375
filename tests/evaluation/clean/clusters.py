"""Embeddings of people that are drawn: a direction for each, and images around it."""

from __future__ import annotations

import numpy as np

WIDTH = 64


def people(counts: list[int], seed: int = 0, spread: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """Unit rows float32 [n, WIDTH] and the person of each; cosines of one person are near 0.8."""
    generator = np.random.default_rng(seed)
    owners = np.repeat(np.arange(len(counts)), counts)
    centers = generator.standard_normal((len(counts), WIDTH))
    rows = centers[owners] + spread * generator.standard_normal((len(owners), WIDTH))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), owners
