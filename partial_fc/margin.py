"""Margins of the softmax, applied to the target logits alone.

A margin changes B numbers of the B × S logits, so it takes the cosines of the targets and gives
back the changed cosines with their derivatives; the head puts both where they belong. One form
covers the usual losses: cos(m1·θ + m2) − m3 (Deng et al., "ArcFace", CVPR 2019, equation 4), with
SphereFace's m1, ArcFace's m2 and CosFace's m3 (Wang et al., "CosFace", CVPR 2018, equation 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runtime.mxnet import mx

# The derivative of arccos is infinite at ±1, which rounding reaches (and passes): angles are kept
# this far away from 0 and π in the cosine.
_COSINE_LIMIT = 1.0 - 1e-6


@dataclass(frozen=True)
class CombinedMargin:
    """The margin cos(m1·θ + m2) − m3 on the angle θ between an embedding and its class center."""

    m1: float = 1.0
    m2: float = 0.0
    m3: float = 0.0

    def __call__(self, cosine_B: Any) -> tuple[Any, Any]:
        """Apply the margin.

        Args:
            cosine_B: NDArray [B], cosines of the targets before the margin.

        Returns:
            The cosines after the margin, and their derivatives with respect to the cosines
            before it; both NDArray [B].
        """
        if self.m1 == 1.0 and self.m2 == 0.0:
            return cosine_B - self.m3, mx.nd.ones_like(cosine_B)
        clipped_B = mx.nd.clip(cosine_B, -_COSINE_LIMIT, _COSINE_LIMIT)
        theta_B = mx.nd.arccos(clipped_B)
        angle_B = self.m1 * theta_B + self.m2
        slope_B = self.m1 * mx.nd.sin(angle_B) / mx.nd.sin(theta_B)
        return mx.nd.cos(angle_B) - self.m3, slope_B
