"""The losses in float64: what each gives ``reference_step`` at each update."""

from __future__ import annotations

from typing import Any

import numpy as np


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
