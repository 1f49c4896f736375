"""The copies of a network on the ranks: one set of running statistics, and one file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Union

import numpy as np
import pytest

from backbones.classifiers import Normalization
from backbones.classifiers.classifier import Classifier
from backbones.model import Backbone
from backbones.options import BackboneOptions, ClassifierOptions
from data.batches.loader import Batch
from data.batches.position import EpochPlan
from parallel.world import LoneWorld
from runtime.errors import DataError
from runtime.mxnet import mx
from tests.support.thread_world import ThreadWorld, run_ranks
from training.model_saver import BEST, ModelSaver, average_statistics
from training.update.epoch_counts import EpochCounts
from training.validator import Validator
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


def test_every_rank_gets_and_verifies_the_mean_of_all_statistics() -> None:
    def rank_main(world: ThreadWorld) -> list[Backbone]:
        averaged, verified = make_backbone(world.rank), make_backbone(world.rank)
        average_statistics(averaged, world)
        Verifier(verified, [], world, None, batch_size=2, image_size=(32, 32)).verify(5)
        return [averaged, verified]

    for backbones in run_ranks(RANKS, rank_main):
        for backbone in backbones:
            assert_average(backbone)


def test_the_saved_network_has_the_statistics_of_all_ranks(tmp_path: Path) -> None:
    """And rank 0's weights; the others write nothing."""

    def rank_main(world: ThreadWorld) -> dict[str, np.ndarray]:
        backbone = make_backbone(world.rank)
        folder = tmp_path / str(world.rank)
        folder.mkdir()
        ModelSaver(backbone, world, folder).save(5)
        assert_average(backbone)
        return tensors(backbone)

    expected = run_ranks(RANKS, rank_main)[0]
    saved = mx.nd.load(str(tmp_path / "0" / "model-0000.params"))
    assert {name.partition(":")[2] for name in saved} == expected.keys()
    for name, array in saved.items():
        np.testing.assert_array_equal(array.asnumpy(), expected[name.partition(":")[2]])
    assert list((tmp_path / "1").iterdir()) == list((tmp_path / "2").iterdir()) == []


class FirstPixels:
    """A network with one statistic, whose logits are the first pixels."""

    def __init__(self, rank: int) -> None:
        self.statistics = [mx.nd.array([10.0 * rank**2])]
        self.seen: list[float] = []

    def inference(self):
        self.seen.append(self.statistics[0].asscalar())
        return lambda images: images[:, 0, 0, :].astype("float32")


def test_every_rank_validates_the_network_of_all() -> None:
    def rank_main(world: ThreadWorld) -> list[float]:
        network, plan = FirstPixels(world.rank), EpochPlan(num_images=80, global_batch=8)
        epoch_counts = EpochCounts(LoneWorld(), lambda: plan)
        epoch_counts.add(mx.nd.array([2.0, 0.0]), mx.nd.array([1]), 0)
        batch = Batch(np.zeros((2, 1, 1, 8), np.uint8), np.array([0, 1]))
        log = SimpleNamespace(record=lambda *_, **__: None)
        Validator(network, lambda: iter([batch]), epoch_counts, world, log, print).validate(5)
        return network.seen

    assert run_ranks(RANKS, rank_main) == [[pytest.approx(50 / 3)]] * RANKS


def classifier_of(seed: int) -> Classifier:
    normalization = Normalization((0.5,) * 3, (0.5,) * 3)
    options = ClassifierOptions(model="resnet20")
    return Classifier.create(
        options, classes=3, image_shape=(3, 32, 32), normalization=normalization, seed=seed
    )


def tensors(network: Union[Backbone, Classifier]) -> dict[str, np.ndarray]:
    return {name: value.data().asnumpy() for name, value in network.parameters.items()}


@pytest.mark.parametrize("ranks", [1, 3])
def test_every_rank_gets_the_best_network_of_rank_0(tmp_path: Path, ranks: int, caplog) -> None:
    """Only the first has the file."""
    best = classifier_of(9)
    (tmp_path / "0").mkdir()
    best.export(tmp_path / "0" / BEST)
    expected = tensors(best)

    def rank_main(world: ThreadWorld) -> dict[str, np.ndarray]:
        classifier = classifier_of(1)
        ModelSaver(classifier, world, tmp_path / str(world.rank), BEST).load()
        return tensors(classifier)

    for found in run_ranks(ranks, rank_main):
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)
    (tmp_path / "0" / f"{BEST}-0000.params").unlink()
    before = tensors(classifier_of(1))
    for found in run_ranks(ranks, rank_main):
        assert all((found[name] == before[name]).all() for name in before)
    assert "is gone: going on from the last network instead" in caplog.text


def test_a_saved_network_of_another_kind_is_one_line(tmp_path: Path) -> None:
    make_backbone(0).export(tmp_path / BEST)
    with pytest.raises(DataError, match="model-best-0000.params is of another network") as caught:
        ModelSaver(classifier_of(1), LoneWorld(), tmp_path, BEST).load()
    assert "\n" not in str(caught.value)
