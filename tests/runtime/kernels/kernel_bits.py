"""Prints, for each kernel that adds up or fuses, a digest of what it makes of the same numbers.

``test_kernels`` runs it in several processes.
"""

import hashlib
from typing import Any

import numpy as np

from partial_fc import optimizers
from partial_fc.rows import host, host_logits
from training.update import host_sgd

# Vectors with a rest behind the whole lanes.
ROWS, SAMPLED, BATCH, LENGTH = 300, 150, 32, 200


def main() -> None:
    generator = np.random.default_rng(1)

    def normal(*shape: int) -> Any:
        return generator.standard_normal(shape, np.float32)

    centers, momenta, gradient = normal(ROWS, LENGTH), normal(ROWS, LENGTH), normal(SAMPLED, LENGTH)
    rows = np.sort(generator.permutation(ROWS)[:SAMPLED])
    units, inverse_norms = np.empty_like(gradient), np.empty(SAMPLED, np.float32)
    host._normalize(centers, rows, units, inverse_norms)
    tell("normalize", units, inverse_norms)

    arrays = [centers.copy(), momenta.copy()]
    rates: Any = tuple(floats([0.1, 0.9, 5e-4]))
    optimizers._sgd(*arrays, rows, inverse_norms, gradient, rates)
    tell("sgd", *arrays)
    arrays = [momenta.copy(), momenta**2, np.full(ROWS, 3, np.int32)]
    rates = (0.1, 0.9, 0.999, *floats([1e-8, 5e-4, 1.0]))
    optimizers._adam(centers, tuple(arrays), rows, inverse_norms, gradient, rates)
    tell("adam", centers, *arrays)

    bounds, hardness = np.array([0, 70, SAMPLED]), np.full(1, 0.3, np.float32)
    rules = np.float32(60), np.full(BATCH, 10, np.float32), hardness, np.float32(1 / 64)
    targets = 70 * np.arange(BATCH), floats([0, 1] * (BATCH // 2)), normal(BATCH)
    for name, given in (("", None), ("ruled ", rules)):
        logits = 10 * normal(BATCH * SAMPLED)
        shift, sums = np.empty(BATCH, np.float32), np.empty(BATCH, np.float32)
        host_logits.exponentiate(logits, bounds, targets, shift, sums, given)
        tell(f"{name}exponentials", logits, shift, sums)

    projected, total, scaled = (np.empty_like(gradient) for _ in range(3))
    host._project(gradient, units, inverse_norms[:, None], projected)
    host._multiply_shares(
        np.stack([gradient, units, projected]), units, inverse_norms[:, None], total, scaled
    )
    tell("projected shares", projected, total, scaled)

    arrays = [normal(4_001) for _ in range(3)]
    addresses = np.array([[array.ctypes.data] for array in arrays], np.uintp)
    host_sgd._step(addresses, np.array([0, 4_001]), floats([[0.1], [5e-4]]), floats([0.9, 0.5]))
    tell("sgd of a backbone", *arrays)


def floats(values: Any) -> Any:
    return np.array(values, np.float32)


def tell(name: str, *arrays: Any) -> None:
    print(name, hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest())


if __name__ == "__main__":
    main()
