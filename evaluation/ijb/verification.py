"""The 1:1 protocol: true accept rates at given false accept rates.

IJB-C has 15,658,489 pairs, so cosines are computed in blocks. The curve is scikit-learn's, and a
rate is taken at the curve's point whose false accept rate is nearest, as in InsightFace's
evaluation: so numbers can be compared with those that are published.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import auc, roc_curve

from evaluation.ijb.lists import Pairs

FALSE_ACCEPT_RATES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
# Both sides of a block stay in a processor's cache.
_BLOCK = 512


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
    """

    pairs: int
    same: int
    rates: list[AcceptRate]
    area: float


def cosines_of_pairs(
    features: NDArray[np.float64], pairs: Pairs, block: int = _BLOCK
) -> NDArray[np.float64]:
    """Return the cosine of each pair, float64 [P].

    Args:
        features: of the templates [T, D], of length 1.
        pairs: of templates.
        block: pairs that are computed at once.
    """
    cosines = np.empty(len(pairs.same))
    for start in range(0, len(cosines), block):
        one = slice(start, start + block)
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
    false_rates, true_rates, thresholds = roc_curve(same, cosines)
    rates = []
    for wanted in FALSE_ACCEPT_RATES:
        # From the end, where the larger rates are.
        nearest = len(false_rates) - 1 - int(np.abs(false_rates[::-1] - wanted).argmin())
        values = (float(curve[nearest]) for curve in (false_rates, true_rates, thresholds))
        rates.append(AcceptRate(wanted, *values))
    return Verification(len(same), int(same.sum()), rates, float(auc(false_rates, true_rates)))
