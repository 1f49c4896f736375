"""Margins of the softmax, applied to the target logits alone.

A margin changes B numbers of the B × S logits, so it takes the cosines of the targets and returns
the changed cosines with their derivatives; the head writes them into logits and gradient. One form
covers the usual losses: cos(m1·θ + m2) − m3 (Deng et al., "ArcFace", CVPR 2019, equation 4), with
SphereFace's m1, ArcFace's m2 and CosFace's m3 (Wang et al., "CosFace", CVPR 2018, equation 4).

Shapes: b batch of a rank, B global batch.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

from typing_extensions import override

from partial_fc.options import LOSSES, HeadOptions
from partial_fc.rows.interface import Curriculum
from runtime.devices import Communicator
from runtime.mxnet import mx
from runtime.state import REPLICATED, Saved, State, Stateful, Stored

# The derivative of arccos is infinite at ±1, which rounding reaches (and passes): angles are kept
# this far away from 0 and π in the cosine.
_COSINE_LIMIT = 1.0 - 1e-6
# Before the names of a margin's arrays among those of the head.
_PREFIX = "margin."
# The share that a running mean keeps of itself in an update.
_KEPT = 0.99


@dataclass(frozen=True)
class Targets:
    """The targets of a global batch, as one rank knows them.

    Not every margin depends on the numbers of other ranks: those that do gather them, by a
    collective that all ranks have to call.

    Attributes:
        cosines_B: NDArray [B], between the features and the centers of their classes; any number
            where the class belongs to another rank.
        local_B: NDArray [B], 1 where the class belongs to this rank, else 0.
        inverse_norms_b1: NDArray [b, 1], 1 / the norms of this rank's features.
        world: the ranks.
    """

    cosines_B: Any
    local_B: Any
    inverse_norms_b1: Any
    world: Communicator

    def all_cosines(self) -> Any:
        """The cosines of all targets, NDArray [B], the same on every rank."""
        return self.world.allreduce(self.cosines_B * self.local_B, "head.targets")

    def all_norms(self) -> Any:
        """The norms of all features, NDArray [B], the same on every rank."""
        norms_b = 1.0 / self.inverse_norms_b1.reshape((-1,))
        return self.world.allgather(norms_b, "head.norms")


@dataclass(frozen=True)
class NormTerms:
    """The terms of the loss that depend on the norms of the features, with a gradient.

    Attributes:
        slopes_B: NDArray [B], the derivatives of the targets' cosines after the margin with respect
            to the norms; any number where the class belongs to another rank.
        penalties_B: NDArray [B], added to the losses of the images; the same on every rank.
        penalty_slopes_B: NDArray [B], the derivatives of the penalties.
    """

    slopes_B: Any
    penalties_B: Any
    penalty_slopes_B: Any


@dataclass(frozen=True)
class Margined:
    """The targets after the margin.

    Attributes:
        cosines_B: NDArray [B].
        slopes_B: NDArray [B], their derivatives with respect to the cosines before the margin.
        curriculum: the rule for hard negatives, if the margin has one.
        norm_terms: if a gradient flows through the norms of the features.
    """

    cosines_B: Any
    slopes_B: Any
    curriculum: Optional[Curriculum] = None
    norm_terms: Optional[NormTerms] = None


class Margin(Stateful):
    """Changes the cosines of targets; keeps running means, if it needs them, in checkpoints."""

    # NDArrays [1] by name; an update replaces them, so that a copy of the margin keeps its own.
    _means: Mapping[str, Any] = {}

    @abstractmethod
    def __call__(self, targets: Targets) -> Margined:
        """Apply the margin to the targets of one update."""

    def _running_mean(self, name: str, value: Any, first_share: float = 1.0) -> Any:
        """The mean after this value, an NDArray [1]; the first value enters with its own share."""
        before = self._means.get(name)
        if before is None:
            mean = first_share * value
        else:
            mean = _KEPT * before.as_in_context(value.context) + (1 - _KEPT) * value
        self._means = {**self._means, name: mean}
        return mean

    @override
    def export_state(self, update: int) -> State:
        means = self._means.items()
        return State({_PREFIX + name: Stored(REPLICATED, mean.asnumpy()) for name, mean in means})

    @override
    def load_state(self, saved: Saved) -> None:
        self._means = {
            name[len(_PREFIX) :]: mx.nd.array(saved.replicated(name, (1,)))
            for name in saved.names()
            if name.startswith(_PREFIX)
        }


@dataclass
class CombinedMargin(Margin):
    """The margin cos(m1·θ + m2) − m3 on the angle θ between an embedding and its class center."""

    m1: float = 1.0
    m2: float = 0.0
    m3: float = 0.0

    @override
    def __call__(self, targets: Targets) -> Margined:
        return Margined(*self.apply(targets.cosines_B))

    def apply(self, cosines_B: Any) -> tuple[Any, Any]:
        """Apply the margin to cosines, NDArray [B]; returns changed cosines and their slopes."""
        if self.m1 == 1.0 and self.m2 == 0.0:
            return cosines_B - self.m3, mx.nd.ones_like(cosines_B)
        theta_B = _angle(cosines_B)
        angle_B = self.m1 * theta_B + self.m2
        slopes_B = self.m1 * mx.nd.sin(angle_B) / mx.nd.sin(theta_B)
        return mx.nd.cos(angle_B) - self.m3, slopes_B


class AdaFace(Margin):
    """Margins that depend on the quality of an image (Kim et al., "AdaFace", CVPR 2022).

    The norm of a feature stands for the quality. With ẑ the norm's distance from the running mean
    in units of the running standard deviation over h, kept within ±1, the target becomes
    cos(θ − m·ẑ) − (m·ẑ + m): good images get a margin that emphasizes hard samples, bad ones a
    margin that does not. No gradient flows through ẑ. The statistics are those of the global
    batch, so every rank has the same; they start with those of the first batch.
    """

    # The margin and the concentration of the paper.
    _M, _H = 0.4, 0.33
    # Of the authors' program: a deviation of 0 has to give a distance.
    _EPSILON = 1e-3

    @override
    def __call__(self, targets: Targets) -> Margined:
        norms_B = targets.all_norms()
        mean = mx.nd.mean(norms_B)
        deviation = mx.nd.sqrt(mx.nd.mean(mx.nd.square(norms_B - mean)))
        mean = self._running_mean("norm_mean", mean)
        deviation = self._running_mean("norm_deviation", deviation)
        distance_B = (norms_B - mean) / (deviation + self._EPSILON)
        margin_B = self._M * mx.nd.clip(self._H * distance_B, -1.0, 1.0)
        theta_B = _angle(targets.cosines_B)
        # Where the margin would leave [0, π] the angle stays at its end, and the slope is 0.
        angle_B = mx.nd.clip(theta_B - margin_B, 0.0, math.pi)
        slopes_B = mx.nd.sin(angle_B) / mx.nd.sin(theta_B)
        return Margined(mx.nd.cos(angle_B) - margin_B - self._M, slopes_B)


class CurricularFace(Margin):
    """ArcFace, and hard negatives that count more as training goes on.

    Huang et al., "CurricularFace", CVPR 2020: a negative's cosine c above the target's cosine with
    its margin becomes c · (t + c), with t the running mean of the cosines of the targets, 0 at the
    start. No gradient flows through t. A run in which t is small discounts hard negatives; as the
    targets come closer to their centers they count more.
    """

    _ARC = CombinedMargin(m2=0.5)

    @override
    def __call__(self, targets: Targets) -> Margined:
        # All ranks need all thresholds: the negatives of a sample are everywhere.
        cosines_B = targets.all_cosines()
        mean = mx.nd.mean(cosines_B)
        hardness = self._running_mean("hardness", mean, first_share=1 - _KEPT)
        margined_B, slopes_B = self._ARC.apply(cosines_B)
        return Margined(margined_B, slopes_B, Curriculum(margined_B, hardness))


class MagFace(Margin):
    """ArcFace with a margin that grows with the norm of the feature, and a penalty on the norm.

    Meng et al., "MagFace", CVPR 2021, section 3.2: the margin m(a) on the angle rises linearly from
    0.45 at a norm a of 10 to 0.8 at 110 and is constant outside; the penalty is
    35 · (a / 110² + 1 / a), smallest at 110. Gradients flow through both, so that good images get
    long features. The authors' program clips the norm of the penalty, too; here the penalty draws
    norms back into the range. The constants are the paper's, for a scale of 64, and no options.
    """

    _NORMS = 10.0, 110.0
    _MARGINS = 0.45, 0.8
    _PENALTY = 35.0

    @override
    def __call__(self, targets: Targets) -> Margined:
        norms_B = targets.all_norms()
        (shortest, longest), (least, most) = self._NORMS, self._MARGINS
        growth = (most - least) / (longest - shortest)
        clipped_B = mx.nd.clip(norms_B, shortest, longest)
        theta_B = _angle(targets.cosines_B)
        angle_B = theta_B + least + growth * (clipped_B - shortest)
        sines_B = mx.nd.sin(angle_B)
        terms = NormTerms(
            -growth * sines_B * (clipped_B == norms_B),
            self._PENALTY * (norms_B / longest**2 + 1.0 / norms_B),
            self._PENALTY * (1.0 / longest**2 - 1.0 / mx.nd.square(norms_B)),
        )
        return Margined(mx.nd.cos(angle_B), sines_B / mx.nd.sin(theta_B), norm_terms=terms)


def build(options: HeadOptions) -> Margin:
    """The margin of ``--loss`` or ``--margins``."""
    if options.applied_margins is not None:
        return CombinedMargin(*options.applied_margins)
    margin: Margin = globals()[LOSSES[options.loss].margin]()
    return margin


def _angle(cosines_B: Any) -> Any:
    return mx.nd.arccos(mx.nd.clip(cosines_B, -_COSINE_LIMIT, _COSINE_LIMIT))
