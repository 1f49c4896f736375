"""One softmax out of the shards: the few numbers of each sample that ranks tell each other.

A rank keeps exp(logit − shift) of the negatives in the matrix, with its own largest logit of the
sample as the shift, so that it passes over its logits once, before it knows those of others. With M
the largest shift of all ranks and Z = Σ exp(logit − M), the gradient of the mean loss is
(p − 1[target]) / B with p = exp(logit − M) / Z. The factor exp(shift − M) · scale / (B·Z) of a row
makes the matrix the gradient, and the entry of the target is written such that this factor makes it
right. Z lies between 1 and the number of classes, so nothing over- or underflows, however large the
scale. The targets stay out of the sum at first: Z·(1 − p[target]) is then a sum, exact where a
difference would cancel. Rules for negatives change what enters the sum, and multiply what the
matrix keeps by their derivative.

Shapes: B global batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from runtime.mxnet import mx
from runtime.ndarray import invoke

# The least logarithm of exp(shift − M). Where the logits of a rank are so far below M, the weights
# of its negatives are below 5e-18, which changes no float32 beside 1; but the entry of a target
# would overflow.
_LEAST = -40.0


class Own(NamedTuple):
    """What one rank knows of the samples.

    Attributes:
        sums_B: NDArray [B], the sums of exp(logit − shift) over the negatives.
        kept_B: NDArray [B], exp(shift − M).
        target_B: NDArray [B], the logit of the target after the margin less M; any number where the
            class belongs to another rank.
        local_B: NDArray [B], 1 where the class belongs to this rank, else 0.
    """

    sums_B: Any
    kept_B: Any
    target_B: Any
    local_B: Any


class Results(NamedTuple):
    """What follows from the sums over all ranks.

    Attributes:
        loss: NDArray [1], the mean.
        entry_B: NDArray [B], the entries of targets.
        factor_B: NDArray [B], of exp(logit − M) in the gradient: scale / (B·Z).
        row_factor_B1: NDArray [B, 1], of the rows of the matrix.
    """

    loss: Any
    entry_B: Any
    factor_B: Any
    row_factor_B1: Any


def own_of(sums_B: Any, shift_B: Any, largest_B: Any, target_B: Any, local_B: Any) -> Own:
    """What a rank knows, once it knows M, ``largest_B``; all NDArrays [B]."""
    kept_B = mx.nd.exp(mx.nd.maximum(shift_B - largest_B, _LEAST))
    return Own(sums_B, kept_B, target_B - largest_B, local_B)


def addends(own: Own) -> list[Any]:
    """What is summed over the ranks, NDArrays [B]: exponentials of negatives, and targets."""
    return [own.sums_B * own.kept_B, where_local(own.local_B, own.target_B)]


def results(totals: Any, own: Own, slopes_B: Any, scale: float) -> Results:
    """The gradient and the loss.

    Args:
        totals: NDArray [2 or more, B], the sums of ``addends``.
        own: of this rank.
        slopes_B: NDArray [B], the derivatives of the targets' cosines after the margin by those
            before.
        scale: of the cosines.
    """
    others_B, target_B = totals[0], totals[1]
    denominator_B = others_B + mx.nd.exp(target_B)
    loss = mx.nd.mean(mx.nd.log(denominator_B) - target_B)
    factor_B = (scale / others_B.size) / denominator_B
    entry_B = -slopes_B * others_B / own.kept_B
    return Results(loss, entry_B, factor_B, (factor_B * own.kept_B).reshape((-1, 1)))


def where_local(local_B: Any, values_B: Any) -> Any:
    """The values where the target belongs to this rank, else 0; one operator."""
    chosen_B = mx.nd.empty(values_B.shape, ctx=values_B.context)
    invoke("_npi_where_rscalar", [local_B, values_B], {"scalar": 0.0}, [chosen_B])
    return chosen_B
