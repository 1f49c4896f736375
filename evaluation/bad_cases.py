"""The pairs that a verification judges wrongly, as a list and as pictures.

A pair that is far on the wrong side of the threshold is more often a wrong label, a bad crop or a
second face in the picture than a mistake of the network, which only a look at it shows. Who draws
the sheets is an argument, because pictures are not read in this room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluation.folds import FOLDS, Features, accuracies_of_folds, distances_of_pairs
from evaluation.output_files import write_output

DrawPairs = Callable[[Sequence[int], Sequence[str], str], bytes]
"""From pairs, a note for each, and a title to a sheet of them, a PNG."""

PAIRS_ON_A_SHEET = 40
_OPTION = "--bad-cases"


class Judgment(NamedTuple):
    """What was said of one pair."""

    pair: int
    fold: int
    same: bool
    """Whether it shows one person."""
    distance: float
    """Squared distance of the embeddings."""
    threshold: float
    """Of its fold; below it a pair is accepted as one person."""

    @property
    def is_right(self) -> bool:
        """Whether the pair is accepted if it shows one person, and only then."""
        return (self.distance < self.threshold) == self.same


class _Kind(NamedTuple):
    """One of the two mistakes."""

    name: str
    same: bool
    sign: str
    said: str


_KINDS = (
    _Kind("same", True, ">", "of one person are judged as two"),
    _Kind("different", False, "<", "of two people are judged as one"),
)


def judge(embeddings: Features, same: NDArray[np.bool_], folds: int = FOLDS) -> list[Judgment]:
    """Return how ``verification.verify`` judges each pair for the accuracy; arguments as there."""
    distances, fold = distances_of_pairs(embeddings, same, folds)
    thresholds = accuracies_of_folds(distances, same, fold)[1][fold]
    columns = (column.tolist() for column in (fold, same, distances, thresholds))
    return [Judgment(pair, *values) for pair, values in enumerate(zip(*columns))]


def write_bad_cases(
    folder: Path, name: str, judgments: Sequence[Judgment], draw: DrawPairs
) -> list[str]:
    """Write the wrongly judged pairs of a verification set; return a line about each file.

    ``NAME-wrong.tsv`` lists all of them, the farthest from its fold's threshold first.
    ``NAME-same.png`` and ``NAME-different.png`` show the first ``PAIRS_ON_A_SHEET`` of each kind; a
    picture of an earlier call of which there is no pair now is removed.

    Args:
        folder: is made if it does not exist.
        name: of the verification set.
        judgments: of all pairs, in their order.
        draw: makes a sheet.

    Raises:
        DataError: a file cannot be written.
    """
    wrong = [one for one in judgments if not one.is_right]
    wrong.sort(key=lambda one: -abs(one.distance - one.threshold))
    listing = folder / f"{name}-wrong.tsv"
    rows = [
        f"{one.pair}\t{one.fold}\t{'same' if one.same else 'different'}\t{one.distance:.4f}\t"
        f"{one.threshold:.2f}\n"
        for one in wrong
    ]
    header = "pair\tfold\tperson\tdistance\tthreshold\n"
    write_output(listing, "".join([header, *rows]).encode(), _OPTION)
    lines = [f"{listing}: {len(wrong):,} of {len(judgments):,} pairs are judged wrongly"]
    for kind in _KINDS:
        sheet = folder / f"{name}-{kind.name}.png"
        chosen = [one for one in wrong if one.same == kind.same]
        if not chosen:
            sheet.unlink(missing_ok=True)
            continue
        shown = chosen[:PAIRS_ON_A_SHEET]
        notes = [f"{one.pair}: {one.distance:.3f} {kind.sign} {one.threshold:.2f}" for one in shown]
        count = sum(one.same == kind.same for one in judgments)
        title = f"{name}: {len(chosen):,} of {count:,} pairs {kind.said}; pair: distance, threshold"
        write_output(sheet, draw([one.pair for one in shown], notes, title), _OPTION)
        lines.append(f"{sheet}: {len(chosen):,} {kind.said}")
    return lines
