"""The three matrix products of a step, in float32 or bfloat16.

They are nearly all of a step's arithmetic and run in oneDNN on a CPU, in cuBLAS on a GPU. In
bfloat16 they work on blocks of the sampled rows: oneDNN sums in a float32 array as large as the
result, which for whole matrices is new memory from the system in each step and fits into no cache,
so that blocks take little more than half of the time. The gradient of the rows then needs no matrix
of their size either, since a block of rows is updated before the next one's gradient is computed.
In float32 blocks would only cost time.

Shapes: B global batch, D embedding, S sampled rows, K rows of a block, N blocks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partial_fc.bfloat16 import widened
from partial_fc.rows.interface import Logits
from runtime.kernels import parallel_kernel, prange
from runtime.mxnet import mx
from runtime.ndarray import BFLOAT16, invoke, queue

# The rows of a block in bfloat16: between 1,000 and 4,000 the products take the same time.
BLOCK_ROWS = 2048


class Block(NamedTuple):
    """Some of the sampled rows, with arrays in the type of the products.

    Attributes:
        part: which of the sampled rows they are.
        units_KD: NDArray [K, D], the unit vectors, to be written before ``multiply``.
        logits_BK: NDArray [B, K], view of ``Logits``.
        share_BD: NDArray [B, D], what the block adds to the gradient of the features.
        gradient_KD: NDArray [K, D], the gradient of the unit vectors; blocks share this memory.
    """

    part: slice
    units_KD: Any
    logits_BK: Any
    share_BD: Any
    gradient_KD: Any


class Products:
    """The products of one head, and the arrays they work on, which each step uses again.

    New memory of their size costs as much as a pass over it.
    """

    def __init__(self, dtype: Any) -> None:
        """Args: the type of all operands and results."""
        self._dtype = dtype
        self._shape = 0, 0, 0
        self._features_BD: Any = None
        self._shares_NBD: Any = None
        self.logits = Logits(None, 0, 0, 0)
        self.blocks: list[Block] = []
        # By block: the results of the first product with its record by autograd; by height: one for
        # the gradients of rows.
        self._multiplied: list[Any] = []
        self._transposed: dict[int, Any] = {}

    def begin(self, shape: tuple[int, int, int], context: Any) -> None:
        """Have arrays for a step with B, S and D; those of the step before are overwritten."""
        self._multiplied = []
        if shape == self._shape:
            return
        self._shape = batch, num_rows, width = shape
        height = min(BLOCK_ROWS, num_rows) if self._dtype == BFLOAT16 else num_rows
        starts = range(0, num_rows, height)

        def empty(*shape: int) -> Any:
            return mx.nd.empty(shape, ctx=context, dtype=self._dtype)

        self._features_BD = empty(batch, width)
        self._shares_NBD = empty(len(starts), batch, width)
        self.logits = Logits(empty(batch * num_rows), batch, num_rows, height)
        units_SD, gradient_KD = empty(num_rows, width), empty(height, width)
        self.blocks = []
        for number, (start, logits_BK) in enumerate(zip(starts, self.logits.blocks())):
            part = slice(start, min(start + height, num_rows))
            gradient = gradient_KD[: part.stop - start]
            share_BD = self._shares_NBD[number]
            self.blocks.append(Block(part, units_SD[part], logits_BK, share_BD, gradient))
        self._transposed = {}
        for block in {len(block.gradient_KD): block for block in self.blocks}.values():
            # The values multiplied here do not matter: the record keeps which arrays are read.
            rows_KD = block.gradient_KD.detach()
            arrays = rows_KD, block.gradient_KD
            result_BK = self._record(arrays, self._features_BD.detach(), rows_KD, block.logits_BK)
            self._transposed[len(rows_KD)] = result_BK

    def _record(
        self, differentiated: tuple[Any, Any], features_BD: Any, rows_KD: Any, logits_BK: Any
    ) -> Any:
        """``logits = features · rowsᵀ``, with a record by autograd, which the result refers to.

        ``differentiated`` are one of the operands and the array for its gradient. The backward of
        ``FullyConnected`` computes this one alone, for which there is no operator. The arrays are
        handles that have no record yet.
        """
        variable, gradient = differentiated
        mx.autograd.mark_variables([variable], [gradient.detach()])
        options = {"no_bias": True, "num_hidden": len(rows_KD), "out": logits_BK.detach()}
        with mx.autograd.record():
            return mx.nd.FullyConnected(features_BD, rows_KD, **options)

    def set_features(self, features_BD: Any, factor: float = 1.0) -> None:
        """Use ``factor · features``, NDArray float32 [B, D], for the products that follow."""
        if self._dtype == np.float32:
            invoke("_mul_scalar", [features_BD], {"scalar": factor}, [self._features_BD])
        else:
            mx.nd.amp_cast(features_BD * factor, dtype=self._dtype, out=self._features_BD)

    def multiply(self, block: Block) -> None:
        """Compute the logits of a block: ``features · unitsᵀ``; blocks in their order."""
        features_BD = self._features_BD.detach()
        arrays = features_BD, block.share_BD
        units_KD = block.units_KD.detach()
        self._multiplied.append(self._record(arrays, features_BD, units_KD, block.logits_BK))

    def features_gradient(self) -> Any:
        """Compute ``weights · units``, NDArray float32 [B, D]; once for each step.

        The weights are what the array of the logits has come to contain.
        """
        weights = [block.logits_BK.detach() for block in self.blocks]
        mx.autograd.backward(self._multiplied, weights)
        self._multiplied = []
        if self._dtype == np.float32:
            return self._shares_NBD[0]
        # MXNet's sum along an axis takes twenty times as long.
        sum_BD = mx.nd.empty(self._shares_NBD.shape[1:])
        queue(_sum_shares, self._shares_NBD, sum_BD, writes=[sum_BD])
        return sum_BD

    def rows_gradient(self, block: Block) -> None:
        """Compute ``block.gradient_KD = weightsᵀ · features``."""
        result_BK = self._transposed[len(block.gradient_KD)]
        mx.autograd.backward([result_BK], [block.logits_BK.detach()], retain_graph=True)


@parallel_kernel
def _sum_shares(shares, total):  # type: ignore[no-untyped-def]
    for b in prange(total.shape[0]):
        for d in range(total.shape[1]):
            total[b, d] = widened(shares[0, b, d])
        for n in range(1, shares.shape[0]):
            for d in range(total.shape[1]):
                total[b, d] += widened(shares[n, b, d])
