"""Memory for rows: where it begins, and what it holds."""

from __future__ import annotations

import numpy as np
import pytest

from partial_fc.row_memory import zeros
from runtime.errors import ConfigError


@pytest.mark.parametrize(
    ("shape", "dtype"), [((3, 5), np.uint16), ((5000, 512), np.float32), ((3_000_000,), np.int32)]
)
def test_zeros_that_can_be_written(shape: tuple[int, ...], dtype: type) -> None:
    array = zeros(shape, dtype)
    assert array.shape == shape and array.dtype == dtype and array.flags.c_contiguous
    assert not array.any()
    array[-1] = 7
    assert array.astype(np.int64).sum() == 7 * array[-1].size


def test_more_memory_than_there_is() -> None:
    """The number of classes in property may be anything."""
    for shape in ((1 << 24, 1 << 22), (1 << 55,)):
        with pytest.raises(ConfigError, match=f"{shape[0]:,} rows .* number of classes .property"):
            zeros(shape, np.float32)
