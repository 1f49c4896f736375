"""The random numbers of an update, compiled: those of NumPy's generators.

To make a generator takes 15 us of Python's lock, in every update, and meanwhile no thread can begin
with its next image. The same numbers are computed here without the lock: NumPy's ``SeedSequence``
(O'Neill, "Developing a seed_seq Alternative", 2015) and its ``PCG64`` (O'Neill, "PCG: A Family of
Simple Fast Space-Efficient Statistically Good Algorithms for Random Number Generation", 2014; the
member XSL RR 128/64).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from runtime.kernels.compiled import unlocked_kernel

_WORD = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_POOL = 4

# Constants of SeedSequence.
_HASH, _HASH_FACTOR = np.uint64(0x43B0D7E5), np.uint64(0x931E8875)
_OUTPUT, _OUTPUT_FACTOR = np.uint64(0x8B51F9DD), np.uint64(0x58F38DED)
_MIX_LEFT, _MIX_RIGHT = np.uint64(0xCA01F9DD), np.uint64(0x4973F715)
_FOLD = np.uint64(16)

# The factor of PCG64's steps, its upper and its lower half.
_FACTOR_HIGH, _FACTOR_LOW = np.uint64(2549297995355413924), np.uint64(4865540595714422341)


def seed_words(*numbers: int) -> NDArray[np.uint32]:
    """Return what a seed of several numbers, none of them negative, is to NumPy: 32 bits each."""
    words: list[int] = []
    for number in numbers:
        assert number >= 0, numbers
        words.append(number & 0xFFFFFFFF)
        while number := number >> 32:
            words.append(number & 0xFFFFFFFF)
    return np.array(words, np.uint32)


@unlocked_kernel
def uniform(words: NDArray[np.uint32], first: int, count: int) -> NDArray[np.float64]:
    """Return ``default_rng(seed).random(first + count)[first:]``, of ``seed_words`` of the seed."""
    state = _seeded(words)
    numbers = np.empty(count)
    for i in range(-first, count):
        drawn = _next(state)
        if i >= 0:
            numbers[i] = (drawn >> np.uint64(11)) * 2.0**-53
    return numbers


@unlocked_kernel
def uniform32(
    words: NDArray[np.uint32], doubles: int, first: int, count: int
) -> NDArray[np.float32]:
    """Return float32 numbers of the generator, which has drawn as many in float64 before.

    They are ``rng.random(first + count, np.float32)[first:]``, or those of several such calls one
    behind the other; NumPy makes two of them of one number of 64 bits.
    """
    state = _seeded(words)
    for _ in range(doubles + first // 2):
        _next(state)
    numbers = np.empty(count, np.float32)
    drawn = np.uint64(0)
    for i in range(first - first % 2, first + count):
        drawn = drawn >> _HALF if i % 2 else _next(state)
        if i >= first:
            numbers[i - first] = ((drawn & _WORD) >> np.uint64(8)) * np.float32(2.0**-24)
    return numbers


@unlocked_kernel
def _seeded(words: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Return a generator: its state and its increment of 128 bits, upper halves first."""
    pool = _mixed(words)
    parts = np.zeros(_POOL, np.uint64)
    output = _OUTPUT
    for i in range(2 * _POOL):
        value = pool[i % _POOL] ^ output
        output = output * _OUTPUT_FACTOR & _WORD
        value = value * output & _WORD
        value ^= value >> _FOLD
        parts[i // 2] |= value << _HALF if i % 2 else value
    state = np.empty(4, np.uint64)
    state[2] = parts[2] << np.uint64(1) | parts[3] >> np.uint64(63)
    state[3] = parts[3] << np.uint64(1) | np.uint64(1)
    # A step from zero, then the seed is added.
    state[0], state[1] = state[2], state[3]
    _add(state, parts[0], parts[1])
    _step(state)
    return state


@unlocked_kernel
def _mixed(words: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Return the pool of SeedSequence, four words, in which each word has an effect on all."""
    pool = np.zeros(_POOL, np.uint64)
    factor = _HASH
    for i in range(_POOL):
        pool[i], factor = _hashed(np.uint64(words[i]) if i < len(words) else np.uint64(0), factor)
    for source in range(max(_POOL, len(words))):
        for i in range(_POOL):
            if i != source:
                word = pool[source] if source < _POOL else np.uint64(words[source])
                word, factor = _hashed(word, factor)
                # Below 2^32, as if without a sign.
                word = pool[i] * _MIX_LEFT - word * _MIX_RIGHT & _WORD
                pool[i] = word ^ word >> _FOLD
    return pool


@unlocked_kernel
def _hashed(word: np.uint64, factor: np.uint64) -> tuple[np.uint64, np.uint64]:
    word ^= factor
    factor = factor * _HASH_FACTOR & _WORD
    word = word * factor & _WORD
    return word ^ word >> _FOLD, factor


@unlocked_kernel
def _next(state: NDArray[np.uint64]) -> np.uint64:
    """Draw 64 bits."""
    _step(state)
    number, by = state[0] ^ state[1], state[0] >> np.uint64(58)
    turned: np.uint64 = number >> by | number << (np.uint64(64) - by & np.uint64(63))
    return turned


@unlocked_kernel
def _step(state: NDArray[np.uint64]) -> None:
    """Multiply the state by PCG64's factor, add the increment, and keep 128 bits."""
    high, low = state[0], state[1]
    lower, upper = low & _WORD, low >> _HALF
    factor_lower, factor_upper = _FACTOR_LOW & _WORD, _FACTOR_LOW >> _HALF
    middle = (lower * factor_lower >> _HALF) + (upper * factor_lower & _WORD)
    middle += lower * factor_upper & _WORD
    carried = (upper * factor_lower >> _HALF) + (lower * factor_upper >> _HALF) + (middle >> _HALF)
    state[0] = upper * factor_upper + carried + high * _FACTOR_LOW + low * _FACTOR_HIGH
    state[1] = low * _FACTOR_LOW
    _add(state, state[2], state[3])


@unlocked_kernel
def _add(state: NDArray[np.uint64], high: np.uint64, low: np.uint64) -> None:
    state[1] += low
    state[0] += high + np.uint64(state[1] < low)
