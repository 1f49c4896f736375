"""Rules that change the logits of some negatives.

A negative whose cosine exceeds a threshold may be a mislabeled positive and is left out
(inter-class filtering). A negative that is more similar than the target with its margin is hard and
gets another weight (CurricularFace). The passes over the B × S logits apply both as they go, so
that there is no second matrix of that size.

Shapes: B global batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from runtime.mxnet import mx

# A logit below all others, whose exponential is 0; and one above all others.
LEFT_OUT = -1e30
_NEVER = 1e30


@dataclass(frozen=True)
class Curriculum:
    """The hard negatives: a cosine c above its threshold becomes c · (hardness + c).

    Attributes:
        thresholds_B: NDArray [B], cosines.
        hardness: NDArray [1].
    """

    thresholds_B: Any
    hardness: Any


@dataclass(frozen=True)
class Negatives:
    """The rules for one global batch, in logits instead of cosines.

    Attributes:
        limit: logits above it are left out of the softmax.
        thresholds_B: NDArray [B]; logits above are hard.
        hardness: NDArray [1], t: a hard logit x becomes x · (t + x / scale).
        scale: the factor of the cosines.
    """

    limit: float
    thresholds_B: Any
    hardness: Any
    scale: float

    @classmethod
    def rules(
        cls, curriculum: Optional[Curriculum], filter_threshold: float, targets_B: Any, scale: float
    ) -> Optional[Negatives]:
        """The rules of a curriculum and a filter, or None when no logit changes.

        The filter leaves out negatives above its cosine; 1 keeps them all. Size and device of the
        thresholds are those of ``targets_B``, an NDArray [B].
        """
        limit = filter_threshold * scale if filter_threshold < 1.0 else _NEVER
        if curriculum is not None:
            return cls(limit, curriculum.thresholds_B * scale, curriculum.hardness, scale)
        if limit == _NEVER:
            return None
        never_B = mx.nd.full(targets_B.shape, _NEVER, ctx=targets_B.context)
        return cls(limit, never_B, mx.nd.zeros((1,), ctx=targets_B.context), scale)
