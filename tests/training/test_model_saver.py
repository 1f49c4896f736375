"""Which model is kept, by which rule, and that a run that goes on keeps the same.

The copies of a network on the ranks have one set of running statistics, and one file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backbones.classifiers import Normalization
from backbones.classifiers.classifier import Classifier
from backbones.model import Backbone
from backbones.options import BackboneOptions, ClassifierOptions
from parallel.world import LoneWorld
from runtime.errors import DataError
from runtime.mxnet import mx
from tests.support.parameters import SavedValues
from tests.support.thread_world import ThreadWorld, run_ranks
from training.model_saver import BEST, BestModel, ModelSaver, average_statistics
from training.verifier import Verifier

NAMES = {"model-best-symbol.json", "model-best-0000.params"}
Accuracies = dict[int, dict[str, float]]


def make_backbone() -> Backbone:
    options = BackboneOptions(network="tiny", embedding_size=8)
    return Backbone.create(options, image_size=(32, 32), seed=1)


def tensors(network: Any) -> dict[str, np.ndarray]:
    return {name: value.data().asnumpy() for name, value in network.parameters.items()}


class Training:
    """A network whose first number is the update, and whose accuracies are given."""

    def __init__(self, folder: Path, accuracies: Accuracies, deciding=None, world=None) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.backbone = folder, make_backbone()
        self.weight = next(iter(self.backbone.parameters.values()))
        world, verify = world or LoneWorld(), accuracies.__getitem__
        self.best = BestModel(self.backbone, world, folder, verify, deciding)

    def verify(self, *updates: int) -> list[int]:
        """Verify after each update; returns the one that is kept after each."""
        kept = []
        for update in updates:
            self.weight.data()[:] = update
            self.best.verify(update)
            assert {path.name for path in self.folder.iterdir()} == NAMES
            arrays = mx.nd.load(str(self.folder / "model-best-0000.params"))
            kept.append(int(arrays[next(iter(arrays))].asnumpy().flat[0]))
        return kept


def of(*accuracies: float) -> Accuracies:
    return {update: {"lfw": accuracy} for update, accuracy in enumerate(accuracies)}


PAIRS = ((0.5, 0.5), (0.9, 0.4), (0.8, 0.6), (0.4, 0.9))
SETS = {update: {"lfw": lfw, "cfp": cfp} for update, (lfw, cfp) in enumerate(PAIRS)}


@pytest.mark.parametrize(
    ("accuracies", "deciding", "kept"),
    [
        # Of equals the earlier one, and one that is always wrong counts too.
        (of(0.0, 0.7, 0.6, 0.7, 0.71, 0.71), None, [0, 1, 1, 1, 4, 4]),
        # The mean decides, or the set that is named.
        (SETS, None, [0, 1, 2, 2]),
        (SETS, "lfw", [0, 1, 1, 1]),
        (SETS, "cfp", [0, 0, 2, 3]),
    ],
)
def test_the_better_one_is_kept(accuracies, deciding, kept, tmp_path: Path) -> None:
    training = Training(tmp_path, accuracies, deciding)
    assert training.verify(*range(len(accuracies))) == kept
    assert training.best.export_state(6).values == {"accuracies": accuracies[kept[-1]]}
    Training(tmp_path / "none", {0: {}}).best.verify(0)
    assert not [*(tmp_path / "none").iterdir()]


def test_a_run_that_goes_on_neither_forgets_nor_keeps_a_worse_one(tmp_path: Path) -> None:
    """From a checkpoint after update 1; the kill came after the model of update 3 was written."""
    accuracies = of(0.5, 0.8, 0.7, 0.9, 0.85)
    folders = tmp_path / "whole", tmp_path / "killed"
    whole, killed = (Training(folder, accuracies) for folder in folders)
    assert whole.verify(0, 1) == [0, 1]
    state = whole.best.export_state(2)
    assert killed.verify(0, 1, 2, 3)[-1] == 3
    assert whole.verify(2, 3, 4) == [1, 3, 3]

    def go_on(world: ThreadWorld) -> None:
        # What other ranks find out by themselves does not count.
        found = accuracies if world.rank == 0 else of(1, 1, 0, 0, 1)
        rest = Training(folders[1], found, world=world)
        rest.best.load_state(SavedValues(state.values))
        for update in (2, 3, 4):
            rest.weight.data()[:] = update
            rest.best.verify(update)
        assert rest.best.accuracies == {"lfw": 0.9}

    run_ranks(2, go_on)
    for name in NAMES:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()


@pytest.mark.parametrize(("deciding", "kept"), [("lfw", 1), ("cfp", 2), (None, 2), ("new", 3)])
def test_another_rule_compares_with_the_model_that_is_kept(deciding, kept, tmp_path, caplog):
    accuracies: Any = {**SETS, 3: {"lfw": 0.0, "cfp": 0.0}}
    if deciding == "new":
        accuracies[3]["new"] = 0.1
    Training(tmp_path, accuracies).verify(1)
    rest = Training(tmp_path, accuracies, deciding)
    rest.best.load_state(SavedValues(accuracies=SETS[1]))
    assert rest.verify(2, 3)[-1] == kept
    said = "the best model was verified on lfw, cfp, not on new: that of update 3 "
    assert caplog.text.count(said) == (deciding == "new")


def test_a_model_that_is_gone_is_forgotten(tmp_path: Path, caplog) -> None:
    rest, saved = Training(tmp_path, of(0.5, 0.4)), SavedValues(accuracies={"lfw": 0.9})
    rest.backbone.export(tmp_path / BEST)
    rest.best.load_state(saved)
    assert not caplog.records
    for name in NAMES:
        (tmp_path / name).unlink()
    rest.best.load_state(saved)
    assert f"{tmp_path}/model-best-0000.params is gone: the best" in caplog.text
    assert rest.verify(0, 1) == [0, 0]


def test_every_rank_has_and_saves_the_mean_of_all_statistics(tmp_path: Path) -> None:
    """The first saves; the others write nothing."""

    def rank_main(world: ThreadWorld) -> dict[str, np.ndarray]:
        folder = tmp_path / str(world.rank)
        folder.mkdir()
        averaged, verified, saved = backbones = [make_backbone() for _ in range(3)]
        # Statistics are those of a rank's own images.
        for backbone in backbones:
            for number, array in enumerate(backbone.statistics):
                array[:] = number + 10.0 * world.rank**2
        average_statistics(averaged, world)
        Verifier(verified, [], world, None, batch_size=2, image_size=(32, 32)).verify(5)
        ModelSaver(saved, world, folder).save(5)
        for backbone in backbones:
            assert len(backbone.statistics) > 1
            for number, array in enumerate(backbone.statistics):
                # (0 + 1 + 4) / 3 of what the ranks differ by.
                assert array.asnumpy() == pytest.approx(number + 50 / 3), number
        return tensors(saved)

    expected = run_ranks(3, rank_main)[0]
    saved = mx.nd.load(str(tmp_path / "0" / "model-0000.params"))
    assert {name.partition(":")[2] for name in saved} == expected.keys()
    for name, array in saved.items():
        np.testing.assert_array_equal(array.asnumpy(), expected[name.partition(":")[2]])
    assert list((tmp_path / "1").iterdir()) == list((tmp_path / "2").iterdir()) == []


def test_every_rank_gets_the_best_network_of_rank_0(tmp_path: Path, caplog) -> None:
    """Only the first has the file."""

    def make(seed: int) -> Classifier:
        return Classifier.create(
            ClassifierOptions(model="LeNet"), classes=3, image_shape=(3, 32, 32), seed=seed,
            normalization=Normalization((0.5,) * 3, (0.5,) * 3),
        )  # fmt: skip

    def load_as_all_ranks(expected: Classifier) -> None:
        def rank_main(world: ThreadWorld) -> dict[str, np.ndarray]:
            classifier = make(1)
            ModelSaver(classifier, world, tmp_path / str(world.rank), BEST).load()
            return tensors(classifier)

        for found in run_ranks(3, rank_main):
            for name, value in tensors(expected).items():
                np.testing.assert_array_equal(found[name], value)

    (tmp_path / "0").mkdir()
    make(9).export(tmp_path / "0" / BEST)
    load_as_all_ranks(make(9))
    (tmp_path / "0" / f"{BEST}-0000.params").unlink()
    load_as_all_ranks(make(1))
    assert "is gone: going on from the last network instead" in caplog.text
    make_backbone().export(tmp_path / BEST)
    with pytest.raises(DataError, match="model-best-0000.params is of another network") as caught:
        ModelSaver(make(1), LoneWorld(), tmp_path, BEST).load()
    assert "\n" not in str(caught.value)
