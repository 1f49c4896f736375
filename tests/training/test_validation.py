"""Validation during training, and which model is kept."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import numpy as np
import pytest

from data.batches.image_loader import BROKEN
from data.batches.loader import PADDING, Batch
from data.batches.position import EpochPlan
from evaluation import verification
from evaluation.features import FaceNetwork
from parallel.world import LoneWorld, World
from runtime.errors import DataError
from runtime.mxnet import mx
from tests.backbones.passes import assert_same, classifier, create, values
from tests.support.parameters import SavedValues
from tests.support.thread_world import ThreadWorld, run_ranks
from training import validation
from training.update.classify_step import EpochCounts
from training.validation import (
    BEST,
    BestModel,
    ModelSaver,
    Validator,
    Verifier,
    count,
)

NAMES = {"model-best-symbol.json", "model-best-0000.params"}
PAIRS = ((0.5, 0.5), (0.9, 0.4), (0.8, 0.6), (0.4, 0.9))
SETS = {update: {"lfw": lfw, "cfp": cfp} for update, (lfw, cfp) in enumerate(PAIRS)}
Accuracies = dict[int, dict[str, float]]


class Training:
    def __init__(self, folder: Path, accuracies: Accuracies, deciding=None, world=None) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.backbone = folder, create(side=32)
        self.weight = next(iter(self.backbone.parameters.values()))
        self.accuracies = accuracies
        self.best = BestModel(self.backbone, world or LoneWorld(), folder, deciding)

    def keep(self, update: int) -> None:
        self.weight.data()[:] = update
        assert self.best.keep(update, self.accuracies[update]) == self.best.accuracies

    def verify(self, *updates: int) -> list[int]:
        """Return the update whose model is kept after each."""
        kept = []
        for update in updates:
            self.keep(update)
            assert {path.name for path in self.folder.iterdir()} == NAMES
            arrays = mx.nd.load(str(self.folder / "model-best-0000.params"))
            kept.append(int(arrays[next(iter(arrays))].asnumpy().flat[0]))
        return kept


def of(*accuracies: float) -> Accuracies:
    return {update: {"lfw": accuracy} for update, accuracy in enumerate(accuracies)}


@pytest.mark.parametrize(("accuracies", "deciding", "kept"), [
    # Of equals the earlier one, and one that is always wrong counts too.
    (of(0.0, 0.7, 0.6, 0.7, 0.71, 0.71), None, [0, 1, 1, 1, 4, 4]),
    (SETS, None, [0, 1, 2, 2]),
    (SETS, "lfw", [0, 1, 1, 1]),
    (SETS, "cfp", [0, 0, 2, 3]),
])  # fmt: skip
def test_the_better_one_is_kept(accuracies, deciding, kept, tmp_path: Path) -> None:
    training = Training(tmp_path, accuracies, deciding)
    assert training.verify(*range(len(accuracies))) == kept
    assert training.best.export_state(6).values == {"accuracies": accuracies[kept[-1]]}
    Training(tmp_path / "none", {0: {}}).keep(0)
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
        # What other ranks find out by themselves, or remember, does not count.
        found = accuracies if world.rank == 0 else of(1, 1, 0, 0, 1)
        rest = Training(folders[1], found, world=world)
        rest.best.load_state(SavedValues(state.values))
        rest.best.accuracies = {} if world.rank else rest.best.accuracies
        for update in (2, 3, 4):
            rest.keep(update)
        assert rest.best.accuracies == {"lfw": 0.9}

    run_ranks(2, go_on)
    for name in NAMES:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()


@pytest.mark.parametrize(("deciding", "kept"), [("lfw", 1), ("cfp", 2), (None, 2), ("new", 3)])
def test_another_rule_compares_with_the_model_that_is_kept(deciding, kept, tmp_path):
    accuracies: Any = {**SETS, 3: {"lfw": 0.0, "cfp": 0.0}}
    if deciding == "new":
        accuracies = {update: {**found, "new": update / 10} for update, found in accuracies.items()}
    Training(tmp_path, accuracies).verify(1)
    rest = Training(tmp_path, accuracies, deciding)
    rest.best.load_state(SavedValues(accuracies=SETS[1]))
    assert rest.verify(2, 3)[-1] == kept


def test_every_rank_has_and_saves_the_mean_of_all_statistics(tmp_path: Path) -> None:
    def rank_main(world: ThreadWorld) -> dict[str, np.ndarray]:
        folder, backbone = tmp_path / str(world.rank), create(side=32)
        folder.mkdir()
        assert len(backbone.statistics) > 1
        for number, array in enumerate(backbone.statistics):
            array[:] = number + 10.0 * world.rank**2
        ModelSaver(backbone, world, folder).save(5)
        for number, array in enumerate(backbone.statistics):
            # (0 + 1 + 4) / 3 of what the ranks differ by.
            assert array.asnumpy() == pytest.approx(number + 50 / 3), number
        return values(backbone)

    expected = run_ranks(3, rank_main)[0]
    saved = mx.nd.load(str(tmp_path / "0" / "model-0000.params"))
    assert {name.partition(":")[2] for name in saved} == expected.keys()
    for name, array in saved.items():
        np.testing.assert_array_equal(array.asnumpy(), expected[name.partition(":")[2]])
    assert list((tmp_path / "1").iterdir()) == list((tmp_path / "2").iterdir()) == []


def test_every_rank_gets_the_best_network_of_rank_0(tmp_path: Path, caplog) -> None:
    def rank_main(world: ThreadWorld) -> dict[str, np.ndarray]:
        network = classifier("LeNet", seed=1)
        best = BestModel(network, world, tmp_path / str(world.rank))
        best.load_state(SavedValues(accuracies={"validation": 0.5}))
        best.load(network.load_pretrained)
        return values(network)

    (tmp_path / "0").mkdir()
    classifier("LeNet", seed=9).export(tmp_path / "0" / BEST)
    for seed in (9, 1):
        for found in run_ranks(3, rank_main):
            assert ("is gone: the run goes on without it" in caplog.text) == (seed == 1)
            assert_same(found, values(classifier("LeNet", seed=seed)))
        (tmp_path / "0" / f"{BEST}-0000.params").unlink(missing_ok=True)


def test_counts_by_hand() -> None:
    logits = np.float32([[2, 1, 0, 0, 0, 0], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]])
    batch = Batch(logits, np.array([0, 1, 0]))
    loss, correct, of_top, total, broken = count(lambda images: images, batch)
    assert (correct, of_top, total, broken) == (1, 2, 3, 0)
    shares = np.exp(logits.astype(float))
    shares /= shares.sum(axis=1, keepdims=True)
    assert loss == pytest.approx(-np.log(shares[[0, 1, 2], [0, 1, 0]]).sum())
    for value in (np.nan, 0.0):
        with np.errstate(invalid="ignore"):
            batch = Batch(np.full((3, 4), value, np.float32), np.array([0, 1, 2]))
            assert count(lambda images: images, batch)[1] == 0


class FirstPixels:
    def __init__(self, world: World) -> None:
        self.statistics = [mx.nd.array([10.0 * world.rank**2])]
        self._mean = np.mean([10.0 * rank**2 for rank in range(world.size)])

    def inference(self):
        assert self.statistics[0].asscalar() == pytest.approx(self._mean)
        return lambda images: images[:, 0, 0, :].astype("float32")


def share(world: World, hits: int, broken=()) -> Iterator[Batch]:
    """A rank's part of eleven images, the first of which are hits, in batches of four rows."""
    numbers = np.arange(11)
    labels, images = np.append(numbers % 4, PADDING), np.zeros((12, 1, 1, 8), np.uint8)
    images[numbers, 0, 0, np.where(numbers < hits, numbers % 4, 7)] = 1
    labels[[*broken]] = BROKEN
    own = numbers[world.rank :: world.size]
    rows = np.append(own, np.full(-len(own) % 4, 11)).reshape(-1, 4)
    return iter([Batch(images[four], labels[four]) for four in rows])


