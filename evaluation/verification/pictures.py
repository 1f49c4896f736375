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
from evaluation.verification.curves import Answers, Curve, Pairs, Scores, area_under
from runtime.process.terminal import one_line

_INCHES, _DPI = (8, 6), 110
# Of the axis of the TAR: the least that it spans, and a share of what it spans around the curves.
_LEAST_HEIGHT, _MARGIN = 0.01, 0.05
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
    axes = figure.add_subplot(
        title="receiver operating characteristic (ROC)",
        xlabel="false accept rate (FAR)",
        ylabel="true accept rate (TAR)",
    )
    lowest = 1.0
    for curve in curves.values():
        far, tar = steps_of(curve)
        axes.plot(far, tar, label="its text comes below", drawstyle="steps-post")
        lowest = min(lowest, float(tar[0]))
    axes.set_xscale("log")
    axes.set_xlim(right=1)
    # No space for shares above 1, which matplotlib would leave for a curve that lies on it.
    height = max(1 - lowest, _LEAST_HEIGHT)
    axes.set_ylim(1 - (1 + _MARGIN) * height, 1 + _MARGIN * height)
    axes.grid(which="major", alpha=0.4)
    texts = axes.legend(loc="lower right").get_texts()
    for text, (name, curve) in zip(texts, curves.items()):
        # Here, because a label that begins with an underscore is left out.
        size = f"{curve.different:,} pairs of two people"
        text.set_text(f"{one_line(name)}: AUC {area_under(curve):.5f}, {size}")
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
    folder: Path, name: str, pairs: Pairs, threshold: float, draw: DrawPairs
) -> list[str]:
    """Write a sheet of the hardest pairs of each kind; return a line about each.

    ``NAME-hardest-same.png`` and ``NAME-hardest-different.png``, with the cosine below each pair.

    Args:
        folder: is made if it does not exist.
        name: of the set.
        pairs: of the set.
        threshold: the cosine that the title names for comparison, that of the accuracy.
        draw: makes a sheet.

    Raises:
        DataError: a file cannot be written.
    """
    lines = []
    kinds = (("same", "least", "one person"), ("different", "most", "two people"))
    found = hardest_pairs(pairs.cosines, pairs.same)
    for (kind, extreme, people), chosen in zip(kinds, found):
        sheet = folder / f"{name}-hardest-{kind}.png"
        said = f"the {len(chosen):,} {extreme} similar pairs of {people}"
        notes = [f"pair {pair}: cosine {pairs.cosines[pair]:.3f}" for pair in chosen]
        title = f"{name}: {said}; threshold of the accuracy: {threshold:.3f}"
        content = draw(chosen.tolist(), notes, title)
        write_output(sheet, content, "--hardest")
        lines.append(f"{sheet}: {said}")
    return lines
