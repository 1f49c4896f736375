"""Pictures of a verification: the ROC of several sets, and pairs that are judged wrongly or barely.

A pair that is far on the wrong side of the threshold is more often a wrong label, a bad crop or a
second face in the picture than a mistake of the network, which only a look at it shows.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from data.inspect.sheets import draw_chosen_pairs
from data.verification.bin_file import VerificationSet
from evaluation.files import write_output
from evaluation.verification.curves import Curve, Pairs, Scores, accuracies_of_folds, area_under
from runtime.process.terminal import one_line

PAIRS_ON_A_SHEET = 40
_INCHES, _DPI = (8, 6), 110
# Of the axis of the TAR: the least that it spans, and a share of what it spans around the curves.
_LEAST_HEIGHT, _MARGIN = 0.01, 0.05


def roc_figure(title: str, curves: Mapping[str, tuple[Scores, Scores]], **line: Any) -> Any:
    """Return matplotlib's figure of some ROCs, with a logarithmic axis of the FAR.

    Args:
        title: of the figure.
        curves: FARs and TARs, by the text of each curve in the legend.
        line: how curves are drawn, for matplotlib.
    """
    # Its import takes longer than a wrong option may take to be answered. The figure is made
    # without pyplot, which looks for a display.
    from matplotlib.figure import Figure

    figure = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
    labels = {"xlabel": "false accept rate (FAR)", "ylabel": "true accept rate (TAR)"}
    axes = figure.add_subplot(title=title, xscale="log", **labels)
    for far, tar in curves.values():
        axes.plot(far, tar, label="its text comes below", **line)
    axes.grid(alpha=0.4)
    for text, name in zip(axes.legend(loc="lower right").get_texts(), curves):
        # Here, because a label that begins with an underscore is left out.
        text.set_text(one_line(name))
        # A dollar in a name is no formula.
        text.set_parse_math(False)
    return figure


def draw_roc(curves: Mapping[str, Curve]) -> bytes:
    """Return the ROC of sets by their names, a PNG.

    A curve begins where a single pair of two people is accepted: the set says nothing of less.
    """
    shown = {
        f"{name}: AUC {area_under(curve):.5f}, {curve.different:,} pairs of two people": (
            curve.far,
            curve.tar,
        )
        for name, curve in curves.items()
    }
    title = "receiver operating characteristic (ROC)"
    figure = roc_figure(title, shown, drawstyle="steps-post")
    figure.axes[0].set_xlim(1 / max(curve.different for curve in curves.values()), 1)
    # No space for shares above 1, which matplotlib would leave for a curve that lies on it.
    lowest = min(curve.tar[curve.far > 0][0] for curve in curves.values())
    height = max(1 - lowest, _LEAST_HEIGHT)
    figure.axes[0].set_ylim(1 - (1 + _MARGIN) * height, 1 + _MARGIN * height)
    target = io.BytesIO()
    figure.savefig(target, format="png")
    return target.getvalue()


def write_bad_cases(folder: Path, target: VerificationSet, pairs: Pairs) -> list[str]:
    """Write the wrongly judged pairs of a verification set; return a line about each file.

    ``NAME-wrong.tsv`` lists all of them, the farthest from its fold's threshold first.
    ``NAME-same.png`` and ``NAME-different.png`` show the first ``PAIRS_ON_A_SHEET`` of each kind; a
    picture of an earlier call of which there is no pair now is removed.

    Args:
        folder: is made if it does not exist.
        target: the set.
        pairs: of the set.

    Raises:
        DataError: a file cannot be written.
    """
    name, same, distances = target.name, pairs.same, pairs.distances
    thresholds = accuracies_of_folds(distances, same, pairs.fold)[1][pairs.fold]
    wrong = np.flatnonzero((distances < thresholds) != same)
    wrong = wrong[np.argsort(-np.abs(distances - thresholds)[wrong], kind="stable")]
    listing = folder / f"{name}-wrong.tsv"
    rows = [
        f"{pair}\t{pairs.fold[pair]}\t{'same' if same[pair] else 'different'}\t"
        f"{distances[pair]:.4f}\t{thresholds[pair]:.2f}\n"
        for pair in wrong
    ]
    header = "pair\tfold\tperson\tdistance\tthreshold\n"
    write_output(listing, "".join([header, *rows]).encode(), "--bad-cases")
    lines = [f"{listing}: {len(wrong):,} of {len(same):,} pairs are judged wrongly"]
    for kind, is_same, sign, said in (
        ("same", True, ">", "of one person are judged as two"),
        ("different", False, "<", "of two people are judged as one"),
    ):
        sheet = folder / f"{name}-{kind}.png"
        chosen = wrong[same[wrong] == is_same]
        if not len(chosen):
            sheet.unlink(missing_ok=True)
            continue
        shown = chosen[:PAIRS_ON_A_SHEET].tolist()
        notes = [f"{pair}: {distances[pair]:.3f} {sign} {thresholds[pair]:.2f}" for pair in shown]
        count = int((same == is_same).sum())
        title = f"{name}: {len(chosen):,} of {count:,} pairs {said}; pair: distance, threshold"
        write_output(sheet, draw_chosen_pairs(target, shown, notes, title), "--bad-cases")
        lines.append(f"{sheet}: {len(chosen):,} {said}")
    return lines


def write_hardest(
    folder: Path, target: VerificationSet, pairs: Pairs, threshold: float
) -> list[str]:
    """Write a sheet of the hardest pairs of each kind; return a line about each.

    ``NAME-hardest-same.png`` and ``NAME-hardest-different.png``: the least similar pairs of one
    person and the most similar ones of two people, the hardest first, with their cosines.

    Args:
        folder: is made if it does not exist.
        target: the set.
        pairs: of the set.
        threshold: the cosine that the title names for comparison, that of the accuracy.

    Raises:
        DataError: a file cannot be written.
    """
    lines = []
    for kind, extreme, people, is_same, cosines in (
        ("same", "least", "one person", True, pairs.cosines),
        ("different", "most", "two people", False, -pairs.cosines),
    ):
        order = np.argsort(cosines, kind="stable")
        chosen = order[pairs.same[order] == is_same][:PAIRS_ON_A_SHEET].tolist()
        sheet = folder / f"{target.name}-hardest-{kind}.png"
        said = f"the {len(chosen):,} {extreme} similar pairs of {people}"
        notes = [f"pair {pair}: cosine {pairs.cosines[pair]:.3f}" for pair in chosen]
        title = f"{target.name}: {said}; threshold of the accuracy: {threshold:.3f}"
        write_output(sheet, draw_chosen_pairs(target, chosen, notes, title), "--hardest")
        lines.append(f"{sheet}: {said}")
    return lines