def make_validator(batches, world: World) -> tuple[Validator, list[Any], list[int]]:
    """A validator after a training with three hits, the records of its log, what it saved."""
    counts = EpochCounts(LoneWorld(), lambda: EpochPlan(num_images=80, global_batch=8))
    counts.add(mx.nd.array([2.0, 0, 0, 0, 0, 0, 0, 0]), mx.nd.array([3]), 0)
    records: list[Any] = []
    log = SimpleNamespace(record=lambda update, numbers, target: records.append(numbers))
    network, best = FirstPixels(world), BestModel(Mock(), world, Path())
    best.save = (saved := []).append
    return Validator(network, batches, counts, world, log, best), records, saved


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_image_counts_once_on_any_number_of_ranks(size: int, caplog) -> None:
    caplog.set_level(logging.INFO)

    def validate(world):
        shares = iter(((5,), (9,), (7,), (5, {0, 6, 7}), (5, range(11))))
        validator, *found = make_validator(lambda: share(world, *next(shares)), world)
        for update in (10, 20, 30, 40):
            validator.validate(update)
        with pytest.raises(DataError, match="none of the 11 images to validate on can be read"):
            validator.validate(50)
        return found

    for records, saved in run_ranks(size, validate):
        assert [record["correct"] for record in records] == [5, 9, 7, 4]
        assert [record["total"] for record in records] == [11, 11, 11, 8]
        assert [record["best"] for record in records] == [5 / 11, *[9 / 11] * 3]
        assert records[0]["training_accuracy"] == 3 / 8 and records[2]["epoch"] == 3
        assert saved == [10, 20] and records[3]["accuracy"] == 0.5
    assert "accuracy 0.8182 (9 of 11), top-5 " in caplog.text
    assert "epoch 1: training loss 0.2500, accuracy 0.3750; validation loss " in caplog.text
    assert "3 of 11 images to validate on cannot be read, and do not count" in caplog.text


