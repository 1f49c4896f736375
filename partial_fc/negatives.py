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

# A logit below all others, whose exponential is 0, even where a rank has no other and the lowest
# shift; and one above all others.
LEFT_OUT = -1e30
LOWEST = -1e29
NEVER = 1e30


@dataclass(frozen=True)
class Curriculum:
    """The hard negatives: a cosine c above its threshold becomes c · (hardness + c).

    Attributes:
        thresholds_B: NDArray [B], cosines; among ``Negatives`` logits.
        hardness: NDArray [1].
    """

    thresholds_B: Any
    hardness: Any


@dataclass(frozen=True)
class Negatives:
    """The rules for one global batch, in logits instead of cosines.

    Attributes:
        limit: logits above it are left out of the softmax.
        curriculum: with thresholds for logits; a hard logit x becomes x · (hardness + x / scale).
        scale: the factor of the cosines.
    """

    limit: float
    curriculum: Optional[Curriculum]
    scale: float

    @property
    def filters(self) -> bool:
        """Whether a logit can be left out."""
        return self.limit < NEVER

    @classmethod
    def rules(
        cls, curriculum: Optional[Curriculum], filter_threshold: float, scale: float
    ) -> Optional[Negatives]:
        """The rules of a curriculum and a filter, or None when no logit changes.

        The filter leaves out negatives above its cosine; 1 keeps them all.
        """
        limit = filter_threshold * scale if filter_threshold < 1.0 else NEVER
        if curriculum is not None:
            logits = Curriculum(curriculum.thresholds_B * scale, curriculum.hardness)
            return cls(limit, logits, scale)
        return cls(limit, None, scale) if limit < NEVER else None
