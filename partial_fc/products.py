"""The three matrix products of the head, through the fastest operator that MXNet has for them.

``FullyConnected`` and its backward run in oneDNN on the CPU (about three times as fast as
``nd.dot``) and in cuBLAS on a GPU. The backward is called as an operator of its own instead of
through a recorded graph, because the head hands it other arrays than the forward product read:
the probabilities instead of a gradient of the logits, and rescaled features.
"""

from __future__ import annotations

from typing import Any

from runtime.mxnet import mx
from runtime.ndarray import invoke


def logits(features_BD: Any, centers_SD: Any, out: Any) -> Any:
    """Compute ``out [B, S] = features · centersᵀ``."""
    return mx.nd.FullyConnected(
        features_BD, centers_SD, no_bias=True, num_hidden=centers_SD.shape[0], out=out
    )


def gradients(weights_BS: Any, features_BD: Any, centers_SD: Any, out: tuple[Any, Any]) -> None:
    """Compute ``out[0] [B, D] = weights · centers`` and ``out[1] [S, D] = weightsᵀ · features``."""
    invoke(
        "_backward_FullyConnected",
        [weights_BS, features_BD, centers_SD],
        {"no_bias": True, "num_hidden": centers_SD.shape[0]},
        list(out),
    )
