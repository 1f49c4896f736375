"""The options of the softmax over the class centers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

from runtime.errors import ConfigError
from runtime.options import POSITIVE, Options, Range, name, number, with_bare

Margins = tuple[float, float, float]


class Loss(NamedTuple):
    """A loss by its margin."""

    margin: str
    """The class in ``partial_fc.margin``."""
    margins: Optional[Margins] = None
    """The m1, m2 and m3 of a combined margin; None where the margin adapts them."""


# Sources: ``partial_fc.margin``. CosFace's 0.35 is the paper's and InsightFace's first value; the
# latter's Partial FC and arcface_torch use 0.4, and so do the presets that have their names.
LOSSES: Mapping[str, Loss] = {
    "arcface": Loss("CombinedMargin", (1.0, 0.5, 0.0)),
    "cosface": Loss("CombinedMargin", (1.0, 0.0, 0.35)),
    "softmax": Loss("CombinedMargin", (1.0, 0.0, 0.0)),
    "adaface": Loss("AdaFace"),
    "curricularface": Loss("CurricularFace"),
    "magface": Loss("MagFace"),
}
CLASS_MEANS = "<class means>"
"""``--pretrained-centers`` without a folder; no folder has such a name."""
COMBINED = "combined"
"""The name of the loss of ``--margins`` in checkpoints and config.json."""


def _share(meaning: str) -> Range:
    return Range(lambda value: 0 < value <= 1, f"must be above 0 and at most 1; {meaning}")


@dataclass(frozen=True)
class HeadOptions(Options):
    """Softmax: margin, class centers, sampling."""

    loss: str = name("cosface", LOSSES)
    """Margin of the targets: {names}. cosface is 0.35, and 0.4 in InsightFace's presets; 0.4 with
    other data is --margins 1,0,0.4."""

    margins: Optional[Margins] = None
    """The three numbers of cos(m1 * angle + m2) - m3, as in 1,0.3,0.2; overrides --loss."""

    scale: float = number(64.0, POSITIVE)
    """Factor on the cosines before the softmax."""

    filter_threshold: float = number(1.0, _share("1 turns the filter off"))
    """Leave out negatives more similar than this cosine, above 0 to 1 (off): wrong labels."""

    sample_ratio: float = number(1.0, _share("1 uses all class centers, 0.1 a tenth of them"))
    """Share of the class centers that take part in an update, above 0 to 1; positives always do."""

    center_lr: Optional[float] = number(None, POSITIVE)
    """Learning rate of the class centers after warm-up; that of --lr unless given."""

    head_dtype: str = name("float32", ("float32", "bfloat16"))
    """Number format of the head's products: float32, or bfloat16 (CPUs with AVX512_BF16 or AMX
    only)."""

    pretrained_centers: Optional[str] = with_bare(None, bare=CLASS_MEANS)
    """Start the class centers from the N_centers.param files of an InsightFace run in this folder,
    or without one from the classes' means of the embeddings of --pretrained."""

    center_store: Optional[str] = None
    """Keep the class centers and their optimizer's states in this folder, on a fast disk of this
    host, instead of in memory, which then holds the sampled rows alone; CPUs only."""

    center_memory: float = number(4.0, POSITIVE)
    """GiB of the --center-store that a rank leaves in the system's cache of files."""

    @property
    def starts_from_means(self) -> bool:
        """Whether the centers start from the means of embeddings."""
        return self.pretrained_centers == CLASS_MEANS

    @property
    def applied_margins(self) -> Optional[Margins]:
        """The margins ``(m1, m2, m3)`` that the head applies; None where the loss adapts them."""
        return LOSSES[self.loss].margins if self.margins is None else self.margins

    @property
    def identity(self) -> str:
        """The name of the loss in checkpoints: ``COMBINED`` with ``--margins``."""
        return self.loss if self.margins is None else COMBINED

    def check(self) -> None:
        """Refuse margins out of range, as those that push some targets away from their centers."""
        if self.applied_margins is None:
            return
        m1, m2, m3 = self.applied_margins
        # cos(m1 t + m2) falls with the angle t up to pi, and rises after it: the gradient would
        # push a target that is 90 degrees from its center away from it.
        falls = m1 * (math.pi / 2) + m2 <= math.pi
        if m1 < 1 or not 0 <= m2 < math.pi / 2 or not 0 <= m3 < 1 or not falls:
            raise ConfigError(
                f"--margins {m1:g},{m2:g},{m3:g} is out of range: m1 at least 1, m2 from 0 to "
                "below pi/2, m1 * pi/2 + m2 at most pi, m3 from 0 to below 1; ArcFace is 1,0.5,0"
            )


def check_given(given: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` if the command line, by field, gives margins to an adaptive loss."""
    loss = LOSSES.get(given.get("loss", ""))
    if "margins" in given and loss is not None and loss.margins is None:
        raise ConfigError(
            f"--margins mean nothing to --loss {given['loss']}, which adapts its own; leave one out"
        )
