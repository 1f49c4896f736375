"""The copies of a network on the ranks: one set of running statistics, and one file."""

from __future__ import annotations

from pathlib import Path
from typing import Union

import numpy as np
import pytest

from backbones.classifiers import Normalization
from backbones.classifiers.classifier import Classifier
from backbones.model import Backbone
from backbones.options import BackboneOptions, ClassifierOptions
from parallel.world import LoneWorld
from runtime.errors import DataError
from runtime.mxnet import mx
from tests.support.thread_world import ThreadWorld, run_ranks
from training.model_saver import BEST, ModelSaver, average_statistics
from training.verifier import Verifier

RANKS = 3


def make_backbone(rank: int) -> Backbone:
    """Weights are the same on every rank; statistics are those of a rank's own images."""
    backbone = Backbone.create(
        BackboneOptions(network="tiny", embedding_size=8), image_size=(32, 32), seed=1
    )
    for number, array in enumerate(backbone.statistics):
        array[:] = number + 10.0 * rank**2
    return backbone


def assert_average(backbone: Backbone) -> None:
    assert len(backbone.statistics) > 1
    for number, array in enumerate(backbone.statistics):
        # (0 + 1 + 4) / 3 of what the ranks differ by.
        assert array.asnumpy() == pytest.approx(number + 50 / 3), number


def test_every_rank_has_and_saves_the_mean_of_all_statistics(tmp_path: Path) -> None:
    """The first saves; the others write nothing."""

    def rank_main(world: ThreadWorld) -> dict[str, np.ndarray]:
        folder = tmp_path / str(world.rank)
        folder.mkdir()
        averaged, verified, saved = (make_backbone(world.rank) for _ in range(3))
        average_statistics(averaged, world)
        Verifier(verified, [], world, None, batch_size=2, image_size=(32, 32)).verify(5)
        ModelSaver(saved, world, folder).save(5)
        for backbone in (averaged, verified, saved):
            assert_average(backbone)
        return tensors(saved)

    expected = run_ranks(RANKS, rank_main)[0]
    saved = mx.nd.load(str(tmp_path / "0" / "model-0000.params"))
    assert {name.partition(":")[2] for name in saved} == expected.keys()
    for name, array in saved.items():
        np.testing.assert_array_equal(array.asnumpy(), expected[name.partition(":")[2]])
    assert list((tmp_path / "1").iterdir()) == list((tmp_path / "2").iterdir()) == []


def classifier_of(seed: int) -> Classifier:
    normalization = Normalization((0.5,) * 3, (0.5,) * 3)
    options = ClassifierOptions(model="LeNet")
    return Classifier.create(
        options, classes=3, image_shape=(3, 32, 32), normalization=normalization, seed=seed
    )


def tensors(network: Union[Backbone, Classifier]) -> dict[str, np.ndarray]:
    return {name: value.data().asnumpy() for name, value in network.parameters.items()}


def test_every_rank_gets_the_best_network_of_rank_0(tmp_path: Path, caplog) -> None:
    """Only the first has the file."""
    best = classifier_of(9)
    (tmp_path / "0").mkdir()
    best.export(tmp_path / "0" / BEST)
    expected = tensors(best)

    def rank_main(world: ThreadWorld) -> dict[str, np.ndarray]:
        classifier = classifier_of(1)
        ModelSaver(classifier, world, tmp_path / str(world.rank), BEST).load()
        return tensors(classifier)

    for found in run_ranks(RANKS, rank_main):
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)
    (tmp_path / "0" / f"{BEST}-0000.params").unlink()
    before = tensors(classifier_of(1))
    for found in run_ranks(RANKS, rank_main):
        assert all((found[name] == before[name]).all() for name in before)
    assert "is gone: going on from the last network instead" in caplog.text
    make_backbone(0).export(tmp_path / BEST)
    with pytest.raises(DataError, match="model-best-0000.params is of another network") as caught:
        ModelSaver(classifier_of(1), LoneWorld(), tmp_path, BEST).load()
    assert "\n" not in str(caught.value)
