"""Thresholds on real faces: what nine folds of LFW promise, the tenth keeps."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from backbones.model import Backbone
from data.verification.bin_file import VerificationSet
from evaluation.features import FaceNetwork
from evaluation.verification import embed_pairs, verify
from evaluation.verification.curves import FOLDS, hold_out, pairs_of
from tests.evaluation.verification.test_verification import bools


def lfw_pairs(folder: Path, same: int, different: int) -> VerificationSet:
    """The first pairs of each of LFW's ten folds, so many of one person and of two."""
    lines = (folder / "lfw_pairs.txt").read_text().splitlines()[1:]
    names = []
    for start in range(0, 600 * FOLDS, 600):
        for line in [*lines[start:][:same], *lines[start + 300 :][:different]]:
            # NAME 1 4, or NAME 1 OTHER 4.
            first, number, *other, last = line.split()
            sides = (first, number), ([*other, first][0], last)
            names += [f"{person}_{int(image):04d}.jpg" for person, image in sides]
    wanted = set(names)
    with tarfile.open(folder / "lfw_112x112.tar.gz") as archive:
        found = {
            Path(member.name).name: archive.extractfile(member).read()
            for member in archive
            if Path(member.name).name in wanted
        }
    answers = bools(("S" * same + "D" * different) * FOLDS)
    return VerificationSet(Path("lfw.bin"), [found[name] for name in names], answers)


LONG = [pytest.mark.models, pytest.mark.timeout(1800)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("same", "different", "fars"),
    [(6, 60, (0.1, 0.02)), pytest.param(300, 300, (0.1, 0.01, 0.001), marks=LONG)],
)
def test_a_threshold_keeps_its_rate(toolkit_data, same, different, fars) -> None:
    """And a published checkpoint its accuracy, without which channels or the scale are wrong."""
    target = lfw_pairs(toolkit_data, same, different)
    backbone = Backbone.load(toolkit_data / "mobilefacenet_y1" / "model")
    embeddings, _ = embed_pairs(FaceNetwork(backbone.inference(), flip=False), target)
    pairs = pairs_of(embeddings, target.same)
    assert verify(pairs, xnorm=1.0).accuracy >= 0.97
    for far in fars:
        found = hold_out(pairs, far)
        assert found is not None
        held_out = found["held_out_far"]
        assert held_out["pairs"] == FOLDS * different
        assert held_out["low"] <= far <= held_out["high"], (far, held_out)
        accepted = pairs.cosines >= np.array(found["fold_thresholds_cosine"])[pairs.fold]
        counts = np.bincount(pairs.fold[accepted & ~pairs.same], minlength=FOLDS)
        assert counts.sum() == held_out["accepted"]
        # Of ten folds, each is within such an interval in 98 of 100 cases.
        low, high = binom.interval(0.998, different, far)
        assert np.all((low <= counts) & (counts <= high)), (far, counts)
        assert found["held_out_tar"] > 0.9, (far, found["held_out_tar"])
