from __future__ import annotations

import numba
import numpy as np
import pytest

from runtime.kernels import memory


@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
def test_a_part_of_a_row_is_requested_and_stays_as_it_is(dtype) -> None:
    """The request changes nothing that could be tested but the code that runs."""

    # Not cached, as the code of cached kernels cannot be inspected.
    @numba.njit
    def first(array, row, start):
        memory.prefetch_part(array, row, start)
        return array[row, start]

    width = memory.PART + 96
    matrix = (np.arange(6 * width) % 1000).astype(dtype).reshape(6, width)
    for start in (0, memory.PART):
        assert [first(matrix, row, start) for row in range(6)] == matrix[:, start].tolist()
    (code,) = first.inspect_llvm().values()
    assert "call void @llvm.prefetch" in code
