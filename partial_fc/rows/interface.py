"""The passes of the head over rows: of class centers and of logits.

The head is a few matrix products and memory traffic around them, so each pass reads and writes a
row once. ``HostRows`` keeps the centers in NumPy arrays and runs Numba kernels on the memory of
MXNet's arrays; ``DeviceRows`` keeps them on a device and uses MXNet operators. In both only the
sampled rows enter a tensor of MXNet, whose 32-bit sizes end at 2^31 elements, so a shard may have
any size.

The passes over the B × S logits apply rules for some negatives as they go, so that there is no
second matrix of that size. A negative whose cosine exceeds a threshold may be a mislabeled positive
and is left out (inter-class filtering). A negative that is more similar than the target with its
margin is hard and gets another weight (CurricularFace).

Shapes: b batch of a rank, B global batch, D embedding, S sampled rows, C rows of the shard,
K rows of a block, N blocks.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Protocol

import numpy as np
from numpy.typing import NDArray

from partial_fc.shard import Sample, Shard
from partial_fc.store.header import STORE
from runtime.errors import DataError
from runtime.mxnet import mx
from runtime.state import SHARDED, Saved, State, Stored

Array = NDArray[np.float32]
# Vectors shorter than this are divided by it.
SMALLEST_NORM = 1e-12
# A logit below all others, whose exponential is 0, even where a rank has no other and the lowest
# shift; and one above all others.
LEFT_OUT = -1e30
LOWEST = -1e29
NEVER = 1e30


class Curriculum(NamedTuple):
    """The hard negatives: a cosine c above its threshold becomes c · (hardness + c).

    Attributes:
        thresholds_B: NDArray [B], cosines.
        hardness: NDArray [1].
    """

    thresholds_B: Any
    hardness: Any


class Negatives(NamedTuple):
    """The rules for one global batch.

    Attributes:
        limit: logits above it are left out of the softmax.
        curriculum: a hard logit x becomes x · (hardness + x / scale).
        scale: the factor of the cosines, which makes logits of them.
    """

    limit: float
    curriculum: Optional[Curriculum]
    scale: float


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


class Logits(NamedTuple):
    """The logits of a step or the weights that they become, in blocks of columns.

    Attributes:
        numbers: NDArray [B · S], float32 or bfloat16: the blocks [B, K] one after the other.
        batch: B.
        num_rows: S.
        height: K; the last block may have fewer columns.
    """

    numbers: Any
    batch: int
    num_rows: int
    height: int

    def blocks(self) -> list[Any]:
        """The blocks, NDArrays [B, K], which share the memory."""
        bounds = [*range(0, self.num_rows, self.height), self.num_rows]
        return [
            self.numbers[self.batch * start : self.batch * stop].reshape((self.batch, stop - start))
            for start, stop in zip(bounds, bounds[1:])
        ]


class Rows(Protocol):
    """The class centers of a shard with their optimizer, and the passes of a step over rows."""

    reads_ahead: bool = False
    """True if ``read_ahead`` does anything."""

    @property
    def row_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of one row of "centers" and each state."""

    def place(self, sample: Sample) -> Placed:
        """Bring what a step needs of its sample to where the centers are."""

    def gather(self, placed: Placed, part: slice, units_KD: Any, gradient_KD: Any) -> Any:
        """Write the unit vectors of a block of the sampled rows, ``part``, into ``units_KD``.

        Returns:
            What ``update`` needs. By then ``gradient_KD`` has to contain the gradient with respect
            to these vectors, and they have to be as they are.
        """

    def update(self, gathered: Any, lr: float) -> None:
        """Update the rows of ``gather``; may overwrite the gradient."""

    def settle(self) -> None:
        """Wait until updates on the host have run; what is on a device, reads wait for."""
        return

    def get_targets(self, logits: Logits, placed: Placed) -> Any:
        """The logits of the targets, NDArray [B]; any where the class belongs to another rank."""

    def exponentiate(
        self, logits: Logits, placed: Placed, targets_B: Any, rules: Negatives
    ) -> tuple[Any, Any]:
        """Replace logits of negatives by exp(logit − shift), in place, and those of targets by 0.

        Where the rules turn a logit x into f(x), exp(f(x) − shift) enters the sum, and its product
        with f'(x), the weight in the gradient, replaces x.

        Args:
            logits: of the sampled rows.
            placed: their targets.
            targets_B: NDArray [B], the logits that the targets have in the softmax; any number
                where the class belongs to another rank.
            rules: for negatives.

        Returns:
            Two NDArrays [B]: the shifts, each the largest logit of the sample on this rank after
            margin and rules, and the sums.
        """

    def set_targets(self, logits: Logits, placed: Placed, values_B: Any) -> None:
        """Replace the entries of targets that belong to this rank, in place."""

    def project(self, gradient_bD: Any, units_bD: Any, inverse_norms_b1: Any) -> Any:
        """Return the gradient [b, D] with respect to vectors, from that of their unit vectors."""
        radial_b1 = mx.nd.sum(gradient_bD * units_bD, axis=1, keepdims=True)
        tangent_bD = gradient_bD - mx.nd.broadcast_mul(units_bD, radial_b1)
        return mx.nd.broadcast_mul(tangent_bD, inverse_norms_b1)

    def export(self) -> dict[str, NDArray[Any]]:
        """The arrays "centers" [C, D] and the optimizer's states, once the updates have run.

        Later updates or exports may change them.
        """

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """As ``export``, in arrays that the next snapshot may change but updates do not."""
        return self.export()

    def load(self, name: str, first: int, values: NDArray[Any]) -> None:
        """Overwrite rows of "centers" or a state, beginning with ``first``."""

    def read_ahead(self, sample: Sample) -> None:
        """Begin to bring the rows of the sample that follows the last one of these to memory."""
        return

    def averages(self) -> dict[str, float]:
        """Further numbers of a report, since the last one: shares of the time that rows took."""
        return {}

    def export_state(self, update: int, shard: Shard) -> State:
        """The state after ``update`` updates, for a checkpoint; see ``Stateful``."""
        start, total = shard.start, shard.num_classes
        arrays = self.snapshot().items()
        return State({name: Stored(SHARDED, rows, start, total) for name, rows in arrays})

    def load_state(self, saved: Saved, shard: Shard) -> None:
        """Restore what ``export_state`` has returned; see ``Stateful``."""
        if saved.has(STORE):
            raise DataError(
                "the class centers of this checkpoint are in the store of its run; give its folder "
                "with --center-store DIR, or another --models-root, or start anew with --resume "
                "never"
            )
        for name, row_shape in self.row_shapes.items():
            pieces = saved.pieces(name, shard.start, shard.stop, shard.num_classes, row_shape)
            for first, values in pieces:
                self.load(name, first, values)

    def begin(self, run: str) -> None:
        """Begin a run, by its folder, that goes on from no checkpoint; all ranks together.

        Raises:
            ConfigError: the rows are those of another run.
        """
        return

    def close(self) -> None:
        """Finish what is under way; the rows are not used any more."""
        return
