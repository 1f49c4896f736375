"""The copies of a network on the ranks: one set of running statistics, and one file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from backbones.model import Backbone
from backbones.options import BackboneOptions
from data.batches.loader import Batch
from data.batches.position import EpochPlan
from parallel.world import LoneWorld
from runtime.mxnet import mx
from tests.support.thread_world import ThreadWorld, run_ranks
from training.model_saver import ModelSaver, average_statistics
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


def test_every_rank_gets_the_mean_of_all_statistics() -> None:
    def rank_main(world: ThreadWorld) -> Backbone:
        backbone = make_backbone(world.rank)
        average_statistics(backbone, world)
        return backbone

    for backbone in run_ranks(RANKS, rank_main):
        assert_average(backbone)


def test_the_saved_network_has_the_statistics_of_all_ranks(tmp_path: Path) -> None:
    """And rank 0's weights; the others write nothing."""

    def rank_main(world: ThreadWorld) -> dict[str, np.ndarray]:
        backbone = make_backbone(world.rank)
        folder = tmp_path / str(world.rank)
        folder.mkdir()
        ModelSaver(backbone, world, folder).save(5)
        assert_average(backbone)
        return {name: value.data().asnumpy() for name, value in backbone.parameters.items()}

    expected = run_ranks(RANKS, rank_main)[0]
    saved = mx.nd.load(str(tmp_path / "0" / "model-0000.params"))
    assert {name.partition(":")[2] for name in saved} == expected.keys()
    for name, array in saved.items():
        np.testing.assert_array_equal(array.asnumpy(), expected[name.partition(":")[2]])
    assert list((tmp_path / "1").iterdir()) == list((tmp_path / "2").iterdir()) == []


def test_every_rank_verifies_the_network_of_all() -> None:
    def rank_main(world: ThreadWorld) -> Backbone:
        backbone = make_backbone(world.rank)
        verifier = Verifier(backbone, [], world, None, batch_size=2, image_size=(32, 32))
        verifier.verify(5)
        return backbone

    for backbone in run_ranks(RANKS, rank_main):
        assert_average(backbone)


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
        network, epoch_plan = FirstPixels(world.rank), EpochPlan(num_images=80, global_batch=8)
        epoch_counts = EpochCounts(LoneWorld(), lambda: epoch_plan)
        epoch_counts.add(mx.nd.array([2.0, 0.0]), mx.nd.array([1]), 0)
        validator = Validator(
            network,
            lambda: iter([Batch(np.zeros((2, 1, 1, 8), np.uint8), np.array([0, 1]))]),
            epoch_counts,
            world,
            SimpleNamespace(record=lambda *_, **__: None),
            lambda update: None,
        )
        validator.validate(5)
        return network.seen

    assert run_ranks(RANKS, rank_main) == [[pytest.approx(50 / 3)]] * RANKS
