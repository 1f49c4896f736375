"""How negatives enter the softmax, where they do not enter as they are.

Two rules change single entries of the B × S logits. A negative whose cosine exceeds a threshold may
be a mislabeled positive and is left out (inter-class filtering). A negative that is more similar
than the target with its margin is hard and gets another weight (CurricularFace). The passes over
the logits apply both as they go, so that nothing else of that size is made.

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
        """The rules, or None when all negatives enter as they are.

        Args:
            curriculum: of the margin, if it has one.
            filter_threshold: the cosine above which negatives are left out; 1 keeps them all.
            targets_B: NDArray [B], for its size and device.
            scale: the factor of the cosines.
        """
        limit = filter_threshold * scale if filter_threshold < 1.0 else _NEVER
        if curriculum is not None:
            return cls(limit, curriculum.thresholds_B * scale, curriculum.hardness, scale)
        if limit == _NEVER:
            return None
        never_B = mx.nd.full(targets_B.shape, _NEVER, ctx=targets_B.context)
        return cls(limit, never_B, mx.nd.zeros((1,), ctx=targets_B.context), scale)
