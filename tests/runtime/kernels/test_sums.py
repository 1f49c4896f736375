from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime import processors
from runtime.kernels.compiled import unlocked_kernel
from runtime.kernels.sums import LANES, largest_of, product_of, sum_of
from tests.support.launch import finish

# Another processor, for which Numba compiles then: Intel's Haswell has no AVX-512.
AVX2 = {
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "+avx,+avx2,+bmi,+bmi2,+fma,+lzcnt,+popcnt,+sse4.2",
}


@unlocked_kernel
def _product(first, second):
    return product_of(first, second)


@unlocked_kernel
def _sum(lanes):
    return sum_of(lanes)


@unlocked_kernel
def _largest(numbers, least):
    return largest_of(numbers, least)


@pytest.mark.parametrize("length", [0, 1, LANES - 1, LANES, LANES + 1, 3 * LANES + 7])
@pytest.mark.parametrize("types", ["ff", "fb", "bf", "bb"])
def test_every_number_counts_once(length: int, types: str) -> None:
    """Powers of two, whose products and sums are exact in either type."""
    generator = np.random.default_rng(length)
    given = [2.0 ** generator.integers(-3, 4, length) for _ in types]
    given[0] *= generator.choice([-1, 1], length)
    vectors = [
        bfloat16_of(values) if kind == "b" else values.astype(np.float32)
        for kind, values in zip(types, given)
    ]
    assert _product(*vectors) == np.dot(*given)


@pytest.mark.parametrize("length", [0, 1, LANES - 1, LANES, 2 * LANES + 3])
def test_the_largest_is_found_wherever_it_stands(length: int) -> None:
    assert _largest(np.full(length, -9.5, np.float32), np.float32(-9.0)) == -9.0
    for place in range(length):
        numbers = np.full(length, -2.0, np.float32)
        numbers[place] = -1.0
        # What is not a number neither counts nor hides what does.
        numbers[place - 1 : place] = np.nan
        numbers[place + 16 : place + 17] = np.nan
        for given in (numbers, bfloat16_of(numbers)):
            assert _largest(given, np.float32(-9.0)) == -1.0
            assert _largest(given, np.float32(-0.5)) == -0.5


def bfloat16_of(values: Any) -> Any:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def test_lanes_are_added_up() -> None:
    lanes = np.arange(LANES, dtype=np.float32)
    assert _sum(lanes) == lanes.sum() == LANES * (LANES - 1) / 2
    assert np.isnan(_sum(np.where(lanes == 37, np.nan, lanes).astype(np.float32)))


def digests(cache: Path, **variables: Any) -> list[str]:
    """What a new process makes of the same numbers, a line for each kernel."""
    words = (sys.executable, "-m", "tests.runtime.kernels.kernel_bits")
    return finish(*words, NUMBA_CACHE_DIR=str(cache), **variables).stdout.splitlines()


@pytest.mark.thorough
def test_bits_depend_on_no_cache_thread_or_vector_unit(tmp_path: Path) -> None:
    """Else a resumed run could end with other numbers, if its first process was the first."""
    compiled = digests(tmp_path)
    assert len(compiled) == 7 and list(tmp_path.rglob("*.nbc"))
    assert digests(tmp_path) == compiled
    assert digests(tmp_path, OMP_NUM_THREADS="1", NUMBA_NUM_THREADS="1") == compiled
    if processors.has_avx512():
        assert digests(tmp_path, **AVX2) == compiled
