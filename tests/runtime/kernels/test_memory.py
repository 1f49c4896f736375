"""What kernels do with memory besides computing."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from runtime.kernels import memory


@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
def test_a_row_is_requested_and_stays_as_it_is(dtype) -> None:
    """The request changes nothing that could be tested but the code that runs."""

    # Not cached, as the code of cached kernels cannot be inspected.
    @numba.njit
    def first(array, row):
        memory.prefetch_row(array, row)
        return array[row, 0]

    matrix = np.arange(6 * 96).astype(dtype).reshape(6, 96)
    assert [first(matrix, row) for row in range(6)] == matrix[:, 0].tolist()
    (code,) = first.inspect_llvm().values()
    assert "call void @llvm.prefetch" in code
