"""The 1:1 protocol: true accept rates at given false accept rates.

IJB-C has 15,658,489 pairs, so cosines are computed in blocks. The curve is scikit-learn's, and a
rate is taken at the curve's point whose false accept rate is nearest, as in InsightFace's
evaluation: so numbers can be compared with those that are published. Its program also leaves the
cosines and the curve as two files, which are written here under the same names.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import auc, roc_curve

from evaluation.ijb.lists import Pairs
from runtime.errors import DataError
from runtime.files import StagedFiles

FALSE_ACCEPT_RATES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
# Both sides of a block stay in a processor's cache.
_BLOCK = 512
# A chart has fewer pixels in a row.
_POINTS = 2000
_LEAST_SHOWN = 0.3


class AcceptRate(NamedTuple):
    """A point of the curve.

    Attributes:
        wanted: the false accept rate that was asked for.
        false_accept_rate: the share of pairs of two people that is accepted.
        true_accept_rate: the share of pairs of one person that is accepted.
        threshold: the smallest cosine that is accepted; infinite if none is.
    """

    wanted: float
    false_accept_rate: float
    true_accept_rate: float
    threshold: float


class Verification(NamedTuple):
    """The result of the 1:1 protocol.

    Attributes:
        pairs: their number.
        same: that of the pairs of one person.
        rates: at ``FALSE_ACCEPT_RATES``.
        area: under the curve.
        curve: false and true accept rates, [2, points].
    """

    pairs: int
    same: int
    rates: list[AcceptRate]
    area: float
    curve: NDArray[np.float64]


def cosines_of_pairs(features: NDArray[np.float64], pairs: Pairs) -> NDArray[np.float64]:
    """Return the cosine of each pair, float64 [P]; ``features`` [T, D] have the length 1."""
    cosines = np.empty(len(pairs.same))
    for start in range(0, len(cosines), _BLOCK):
        one = slice(start, start + _BLOCK)
        first, second = features[pairs.first[one]], features[pairs.second[one]]
        np.einsum("ij,ij->i", first, second, out=cosines[one])
    return cosines


def verify(cosines: NDArray[np.float64], same: NDArray[np.bool_]) -> Verification:
    """Return the true accept rates, and the area under the curve.

    Pairs of equal cosines are accepted together. Of two points that are equally near, the one with
    the larger false accept rate is taken. scikit-learn leaves out points of the curve between which
    it is straight.

    Args:
        cosines: of the pairs [P].
        same: whether they show one person [P]; there are both kinds.
    """
    curve = np.stack(roc_curve(same, cosines))
    rates = []
    for wanted in FALSE_ACCEPT_RATES:
        # From the end, where the larger rates are.
        nearest = curve.shape[1] - 1 - int(np.abs(curve[0, ::-1] - wanted).argmin())
        rates.append(AcceptRate(wanted, *curve[:, nearest].tolist()))
    area = float(auc(*curve[:2]))
    return Verification(len(same), int(same.sum()), rates, area, curve[:2])


def result_files(folder: Path, release: str, job: str) -> tuple[Path, Path]:
    """Return where InsightFace's program writes the cosines of a job, and its curve."""
    results = folder / f"{release}_result"
    return results / f"{job}.npy", results / f"{job}.pdf"


def write_results(
    paths: tuple[Path, Path], job: str, cosines: NDArray[np.float64], found: Verification
) -> None:
    """Write the cosines float64 [P] in the order of the list of pairs, and a picture of the curve.

    Raises:
        DataError: the disk is full.
    """
    cosines_path, curve_path = paths
    try:
        with StagedFiles() as files:
            np.save(files.open(cosines_path), cosines)
            _draw(files.open(curve_path), job, found)
    except OSError as error:
        raise DataError(
            f"{cosines_path} cannot be written: {error.strerror}; choose another folder with "
            "--result-dir"
        ) from None


def _draw(target: BinaryIO, job: str, found: Verification) -> None:
    # Its import takes longer than a wrong option may take to be answered.
    from matplotlib.backends.backend_pdf import FigureCanvasPdf
    from matplotlib.figure import Figure

    figure = Figure()
    FigureCanvasPdf(figure)
    axes = figure.add_subplot(
        title="ROC on IJB", xlabel="false accept rate", ylabel="true accept rate", xscale="log"
    )
    shown = np.geomspace(FALSE_ACCEPT_RATES[0], FALSE_ACCEPT_RATES[-1], _POINTS)
    axes.plot(shown, np.interp(shown, *found.curve), linewidth=1, label="its text comes below")
    axes.set(xlim=(FALSE_ACCEPT_RATES[0], FALSE_ACCEPT_RATES[-1]), ylim=(_LEAST_SHOWN, 1))
    axes.grid(linestyle="--")
    # Here, because a label that begins with an underscore is left out, and a dollar is no formula.
    text = axes.legend(loc="lower right").get_texts()[0]
    text.set_text(f"{job}: AUC {100 * found.area:.4f} %")
    text.set_parse_math(False)
    figure.savefig(target, format="pdf")
