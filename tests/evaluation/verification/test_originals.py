"""The accuracies of InsightFace's ``verification.py`` and ``lfw.py``, and their command lines.

The constants are what the programs give for ``synthetic()``; with their sources in the folder
``TOOLKIT_ORIGINALS`` they run here.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.model_selection import KFold

from evaluation.features import normalized
from evaluation.folds import distances_of_pairs
from evaluation.verification import verify

EVALUATION = Path("deepinsight+insightface/recognition/partial_fc/mxnet/evaluation")
ACCURACIES = {
    10: (0.919178, 0.025616),
    7: (0.919206, 0.018360),
    2: (0.912259, 0.004076),
    1: (0.919242, 0.0),
}
"""Mean and deviation by the number of folds."""


def synthetic() -> tuple[np.ndarray, np.ndarray]:
    """Embeddings [2 P, D] and answers [P] of pairs that no fold has equally many of."""
    rng = np.random.default_rng(7)
    same = rng.random(1003) < 0.4
    first = rng.normal(0, 1, (1003, 16))
    noise, other = rng.normal(0, 1.3, first.shape), rng.normal(size=first.shape)
    second = np.where(same[:, None], first + noise, other)
    rows = np.stack([first, second], axis=1).reshape(-1, 16)
    return normalized(rows.astype(np.float32)), same


def ours(folds: int) -> tuple[float, float]:
    embeddings, same = synthetic()
    result = verify(embeddings, same, xnorm=1.0, folds=folds)
    return result.accuracy, result.accuracy_std


@pytest.mark.parametrize("folds", ACCURACIES)
def test_accuracies_are_those_of_the_programs(folds: int) -> None:
    assert ours(folds) == pytest.approx(ACCURACIES[folds], abs=1e-6)


def theirs(program: str, folds: int) -> tuple[float, float]:
    tree = ast.parse((Path(os.environ["TOOLKIT_ORIGINALS"]) / EVALUATION / program).read_text())
    names = ("LFold", "calculate_roc", "calculate_accuracy")
    chosen: list[Any] = [node for node in tree.body if getattr(node, "name", None) in names]
    found: dict[str, Any] = {"np": np, "KFold": KFold}
    exec(compile(ast.Module(chosen, []), program, "exec"), found)
    embeddings, same = synthetic()
    first, second = embeddings[0::2].astype(np.float64), embeddings[1::2].astype(np.float64)
    thresholds = np.arange(0, 4, 0.01)
    accuracies = found["calculate_roc"](thresholds, first, second, same, nrof_folds=folds)[2]
    return float(np.mean(accuracies)), float(np.std(accuracies))


@pytest.mark.skipif("TOOLKIT_ORIGINALS" not in os.environ, reason="their sources")
@pytest.mark.parametrize("folds", ACCURACIES)
@pytest.mark.parametrize("program", ["verification.py", "lfw.py"])
def test_the_programs_give_these_accuracies(program: str, folds: int) -> None:
    if program == "lfw.py" and folds == 1:
        pytest.skip("it has no single fold")
    found = theirs(program, folds)
    assert found == pytest.approx(ACCURACIES[folds], abs=1e-6)
    assert found == pytest.approx(ours(folds), abs=1e-12)


def test_a_single_fold_chooses_its_own_rate() -> None:
    """As many pairs of two people as the rate allows are accepted, of all of them."""
    embeddings, same = synthetic()
    result = verify(embeddings, same, xnorm=1.0, folds=1)
    distances, _ = distances_of_pairs(embeddings, same, 1)
    others = np.sort(distances[~same])
    threshold = others[int(1e-3 * len(others))]
    assert result.tar_at_far[1e-3] == pytest.approx((distances[same] < threshold).mean(), abs=0.01)
