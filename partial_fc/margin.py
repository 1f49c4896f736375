"""Margins of the softmax, applied to the target logits alone.

A margin changes B numbers of the B × S logits, so it takes the cosines of the targets and gives
back the changed cosines with their derivatives; the head puts both where they belong. One form
covers the usual losses: cos(m1·θ + m2) − m3 (Deng et al., "ArcFace", CVPR 2019, equation 4), with
SphereFace's m1, ArcFace's m2 and CosFace's m3 (Wang et al., "CosFace", CVPR 2018, equation 4).
AdaFace chooses m2 and m3 for each image; CurricularFace adds a rule for the negatives.

Shapes: B global batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional, Protocol

from partial_fc.negatives import Curriculum
from partial_fc.options import LOSSES, HeadOptions
from partial_fc.targets import Targets
from runtime.mxnet import mx
from runtime.state import REPLICATED, Saved, State, Stateful, Stored

# The derivative of arccos is infinite at ±1, which rounding reaches (and passes): angles are kept
# this far away from 0 and π in the cosine.
_COSINE_LIMIT = 1.0 - 1e-6

# Before the names of a margin's arrays among those of the head.
_PREFIX = "margin."
# What remains of a running statistic after a step.
_RUNNING = 0.99


@dataclass(frozen=True)
class Margined:
    """The targets after the margin.

    Attributes:
        cosines_B: NDArray [B].
        slopes_B: NDArray [B], their derivatives with respect to the cosines before the margin.
        curriculum: the rule for hard negatives, if the margin has one.
    """

    cosines_B: Any
    slopes_B: Any
    curriculum: Optional[Curriculum] = None


class Margin(Stateful, Protocol):
    """What the head asks of a margin, which replaces the arrays that it remembers, all [1].

    Their names begin with "margin." in the head's part of a checkpoint.
    """

    def __call__(self, targets: Targets) -> Margined:
        """Apply the margin to the targets of one update."""


@dataclass(frozen=True)
class CombinedMargin:
    """The margin cos(m1·θ + m2) − m3 on the angle θ between an embedding and its class center."""

    m1: float = 1.0
    m2: float = 0.0
    m3: float = 0.0

    def __call__(self, targets: Targets) -> Margined:
        """See ``Margin``."""
        return Margined(*self.apply(targets.cosines_B))

    def apply(self, cosines_B: Any) -> tuple[Any, Any]:
        """Apply the margin to cosines, NDArray [B]; returns changed cosines and their slopes."""
        if self.m1 == 1.0 and self.m2 == 0.0:
            return cosines_B - self.m3, mx.nd.ones_like(cosines_B)
        theta_B = _angle(cosines_B)
        angle_B = self.m1 * theta_B + self.m2
        slopes_B = self.m1 * mx.nd.sin(angle_B) / mx.nd.sin(theta_B)
        return mx.nd.cos(angle_B) - self.m3, slopes_B

    def export_state(self, update: int) -> State:
        """See ``Stateful``: nothing."""
        return State()

    def load_state(self, saved: Saved) -> None:
        """See ``Stateful``: nothing."""


class AdaFace:
    """Margins that depend on the quality of an image (Kim et al., "AdaFace", CVPR 2022).

    The norm of a feature stands for the quality. With ẑ the norm's distance from the running mean
    in units of the running standard deviation over h, kept within ±1, the target becomes
    cos(θ − m·ẑ) − (m·ẑ + m): good images get a margin that emphasizes hard samples, bad ones a
    margin that does not. No gradient flows through ẑ. The statistics are those of the global
    batch, so every rank has the same; they start with those of the first batch.
    """

    # Of the authors' program: a deviation of 0 has to give a distance.
    _EPSILON = 1e-3

    def __init__(self, m: float = 0.4, h: float = 0.33) -> None:
        """Args: the margin and the concentration of the paper."""
        self._m = m
        self._h = h
        self._mean: Any = None
        self._deviation: Any = None

    def __call__(self, targets: Targets) -> Margined:
        """See ``Margin``."""
        norms_B = targets.all_norms()
        self._follow(norms_B)
        distance_B = (norms_B - self._mean) / (self._deviation + self._EPSILON)
        margin_B = self._m * mx.nd.clip(self._h * distance_B, -1.0, 1.0)
        theta_B = _angle(targets.cosines_B)
        # Where the margin would leave [0, π] the angle stays at its end, and the slope is 0.
        angle_B = mx.nd.clip(theta_B - margin_B, 0.0, math.pi)
        slopes_B = mx.nd.sin(angle_B) / mx.nd.sin(theta_B)
        return Margined(mx.nd.cos(angle_B) - margin_B - self._m, slopes_B)

    def _follow(self, norms_B: Any) -> None:
        mean = mx.nd.mean(norms_B)
        deviation = mx.nd.sqrt(mx.nd.mean(mx.nd.square(norms_B - mean)))
        if self._mean is None:
            self._mean, self._deviation = mean, deviation
        else:
            self._mean = _RUNNING * _beside(mean, self._mean) + (1 - _RUNNING) * mean
            deviation_before = _beside(mean, self._deviation)
            self._deviation = _RUNNING * deviation_before + (1 - _RUNNING) * deviation

    def export_state(self, update: int) -> State:
        """See ``Stateful``; nothing before the first update."""
        return _state({"norm_mean": self._mean, "norm_deviation": self._deviation})

    def load_state(self, saved: Saved) -> None:
        """See ``Stateful``."""
        self._mean = _restored(saved, "norm_mean")
        self._deviation = _restored(saved, "norm_deviation")


class CurricularFace:
    """ArcFace, and hard negatives that count more as training goes on.

    Huang et al., "CurricularFace", CVPR 2020: a negative's cosine c above the target's cosine with
    its margin becomes c · (t + c), with t the running mean of the cosines of the targets, 0 at the
    start. No gradient flows through t. A run in which t is small discounts hard negatives; as the
    targets come closer to their centers they count more.
    """

    def __init__(self, m: float = 0.5) -> None:
        """Args: the margin on the angle of the target."""
        self._arc = CombinedMargin(m2=m)
        self._hardness: Any = None

    def __call__(self, targets: Targets) -> Margined:
        """See ``Margin``."""
        # All ranks need all thresholds: the negatives of a sample are everywhere.
        cosines_B = targets.all_cosines()
        mean = (1 - _RUNNING) * mx.nd.mean(cosines_B)
        before = self._hardness
        self._hardness = mean if before is None else _RUNNING * _beside(mean, before) + mean
        margined_B, slopes_B = self._arc.apply(cosines_B)
        return Margined(margined_B, slopes_B, Curriculum(margined_B, self._hardness))

    def export_state(self, update: int) -> State:
        """See ``Stateful``; nothing before the first update."""
        return _state({"hardness": self._hardness})

    def load_state(self, saved: Saved) -> None:
        """See ``Stateful``."""
        self._hardness = _restored(saved, "hardness")


def build(options: HeadOptions) -> Margin:
    """The margin of ``--loss`` or ``--margins``."""
    if options.applied_margins is not None:
        return CombinedMargin(*options.applied_margins)
    margin: Margin = globals()[LOSSES[options.loss].margin]()
    return margin


def _state(memory: Mapping[str, Any]) -> State:
    """What is not None, NDArrays [1] by name."""
    return State(
        {
            f"{_PREFIX}{name}": Stored(REPLICATED, array.asnumpy())
            for name, array in memory.items()
            if array is not None
        }
    )


def _restored(saved: Saved, name: str) -> Any:
    full = f"{_PREFIX}{name}"
    return mx.nd.array(saved.replicated(full, (1,))) if full in saved.names() else None


def _beside(array: Any, restored: Any) -> Any:
    """What ``load_state`` has made, on the device of ``array``."""
    return restored.as_in_context(array.context)


def _angle(cosines_B: Any) -> Any:
    return mx.nd.arccos(mx.nd.clip(cosines_B, -_COSINE_LIMIT, _COSINE_LIMIT))
