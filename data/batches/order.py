"""The random order of an epoch, as a function of the place in it.

An order of a billion images that is an array takes 8 GB on every rank, and as long to make as many
updates. Here an image is computed from its place when a batch asks for it: by a Feistel network,
which is a permutation whatever its round functions are. The images are laid out in a rectangle of
rows and columns as close to a square as their number allows; a round moves an image along its
row by a random function of the row, the next one along its column by one of the column (Black and
Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002, sections 4 and 5). Of the few places
of the rectangle that belong to no image, the network is applied again ("cycle walking").
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from runtime.kernels import unlocked_kernel

ROUNDS = 16
"""Of the network. A few do for large sets; with 16 all orders of as few as four to seven images
come equally often."""

_TO_UNIT = 2.0**-53


def epoch_keys(*seed: int) -> NDArray[np.uint64]:
    """Return what the order of an epoch is computed from: a key per round, and one for draws.

    ``seed`` are numbers that are not negative; another number gives another order.
    """
    keys = np.random.SeedSequence(seed).generate_state(ROUNDS + 1, np.uint64)
    return keys.astype(np.uint64, copy=False)


@unlocked_kernel
def mixed(number: np.uint64) -> np.uint64:
    """Return a random function of a number.

    The last step of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
    Generators", OOPSLA 2014, with the constants of Stafford's variant 13).
    """
    number = (number ^ number >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ number >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return number ^ number >> np.uint64(31)


@unlocked_kernel
def unit(number: np.uint64, key: np.uint64) -> float:
    """Return a random number from 0 to below 1 that follows from a number and a key."""
    found: float = (mixed(number ^ key) >> np.uint64(11)) * _TO_UNIT
    return found


@unlocked_kernel
def permuted(first: int, count: int, keys: NDArray[np.uint64], total: int) -> NDArray[np.int64]:
    """Return the places ``first`` to ``first + count`` of a random order of ``range(total)``.

    Compiled, without Python's lock: the threads that decode take turns at it.

    Args:
        first: the first place, at least 0.
        count: of places; the last one is below ``total``.
        keys: of ``epoch_keys``.
        total: the length of the order, below 2^62.

    Returns:
        int64 ``[count]``.
    """
    order = np.empty(count, np.int64)
    side = int(np.ceil(np.sqrt(total)))
    width = (total + side - 1) // side
    # With two odd sides, every round would be an even permutation, and so would be every order.
    rows, columns = np.uint64(side), np.uint64(width + width % 2)
    end, high = np.uint64(total), np.uint64(32)
    for i in range(count):
        number = np.uint64(first + i)
        walks = True
        while walks:
            row, column = number // columns, number % columns
            for k in range(0, ROUNDS, 2):
                # The upper half of a random number, scaled to the side.
                row += (mixed(column ^ keys[k]) >> high) * rows >> high
                row -= rows if row >= rows else np.uint64(0)
                column += (mixed(row ^ keys[k + 1]) >> high) * columns >> high
                column -= columns if column >= columns else np.uint64(0)
            number = row * columns + column
            walks = bool(number >= end)
        order[i] = np.int64(number)
    return order
