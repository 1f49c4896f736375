"""Which model is kept, by which rule, and that a run that goes on keeps the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import pytest

from backbones.model import Backbone
from backbones.options import BackboneOptions
from parallel.world import LoneWorld, World
from runtime.mxnet import mx
from tests.support.thread_world import ThreadWorld, run_ranks
from training.best_model import BestModel

NAMES = {"model-best-symbol.json", "model-best-0000.params"}
Accuracies = dict[int, dict[str, float]]


class Memory(dict):
    """What a checkpoint gives back."""

    has, numbers = dict.__contains__, dict.__getitem__


class Training:
    """A network whose first number is the update, and whose accuracies are given."""

    def __init__(
        self,
        folder: Path,
        accuracies: Accuracies,
        deciding: Optional[str] = None,
        world: Optional[World] = None,
    ) -> None:
        self.folder = folder
        options = BackboneOptions(network="tiny", embedding_size=8)
        self.backbone = Backbone.create(options, image_size=(32, 32), seed=1)
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
    (tmp_path / "none").mkdir()
    Training(tmp_path / "none", {0: {}}).best.verify(0)
    assert not [*(tmp_path / "none").iterdir()]


def test_a_run_that_goes_on_neither_forgets_nor_keeps_a_worse_one(tmp_path: Path) -> None:
    """From a checkpoint after update 1; the kill came after the model of update 3 was written."""
    accuracies = of(0.5, 0.8, 0.7, 0.9, 0.85)
    folders = tmp_path / "whole", tmp_path / "killed"
    for folder in folders:
        folder.mkdir()
    whole, killed = (Training(folder, accuracies) for folder in folders)
    assert whole.verify(0, 1) == [0, 1]
    state = whole.best.export_state(2)
    assert killed.verify(0, 1, 2, 3)[-1] == 3
    assert whole.verify(2, 3, 4) == [1, 3, 3]

    def go_on(world: ThreadWorld) -> None:
        # What other ranks find out by themselves does not count.
        found = accuracies if world.rank == 0 else of(1, 1, 0, 0, 1)
        rest = Training(folders[1], found, world=world)
        rest.best.load_state(Memory(state.values))
        for update in (2, 3, 4):
            rest.weight.data()[:] = update
            rest.best.verify(update)
        assert rest.best.accuracies == {"lfw": 0.9}

    run_ranks(2, go_on)
    for name in NAMES:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()


@pytest.mark.parametrize(("deciding", "kept"), [("lfw", 1), ("cfp", 2), (None, 2), ("new", 3)])
def test_another_rule_compares_with_the_model_that_is_kept(
    deciding: Optional[str], kept: int, tmp_path: Path, caplog
) -> None:
    accuracies: dict[int, Any] = {**SETS, 3: {"lfw": 0.0, "cfp": 0.0}}
    if deciding == "new":
        accuracies[3]["new"] = 0.1
    Training(tmp_path, accuracies).verify(1)
    rest = Training(tmp_path, accuracies, deciding)
    rest.best.load_state(Memory(accuracies=SETS[1]))
    assert rest.verify(2, 3)[-1] == kept
    said = "the best model was verified on lfw, cfp, not on new: that of update 3 "
    assert caplog.text.count(said) == (deciding == "new")


def test_a_model_that_is_gone_is_forgotten(tmp_path: Path, caplog) -> None:
    rest = Training(tmp_path, of(0.5, 0.4))
    rest.backbone.export(tmp_path / "model-best")
    rest.best.load_state(Memory({}))
    rest.best.load_state(Memory({"accuracies": {"lfw": 0.9}}))
    assert not caplog.records
    for name in NAMES:
        (tmp_path / name).unlink()
    rest.best.load_state(Memory({"accuracies": {"lfw": 0.9}}))
    assert f"{tmp_path}/model-best-0000.params is gone: the best" in caplog.text
    assert rest.verify(0, 1) == [0, 0]
