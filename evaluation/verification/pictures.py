"""Pictures of a verification: the ROC of several sets, and the pairs that are hardest.

Who draws the pairs is an argument, because pictures are not read in this room.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evaluation.bad_cases import PAIRS_ON_A_SHEET, DrawPairs
from evaluation.output_files import write_output
from evaluation.verification.curves import Answers, Curve, Scores, area_under

_INCHES, _DPI = (8, 6), 110
# More than a picture has pixels beside one another.
_POINTS = 2000


def draw_roc(curves: Mapping[str, Curve]) -> bytes:
    """Return the ROC of sets by their names, with a logarithmic axis of the FAR, a PNG.

    A curve begins where a single pair of two people is accepted: the set says nothing of less.
    """
    # Their import takes longer than a wrong option may take to be answered. The figure is made
    # without pyplot, which looks for a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xlabel="false accept rate (FAR)", ylabel="true accept rate (TAR)")
    for name, curve in curves.items():
        far, tar = steps_of(curve)
        # The name stands last: a label that begins with an underscore would be left out.
        axes.plot(far, tar, label=f"AUC {area_under(curve):.5f}  {name}", drawstyle="steps-post")
    axes.set_xscale("log")
    axes.grid(which="major", alpha=0.4)
    for text in axes.legend(loc="lower right").get_texts():
        # A dollar in a name is no formula.
        text.set_parse_math(False)
    target = io.BytesIO()
    figure.savefig(target, format="png")
    return target.getvalue()


def steps_of(curve: Curve) -> tuple[Scores, Scores]:
    """Return rising FARs from that of one pair to 1, and the TAR at each."""
    far = np.geomspace(1 / curve.different, 1, _POINTS)
    # Both are quotients, of which one may be rounded up and the other down.
    last = np.searchsorted(curve.far, far * (1 + 1e-9), side="right") - 1
    return far, curve.tar[last]


def hardest_pairs(
    cosines: Scores, same: Answers, count: int = PAIRS_ON_A_SHEET
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the least similar pairs of one person, and the most similar ones of two people.

    The hardest come first; of equal ones, those that come first in the set.
    """
    order = np.argsort(cosines, kind="stable")
    reverse = np.argsort(-cosines, kind="stable")
    return order[same[order]][:count], reverse[~same[reverse]][:count]


def write_hardest(
    folder: Path, name: str, cosines: Scores, same: Answers, draw: DrawPairs
) -> list[str]:
    """Write a sheet of the hardest pairs of each kind; return a line about each.

    ``NAME-hardest-same.png`` and ``NAME-hardest-different.png``, with the cosine below each pair.

    Raises:
        DataError: a file cannot be written.
    """
    lines = []
    kinds = (("same", "least", "one person"), ("different", "most", "two people"))
    for (kind, extreme, people), pairs in zip(kinds, hardest_pairs(cosines, same)):
        sheet = folder / f"{name}-hardest-{kind}.png"
        said = f"the {len(pairs):,} {extreme} similar pairs of {people}"
        notes = [f"{pair}: cosine {cosines[pair]:.3f}" for pair in pairs]
        content = draw(pairs.tolist(), notes, f"{name}: {said}; pair: cosine")
        write_output(sheet, content, "--hardest")
        lines.append(f"{sheet}: {said}")
    return lines
