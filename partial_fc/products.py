"""The three matrix products of the head, through the fastest operator that MXNet has for them.

``FullyConnected`` and its backward run in oneDNN on the CPU (about three times as fast as
``nd.dot``) and in cuBLAS on a GPU. The backward is called as an operator of its own instead of
through a recorded graph, because the head hands it other arrays than the forward product read:
the probabilities instead of a gradient of the logits, and rescaled features.

The products are computed in the type of the centers and logits that they are handed, float32 or
bfloat16, and summed in float32 in either case; features are float32 outside.
"""

from __future__ import annotations

from typing import Any

from runtime.mxnet import mx
from runtime.ndarray import invoke


def logits(features_BD: Any, centers_SD: Any, out: Any) -> Any:
    """Compute ``out [B, S] = features · centersᵀ``."""
    return mx.nd.FullyConnected(
        _cast(features_BD, centers_SD.dtype),
        centers_SD,
        no_bias=True,
        num_hidden=centers_SD.shape[0],
        out=out,
    )


def gradients(weights_BS: Any, features_BD: Any, centers_SD: Any, out: Any) -> Any:
    """Compute ``out [S, D] = weightsᵀ · features``; returns ``weights · centers`` [B, D]."""
    dtype = centers_SD.dtype
    gradient_BD = mx.nd.empty(features_BD.shape, ctx=features_BD.context, dtype=dtype)
    invoke(
        "_backward_FullyConnected",
        [weights_BS, _cast(features_BD, dtype), centers_SD],
        {"no_bias": True, "num_hidden": centers_SD.shape[0]},
        [gradient_BD, out],
    )
    return _cast(gradient_BD, features_BD.dtype)


def _cast(array: Any, dtype: Any) -> Any:
    return array if array.dtype == dtype else mx.nd.amp_cast(array, dtype=dtype)
