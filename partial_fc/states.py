"""What the optimizers of the class centers remember of each row.

The rows, the dry run and checkpoints have to agree on these arrays, and the dry run has to answer
without MXNet and Numba, so the table stands by itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike


class RowState(NamedTuple):
    """One array of state: as wide as the centers, or one number for each row."""

    dtype: DTypeLike
    wide: bool

    def shape(self, num_rows: int, embedding_size: int) -> tuple[int, ...]:
        """The shape for ``num_rows`` centers of length ``embedding_size``."""
        return (num_rows, embedding_size) if self.wide else (num_rows,)

    def num_bytes(self, num_rows: int, embedding_size: int) -> int:
        """The memory that the array takes."""
        elements = num_rows * embedding_size if self.wide else num_rows
        return elements * np.dtype(self.dtype).itemsize


_ADAM = {
    "first_moments": RowState(np.float32, wide=True),
    "second_moments": RowState(np.float32, wide=True),
    "step_counts": RowState(np.int32, wide=False),
}

STATES: dict[str, dict[str, RowState]] = {
    "sgd": {"momenta": RowState(np.float32, wide=True)},
    "adam": _ADAM,
    "adamw": _ADAM,
}
