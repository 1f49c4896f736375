"""The three matrix products of the head, through the fastest operator that MXNet has for them.

``FullyConnected`` and its backward run in oneDNN on the CPU (about three times as fast as
``nd.dot``) and in cuBLAS on a GPU. The backward is called as an operator of its own and not through
a recorded graph, because its inputs are not those of the forward product: the probabilities take
the place of the logits' gradient, and the features are rescaled.

The type of the products is that of the given centers and logits, float32 or bfloat16; sums are
float32 in either case, and so are the features outside.
"""

from __future__ import annotations

from typing import Any

from runtime.mxnet import mx
from runtime.ndarray import invoke


def logits(features_BD: Any, centers_SD: Any, out: Any) -> Any:
    """Compute ``out [B, S] = features · centersᵀ``."""
    features_BD, size = _cast(features_BD, centers_SD.dtype), centers_SD.shape[0]
    return mx.nd.FullyConnected(features_BD, centers_SD, no_bias=True, num_hidden=size, out=out)


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
