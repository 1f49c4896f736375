from __future__ import annotations

import numpy as np
import pytest

from partial_fc import bfloat16
from runtime.kernels.compiled import parallel_kernel, prange
from runtime.mxnet import mx
from runtime.ndarray import BFLOAT16, memory


@parallel_kernel
def _convert(values, narrow, wide):
    for i in prange(values.size):
        narrow[i] = bfloat16.narrowed(values[i], narrow)
        wide[i] = bfloat16.widened(narrow[i])


def test_rounding_and_widening_are_those_of_mxnet():
    generator = np.random.default_rng(0)
    spread = generator.normal(size=1000) * 10.0 ** generator.integers(-30, 30, size=1000)
    # 1 + 2^-8 lies between two numbers of 8 bits and goes to the even one, 1; 1 + 3 * 2^-8 goes up.
    ties = [1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 0.0, -0.0, np.inf, -np.inf]
    values = np.concatenate([spread, ties]).astype(np.float32)
    array = mx.nd.amp_cast(mx.nd.array(values), dtype=BFLOAT16)
    theirs = memory(array)
    narrow, wide = np.empty(values.size, np.uint16), np.empty_like(values)
    _convert(values, narrow, wide)
    # Without AVX-512, oneDNN's conversion loses the sign of zero.
    is_zero = values == 0
    assert np.array_equal(narrow[~is_zero], theirs[~is_zero])
    assert not (theirs[is_zero] & 0x7FFF).any()
    assert np.array_equal(bfloat16.from_float32(values, theirs.dtype), narrow)
    assert np.array_equal(wide, bfloat16.to_float32(narrow))
    finite = np.isfinite(values)
    assert wide[finite] == pytest.approx(values[finite], rel=2**-8)
    assert wide[-7:].tolist() == [1.0, 1 + 2**-6, -1.0, 0.0, 0.0, np.inf, -np.inf]
    # float32 passes through.
    assert bfloat16.to_float32(values) is bfloat16.from_float32(values, values.dtype) is values
    narrow = np.empty_like(values)
    _convert(values, narrow, wide)
    assert np.array_equal(narrow, values) and np.array_equal(wide, values)
