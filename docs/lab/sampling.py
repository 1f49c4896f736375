"""What a sampled softmax computes, and how far that is from the whole one, in NumPy.

    python docs/lab/sampling.py

Exercise 4 of the lab. A sample of a tenth has the target's class always and every other class with
probability 0.1, so a sum over the others is a tenth as large as it should be, and the loss is too
small. That is the loss of all classes with another margin.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

CLASSES, EMBEDDING, IMAGES = 5000, 64, 32
SCALE, MARGIN, RATIO = 16.0, 0.3, 0.1
SAMPLES = 300

Array = NDArray[np.float64]


def loss_and_gradient(cosines: Array, margin: float, kept: Array) -> tuple[float, Array]:
    """The mean loss and its gradient by the cosines [B, C]; the target of image i is class i.

    ``kept`` is 1 for the classes that take part, and 0 for the others.
    """
    logits = SCALE * cosines
    images = np.arange(len(logits))
    logits[images, images] -= SCALE * margin
    weights = np.exp(logits - logits.max(axis=1, keepdims=True)) * kept
    shares = weights / weights.sum(axis=1, keepdims=True)
    loss = -float(np.mean(np.log(shares[images, images])))
    shares[images, images] -= 1
    return loss, SCALE / len(logits) * shares


def mean_of_samples(cosines: Array, rng: np.random.Generator) -> tuple[float, Array]:
    """Loss and gradient, over many samples of the classes."""
    total, gradient = 0.0, np.zeros_like(cosines)
    for _ in range(SAMPLES):
        kept = (rng.random(CLASSES) < RATIO).astype(float)
        kept[:IMAGES] = 1
        loss, slopes = loss_and_gradient(cosines, MARGIN, kept)
        total, gradient = total + loss, gradient + slopes
    return total / SAMPLES, gradient / SAMPLES


def angle(one: Array, other: Array) -> float:
    """Degrees between two gradients of the features."""
    cosine = float(np.sum(one * other) / np.linalg.norm(one) / np.linalg.norm(other))
    return math.degrees(math.acos(min(1.0, cosine)))


def compare(nearness: float) -> str:
    """A line for features that are as near to their centers: losses, and the angle of gradients."""
    rng = np.random.default_rng(1)
    centers = rng.normal(size=(CLASSES, EMBEDDING))
    centers /= np.linalg.norm(centers, axis=1, keepdims=True)
    features = nearness * centers[:IMAGES] + rng.normal(size=(IMAGES, EMBEDDING)) / 8
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    cosines, everything = features @ centers.T, np.ones(CLASSES)
    whole, of_whole = loss_and_gradient(cosines, MARGIN, everything)
    sampled, of_samples = mean_of_samples(cosines, rng)
    smaller = MARGIN - math.log(1 / RATIO) / SCALE
    other, of_other = loss_and_gradient(cosines, smaller, everything)
    own = float(np.mean(np.diagonal(cosines)))
    from_whole, from_other = (
        angle(one @ centers, of_samples @ centers) for one in (of_whole, of_other)
    )
    losses = f"{whole:6.2f} {sampled:8.2f} {other:8.2f}"
    return f"{own:6.2f}   {losses}   {from_whole:6.1f} {from_other:8.1f}"


def main() -> None:
    """Compare before, during and after training."""
    smaller = MARGIN - math.log(1 / RATIO) / SCALE
    print(f"{CLASSES:,} classes, scale {SCALE:g}, margin {MARGIN:g}; sampled: a tenth")
    print("cosine      all  sampled    other   degrees: all    other")
    for nearness in (0.0, 0.6, 1.2, 2.4):
        print(compare(nearness))
    print(f"other: all classes with the margin {smaller:.3f} in place of {MARGIN:g}")


if __name__ == "__main__":
    main()
