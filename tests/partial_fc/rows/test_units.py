"""Unit vectors in the host's memory, which are written past the caches."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from partial_fc.rows import host
from runtime.kernels import memory
from runtime.kernels.sums import product_of


@numba.njit
def squares_of(vectors):
    found = np.empty(len(vectors), np.float32)
    for row in range(len(vectors)):
        found[row] = product_of(vectors[row], vectors[row])
    return found


@pytest.mark.parametrize("width", [16, 100, 128, 130, 512, 520])
@pytest.mark.parametrize("first", [0, 1, 4, 16])
@pytest.mark.parametrize("count", [1, 31, 32, 33, 100])
def test_units_of_any_width_at_any_place(width: int, first: int, count: int) -> None:
    """Each number is the product of the vector's and 1 / norm, and nothing beside is written."""
    generator = np.random.default_rng(width)
    vectors = generator.standard_normal((120, width), np.float32)
    rows = np.sort(generator.permutation(120)[:count])
    line = np.full(count * width + 64, 7, np.float32)
    start = -line.ctypes.data % 64 // 4 + first
    units, norms = line[start : start + count * width].reshape(count, width), np.empty(count, "f4")
    host._normalize(vectors, rows, units, norms)
    expected = np.float32(1) / np.sqrt(squares_of(vectors[rows]))
    np.testing.assert_array_equal(norms, expected)
    np.testing.assert_array_equal(units, vectors[rows] * expected[:, None])
    assert (line[:start] == 7).all() and (line[start + count * width :] == 7).all()


def test_a_line_is_written_past_the_caches() -> None:
    """Which no result shows: by the code that runs."""
    multiply, ends = memory.multiply_line, memory.end_of_writes

    @numba.njit
    def some(source, goal, factor):
        multiply(np.uint64(source.ctypes.data), np.uint64(goal.ctypes.data), factor)
        ends()

    room = np.zeros(48, np.float32)
    goal = room[-room.ctypes.data % 64 // 4 :][:16]
    source = np.arange(16, dtype=np.float32)
    some(source, goal, np.float32(3))
    assert goal.tolist() == (3 * source).tolist()
    (code,) = some.inspect_llvm().values()
    assert code.count("!nontemporal") == 1 and "fence seq_cst" in code
