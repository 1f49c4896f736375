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
from runtime.errors import one_line

PAIRS_ON_A_SHEET = 40
_INCHES, _DPI = (8, 6), 110
_PEOPLE = {"same": "one person", "different": "two people"}


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
    for name, (far, tar) in curves.items():
        # A label that begins with an underscore is left out, and text between dollars a formula.
        label = " " + one_line(name).replace("$", r"\$")
        axes.plot(far, tar, label=label, **line)
    axes.grid(alpha=0.4)
    axes.legend(loc="lower right")
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
    target = io.BytesIO()
    figure.savefig(target, format="png")
    return target.getvalue()


def write_bad_cases(folder: Path, target: VerificationSet, pairs: Pairs) -> str:
    """Write the wrongly judged pairs of a verification set; return a line about them.

    ``NAME-wrong.tsv`` lists all of them, the farthest from its fold's threshold first.
    ``NAME-same.png`` and ``NAME-different.png`` show the first ``PAIRS_ON_A_SHEET`` of each kind; a
    picture of an earlier call of which there is no pair now is removed.

    Raises:
        DataError: a file cannot be written.
    """
    same, distances = pairs.same, pairs.distances
    thresholds = accuracies_of_folds(pairs)[1][pairs.fold]
    wrong = np.flatnonzero((distances < thresholds) != same)
    wrong = wrong[np.argsort(-np.abs(distances - thresholds)[wrong], kind="stable")]
    lines = ["pair\tfold\tperson\tdistance\tthreshold\n"]
    for pair in wrong:
        kind = "same" if same[pair] else "different"
        numbers = f"{distances[pair]:.4f}\t{thresholds[pair]:.2f}"
        lines.append(f"{pair}\t{pairs.fold[pair]}\t{kind}\t{numbers}\n")
    listing = folder / f"{target.name}-wrong.tsv"
    write_output(listing, "".join(lines).encode(), "--bad-cases")
    for kind, people in _PEOPLE.items():
        chosen = wrong[same[wrong] == (kind == "same")].tolist()
        sheet = folder / f"{target.name}-{kind}.png"
        said = f"{len(chosen):,} pairs of {people} are judged wrongly; pair: distance, threshold"
        if chosen:
            notes = {one: f"{one}: {distances[one]:.3f}, {thresholds[one]:.2f}" for one in chosen}
            _write_sheet(sheet, target, notes, said, "--bad-cases")
        else:
            sheet.unlink(missing_ok=True)
    return f"{listing}: {len(wrong):,} of {len(same):,} pairs are judged wrongly"


def write_hardest(folder: Path, target: VerificationSet, pairs: Pairs) -> None:
    """Write a sheet of the hardest pairs of each kind.

    ``NAME-hardest-same.png`` and ``NAME-hardest-different.png``: the least similar pairs of one
    person and the most similar ones of two people, the hardest first, with their cosines.

    Raises:
        DataError: a file cannot be written.
    """
    for kind, people in _PEOPLE.items():
        order = np.argsort(pairs.cosines if kind == "same" else -pairs.cosines, kind="stable")
        chosen = order[pairs.same[order] == (kind == "same")].tolist()
        notes = {pair: f"pair {pair}: cosine {pairs.cosines[pair]:.3f}" for pair in chosen}
        sheet = folder / f"{target.name}-hardest-{kind}.png"
        _write_sheet(sheet, target, notes, f"the hardest pairs of {people}", "--hardest")


def _write_sheet(
    path: Path, target: VerificationSet, notes: Mapping[int, str], said: str, option: str
) -> None:
    """Write a sheet of the first pairs that have notes."""
    chosen, texts = list(notes)[:PAIRS_ON_A_SHEET], list(notes.values())
    write_output(path, draw_chosen_pairs(target, chosen, texts, f"{target.name}: {said}"), option)
