"""The passes of the head over rows: of class centers, of logits, of features.

The head is a few matrix products and memory traffic around them, so each pass reads and writes a
row once. ``HostRows`` keeps the centers in NumPy arrays and runs Numba kernels on the memory of
MXNet's arrays; ``DeviceRows`` keeps them on a device and uses MXNet operators. In both only the
sampled rows enter a tensor of MXNet, whose 32-bit sizes end at 2^31 elements, so a shard may have
any size.

Shapes: b batch of a rank, B global batch, D embedding, S sampled rows, C rows of the shard.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Protocol

import numpy as np
from numpy.typing import NDArray

from partial_fc.negatives import Negatives
from partial_fc.shard import Sample

Array = NDArray[np.float32]
# Vectors shorter than this are divided by it.
SMALLEST_NORM = 1e-12


class Placed(NamedTuple):
    """A sample in the form that ``Rows.place`` chose, beside the centers.

    Attributes:
        rows: the sampled rows.
        entries: the entries of the targets in the logits.
        local_B: NDArray float32 [B], 1 where the label belongs to this shard, else 0.
    """

    rows: Any
    entries: Any
    local_B: Any


class Rows(Protocol):
    """The class centers of a shard with their optimizer, and the passes of a step over rows."""

    @property
    def row_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of one row of "centers" and each state."""

    def place(self, sample: Sample) -> Placed:
        """Bring what a step needs of its sample to where the centers are."""

    def gather(self, placed: Placed, units_SD: Any, gradient_SD: Any) -> Any:
        """Write the unit vectors of the sampled rows into ``units_SD``.

        Returns:
            What ``update`` needs. By then ``gradient_SD`` has to contain the gradient with respect
            to these vectors, and they have to be as they are.
        """

    def update(self, gathered: Any, lr: float) -> None:
        """Update the rows of ``gather``; may overwrite the gradient."""

    def maxima(self, logits_BS: Any, rules: Optional[Negatives] = None) -> Any:
        """The largest logit of each sample after the rules, NDArray [B].

        Logits that the rules leave out may be overwritten.
        """

    def exponentiate(self, logits_BS: Any, shift_B: Any, rules: Optional[Negatives] = None) -> Any:
        """Replace the logits by exp(logit − shift), in place, after ``maxima`` with these rules.

        Returns:
            The sums, NDArray [B].

        Where the rules turn a logit x into f(x), exp(f(x) − shift) enters the sum, and its product
        with f'(x), the weight in the gradient, replaces x.
        """

    def get_targets(self, matrix_BS: Any, placed: Placed) -> Any:
        """The entries of the targets, one in each row, NDArray [B]."""

    def set_targets(self, matrix_BS: Any, placed: Placed, values_B: Any) -> None:
        """Replace them, in place."""

    def export(self) -> dict[str, NDArray[Any]]:
        """The arrays "centers", float32 [C, D], and the optimizer's states; updates change them."""

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """As ``export``, in arrays that the next snapshot may change but updates do not."""

    def load(self, name: str, first: int, values: NDArray[Any]) -> None:
        """Overwrite rows of "centers" or a state, beginning with ``first``."""

    def normalize(self, features_bD: Any) -> tuple[Any, Any]:
        """The unit vectors [b, D], and 1 / norms [b, 1]."""

    def multiply_rows(self, matrix_BD: Any, factors_B1: Any) -> Any:
        """Each row times its factor."""

    def project(self, gradient_bD: Any, units_bD: Any, inverse_norms_b1: Any) -> Any:
        """The gradient with respect to features, from that with respect to their unit vectors."""
