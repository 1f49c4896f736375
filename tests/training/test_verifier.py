"""First, last and best accuracy of every set, and that they come through a checkpoint."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from evaluation import verification
from evaluation.features import NotFiniteError
from runtime.errors import DataError
from training import verifier as verifier_module
from training.verifier import Verifier


@pytest.fixture
def make(monkeypatch):
    """Return a function that makes a verifier whose sets have the given accuracies in turn."""

    def build(accuracies: dict[str, list[float]]):
        calls, reports, averaged = [], [], []
        left = {name: iter(values) for name, values in accuracies.items()}

        def evaluate(extract, target, **options):
            calls.append((extract, target.name, options))
            return SimpleNamespace(accuracy=next(left[target.name]))

        def report(name, result, *, best, update):
            reports.append((name, result.accuracy, best, update))

        monkeypatch.setattr(verification, "evaluate", evaluate)
        monkeypatch.setattr(verifier_module, "allgather_numpy", lambda world, array: (world, array))
        monkeypatch.setattr(verifier_module, "average_statistics", lambda *x: averaged.append(x))
        # The weights of that moment, which are those after averaging.
        backbone = SimpleNamespace(inference=lambda: f"averaged {len(averaged)} times")
        world, log = SimpleNamespace(rank=2, size=3), SimpleNamespace(verification=report)
        targets = [SimpleNamespace(name=name) for name in accuracies]
        made = Verifier(backbone, targets, world, log, batch_size=5, image_size=(8, 9))
        return made, reports, calls, averaged

    return build


def test_a_network_that_has_diverged_gets_a_remedy_of_training(make, monkeypatch) -> None:
    verifier, *_ = make({"lfw": []})

    def evaluate(*_: object, **__: object) -> None:
        raise NotFiniteError("give an earlier epoch, or --dtype float32")

    monkeypatch.setattr(verification, "evaluate", evaluate)
    for update, remedy in ((0, "give another epoch as --pretrained"), (7, "lower --lr")):
        line = f"verification lfw at update {update}: the network gives .*diverged: {remedy}"
        with pytest.raises(DataError, match=f"^{line}$"):
            verifier.verify(update)


def test_first_last_and_best_of_the_network_of_all_ranks(make, caplog) -> None:
    verifier, reports, calls, averaged = make({"lfw": [0.0, 0.9, 0.7], "cfp": [0.4, 0.4, 0.6]})
    found = [verifier.verify(update) for update in (0, 10, 20)]
    assert found == [{"lfw": 0.0, "cfp": 0.4}, {"lfw": 0.9, "cfp": 0.4}, {"lfw": 0.7, "cfp": 0.6}]
    assert verifier.export_state(20).values == {
        "first": {"lfw": 0.0, "cfp": 0.4}, "last": found[-1], "best": {"lfw": 0.9, "cfp": 0.6},
    }  # fmt: skip
    assert [report[:3] for report in reports[::2]] == [
        ("lfw", 0.0, 0.0), ("lfw", 0.9, 0.9), ("lfw", 0.7, 0.9)
    ]  # fmt: skip
    assert reports[-1] == ("cfp", 0.6, 0.6, 20)
    caplog.set_level(logging.INFO)
    verifier.summarize()
    assert caplog.messages == [
        "verification lfw: accuracy untrained 0.0000, trained 0.7000, best 0.9000",
        "verification cfp: accuracy untrained 0.4000, trained 0.6000, best 0.6000",
    ]
    # Averaged once before both sets; the rank evaluates its share.
    assert len(averaged) == 3
    extracts = [(extract, name) for extract, name, _ in calls[:2]]
    assert extracts == [("averaged 1 times", name) for name in ("lfw", "cfp")]
    ranks = calls[0][2].pop("ranks")
    assert ranks[:2] == (2, 3) and ranks.allgather("array")[1] == "array"
    assert calls[0][2] == {"batch_size": 5, "image_size": (8, 9)}


def test_a_run_that_goes_on_remembers(make, caplog) -> None:
    verifier, *_ = make({"lfw": [0.5, 0.9]})
    verifier.verify(0)
    state = verifier.export_state(1)
    verifier.verify(1)
    # What was exported does not change with the run.
    assert state.values == {name: {"lfw": 0.5} for name in ("first", "best", "last")}
    saved = SimpleNamespace(numbers=lambda name: dict(state.values[name]))
    other, reports, *_ = make({"lfw": [0.3]})
    other.load_state(saved)
    other.verify(2)
    assert (other.first, other.best, other.last) == ({"lfw": 0.5}, {"lfw": 0.5}, {"lfw": 0.3})
    assert reports == [("lfw", 0.3, 0.5, 2)]
    # The summary tells of what the run has verified itself.
    third, *_ = make({"cfp": [0.5, 0.6]})
    third.load_state(saved)
    third.verify(6)
    third.verify(9)
    caplog.set_level(logging.INFO)
    third.summarize()
    assert caplog.messages == ["verification cfp: accuracy trained 0.6000, best 0.6000"]