@pytest.fixture
def make(monkeypatch):
    """Return a function that makes a verifier that finds these accuracies; its log's calls."""
    average, evaluated = Mock(), Mock()
    monkeypatch.setattr(validation, "average_statistics", average)
    monkeypatch.setattr(verification, "evaluate", evaluated)

    def build(accuracies: dict[str, list[float]]) -> tuple[Verifier, Mock, Mock]:
        left, log = {name: iter(values) for name, values in accuracies.items()}, Mock()
        evaluated.side_effect = lambda network, target, world: SimpleNamespace(
            accuracy=next(left[target.name])
        )
        backbone = SimpleNamespace(inference=lambda: f"averaged {average.call_count} times")
        best = Mock(world=SimpleNamespace(rank=2, size=3))
        targets = [SimpleNamespace(name=name) for name in accuracies]
        made = Verifier(backbone, targets, log, best, batch_size=5, image_size=(8, 9))
        return made, log.verification, evaluated

    return build


def told(reports: Mock) -> list[tuple[Any, ...]]:
    calls = reports.call_args_list
    return [(name, result.accuracy, *more.values()) for (name, result), more in calls]


def test_first_last_and_best_of_the_network_of_all_ranks(make, caplog) -> None:
    verifier, reports, calls = make({"lfw": [0.0, 0.9, 0.7], "cfp": [0.4, 0.4, 0.6]})
    best = verifier._best_model
    for update in (0, 10, 20):
        verifier.verify(update)
    found = [{"lfw": 0.0, "cfp": 0.4}, {"lfw": 0.9, "cfp": 0.4}, {"lfw": 0.7, "cfp": 0.6}]
    assert best.keep.mock_calls == [*map(call, (0, 10, 20), found)]
    state = verifier.export_state(20)
    assert state.values == {
        "first": {"lfw": 0.0, "cfp": 0.4}, "last": found[-1], "best": {"lfw": 0.9, "cfp": 0.6},
    }  # fmt: skip
    expected = [("lfw", 0.0, 0.0, 0), ("lfw", 0.9, 0.9, 10), ("lfw", 0.7, 0.9, 20)]
    assert told(reports)[::2] == expected
    assert told(reports)[-1] == ("cfp", 0.6, 0.6, 20)
    caplog.set_level(logging.INFO)
    verifier.summarize()
    assert caplog.messages == [
        "verification lfw: accuracy untrained 0.0000, trained 0.7000, best 0.9000",
        "verification cfp: accuracy untrained 0.4000, trained 0.6000, best 0.6000",
    ]
    # Averaged once before both sets; the rank evaluates its share.
    networks = [one.args[0] for one in calls.mock_calls[1:4]]
    assert [one.args[1].name for one in calls.mock_calls[1:4]] == ["cfp", "lfw", "cfp"]
    assert [one.extract for one in networks] == [f"averaged {n} times" for n in (1, 2, 2)]
    assert networks[0] == FaceNetwork("averaged 1 times", (8, 9), 5)
    assert calls.call_args.args[2] is best.world
    # A run that goes on remembers; the state does not change with what was verified later.
    verifier.last["lfw"] = 1.0
    other, reports, _ = make({"lfw": [0.3]})
    other.load_state(SavedValues(state.values))
    other.verify(30)
    assert (other.first["lfw"], other.last) == (0.0, {"lfw": 0.3, "cfp": 0.6})
    assert told(reports) == [("lfw", 0.3, 0.9, 30)]
