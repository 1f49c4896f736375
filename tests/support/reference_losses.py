"""The losses in float64: what each gives ``reference_step`` at each update."""

from __future__ import annotations

from typing import Any

import numpy as np

from partial_fc.margin import Margin, Margined, NormTerms, Targets
from runtime.mxnet import mx
from tests.support.reference_head import ReferenceNormTerms

MARGINS = {
    "arcface": (1.0, 0.5, 0.0),
    "cosface": (1.0, 0.0, 0.35),
    "combined": (0.9, 0.4, 0.15),
    "softmax": (1.0, 0.0, 0.0),
}


class ReferenceCombined:
    """Margins that stay as they are."""

    def __init__(self, m1: float, m2: float, m3: float) -> None:
        self._margins = (m1, m2, m3)

    def __call__(self, norms: np.ndarray, cosines: np.ndarray) -> dict[str, Any]:
        return {"margins": self._margins}


class ReferenceAdaFace:
    """Kim et al. 2022: m = 0.4, h = 0.33, running mean and deviation of the norms."""

    mean = deviation = None

    def __call__(self, norms: np.ndarray, cosines: np.ndarray) -> dict[str, Any]:
        if self.mean is None:
            self.mean, self.deviation = norms.mean(), norms.std()
        else:
            self.mean = 0.99 * self.mean + 0.01 * norms.mean()
            self.deviation = 0.99 * self.deviation + 0.01 * norms.std()
        distance = np.clip(0.33 * (norms - self.mean) / (self.deviation + 1e-3), -1, 1)
        return {"margins": (1.0, -0.4 * distance, 0.4 * distance + 0.4)}


class ReferenceCurricularFace:
    """Huang et al. 2020: m = 0.5, t the running mean of the targets' cosines."""

    t = 0.0

    def __call__(self, norms: np.ndarray, cosines: np.ndarray) -> dict[str, Any]:
        self.t = 0.99 * self.t + 0.01 * cosines.mean()
        return {"margins": (1.0, 0.5, 0.0), "hardness": self.t}


class NormMargin(Margin):
    """A margin of 0.02 times the norm on the angle, and a penalty on norms other than 12."""

    def __call__(self, targets: Targets) -> Margined:
        norms_B = targets.all_norms()
        theta_B = mx.nd.arccos(targets.cosines_B)
        sines_B = mx.nd.sin(theta_B + 0.02 * norms_B)
        distances_B = norms_B - 12
        terms = NormTerms(-0.02 * sines_B, 0.01 * distances_B**2, 0.02 * distances_B)
        cosines_B = mx.nd.cos(theta_B + 0.02 * norms_B)
        return Margined(cosines_B, sines_B / mx.nd.sin(theta_B), norm_terms=terms)


class ReferenceNormMargin:
    """The same from its formulas."""

    def __call__(self, norms: np.ndarray, cosines: np.ndarray) -> dict[str, Any]:
        slopes = np.full_like(norms, 0.02)
        terms = ReferenceNormTerms(slopes, 0.01 * (norms - 12) ** 2, 0.02 * (norms - 12))
        return {"margins": (1.0, 0.02 * norms, 0.0), "norm_terms": terms}
