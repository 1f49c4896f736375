"""Verification accuracy on pairs of images: do both show the same person?

This number says whether training works, so it has to mean the same here as in publications: flip
test, squared Euclidean distance of L2-normalized embeddings, and ten folds in file order, each
judged with the threshold that is best on the nine others (the protocol of LFW, Huang et al. 2007,
in the form of InsightFace). Network and images are arguments. The ranks of a run share the pairs,
so that none waits while another embeds them.

Here is what training needs. The modules beside this one are for the command
``python -m evaluation.verification``, which says more about a network that is trained.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
from numpy.typing import NDArray

from evaluation.features import FaceNetwork, Features, Images, batches, normalized
from evaluation.verification.curves import (
    FOLDS,
    Pairs,
    accuracies_of_folds,
    pairs_of,
    true_accept_rate,
)
from runtime.errors import DataError

if TYPE_CHECKING:
    from data.verification.bin_file import VerificationSet


@dataclass(frozen=True)
class VerificationResult:
    """Accuracy and acceptance rates of one verification."""

    accuracy: float
    """Mean over the folds of the share of pairs that are judged correctly."""
    accuracy_std: float
    """Standard deviation of that share over the folds."""
    threshold: float
    """Mean of the folds' thresholds on the squared distance."""
    tar_at_far: dict[float, float]
    """True accept rate by false accept rate: shares of accepted same-person and other pairs."""
    xnorm: float
    """Mean norm of the features before normalization; it shows when a network diverges."""
    scores: Optional[NDArray[np.float64]] = field(default=None, repr=False, compare=False)
    """Of each pair the cosine of its embeddings, and 1 if it shows one person, else 0: [P, 2]."""

    def numbers(self) -> dict[str, float]:
        """Return the numbers that ``metrics.jsonl`` and ``--json`` have under the same names."""
        return {"accuracy": self.accuracy, "accuracy_std": self.accuracy_std, "xnorm": self.xnorm}

    def __str__(self) -> str:
        rates = "".join(f", TAR {tar:.4f} @ FAR {far:g}" for far, tar in self.tar_at_far.items())
        return (
            f"accuracy {self.accuracy:.4f} ± {self.accuracy_std:.4f}{rates}, "
            f"threshold {self.threshold:.3f}, XNorm {self.xnorm:.2f}"
        )


def evaluate(
    network: FaceNetwork, target: VerificationSet, world: Any = None
) -> VerificationResult:
    """Return how well a network verifies the pairs of ``target``; see ``embed_pairs``.

    Raises:
        DataError: the set has fewer pairs than folds, or pairs of one kind only.
    """
    check_pairs(target)
    embeddings, xnorm = embed_pairs(network, target, world)
    return verify(pairs_of(embeddings, target.same), xnorm=xnorm)


def check_pairs(target: VerificationSet, folds: int = FOLDS) -> None:
    """Check that ten folds, or so many, can judge the pairs of a set.

    Raises:
        DataError: the set has fewer pairs than folds, or pairs of one kind only.
    """
    pairs = len(target.same)
    if pairs < folds or target.same.all() or not target.same.any():
        raise DataError(
            f"verification set {target.name!r} has {pairs} pairs, {np.sum(target.same)} of one "
            f"person; {folds} folds need at least {folds} pairs, and both kinds of them"
        )


def embed_pairs(
    network: FaceNetwork, target: VerificationSet, world: Any = None
) -> tuple[Features, float]:
    """Return the embeddings [2 P, D] of all pairs and their mean norm; the same on every rank.

    An image that is in several pairs is embedded once. Each rank of ``world``, or this process
    alone, embeds its part of the images; one allgather brings the embeddings together.
    """
    # Here, because reports are made on machines without OpenCV.
    from data.worker_threads import map_in_order

    distinct, places = np.unique(target.firsts, return_inverse=True)
    rank, size = (world.rank, world.size) if world else (0, 1)
    own = distinct[len(distinct) * rank // size : len(distinct) * (rank + 1) // size].tolist()

    def read(number: int) -> Images:
        return target.pixels(number, network.image_size)

    with map_in_order(read, own, workers=1) as images:
        # Only the network knows D, so a rank without images embeds none in one batch.
        none = [np.zeros((0, 3, *network.image_size), np.uint8)]
        of_rank = batches(images, network.batch_size) if own else none
        found = [network.sums(batch) for batch in of_rank]
    rows = np.concatenate([np.column_stack([normalized(sums), norms]) for sums, norms in found])
    if size > 1:
        rows = np.concatenate(world.gather_objects(rows, f"verification.{target.name}"))
    return rows[:, :-1][places], float(rows[:, -1][places].mean())


def verify(pairs: Pairs, *, xnorm: float) -> VerificationResult:
    """Return accuracy and acceptance rates of embedded pairs.

    Each fold is judged with a threshold chosen on all others: for accuracy the smallest of those
    with the most correct judgments, for TAR@FAR the one at which the others' false accept rate,
    interpolated linearly, is the wanted one.

    Args:
        pairs: of both kinds; a single fold chooses its own thresholds.
        xnorm: mean norm before normalization, for the result.
    """
    accuracies, thresholds = accuracies_of_folds(pairs)
    # Of fewer than 10,000 pairs of different people, 1e-4 is less than one pair.
    rates = (1e-3, 1e-4) if np.sum(~pairs.same) >= 10_000 else (1e-3,)
    return VerificationResult(
        accuracy=float(accuracies.mean()),
        accuracy_std=float(accuracies.std()),
        threshold=float(thresholds.mean()),
        tar_at_far={far: true_accept_rate(pairs, far) for far in rates},
        xnorm=xnorm,
        # The squared distance of two unit vectors is 2 - 2 cos.
        scores=np.stack([1 - pairs.distances / 2, pairs.same], axis=1),
    )
