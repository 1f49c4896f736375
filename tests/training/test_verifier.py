from __future__ import annotations

import logging
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from evaluation import verification
from evaluation.features import NotFiniteError
from runtime.errors import DataError
from tests.support.parameters import SavedValues
from training import verifier as verifier_module
from training.verifier import Verifier


@pytest.fixture
def make(monkeypatch):
    """Return a function that makes a verifier whose sets have the given accuracies in turn."""
    average = Mock()
    monkeypatch.setattr(verifier_module, "allgather_numpy", lambda world, array: (world, array))
    monkeypatch.setattr(verifier_module, "average_statistics", average)

    def build(accuracies: dict[str, list[float]]):
        reports: list[tuple] = []
        left = {name: iter(values) for name, values in accuracies.items()}

        def evaluate(extract, target, **options):
            return SimpleNamespace(accuracy=next(left[target.name]))

        def report(name, result, *, best, update):
            reports.append((name, result.accuracy, best, update))

        calls = Mock(side_effect=evaluate)
        monkeypatch.setattr(verification, "evaluate", calls)
        # The weights of that moment, which are those after averaging.
        backbone = SimpleNamespace(inference=lambda: f"averaged {average.call_count} times")
        world, log = SimpleNamespace(rank=2, size=3), SimpleNamespace(verification=report)
        targets = [SimpleNamespace(name=name) for name in accuracies]
        made = Verifier(backbone, targets, world, log, batch_size=5, image_size=(8, 9))
        return made, reports, calls

    return build


def test_a_network_that_has_diverged_gets_a_remedy_of_training(make) -> None:
    verifier, _, calls = make({"lfw": []})
    calls.side_effect = NotFiniteError("give an earlier epoch, or --dtype float32")
    for update, remedy in ((0, "give another epoch as --pretrained"), (7, "lower --lr")):
        line = f"verification lfw at update {update}: the network gives .*diverged: {remedy}"
        with pytest.raises(DataError, match=f"^{line}$"):
            verifier.verify(update)


def test_first_last_and_best_of_the_network_of_all_ranks(make, caplog) -> None:
    verifier, reports, calls = make({"lfw": [0.0, 0.9, 0.7], "cfp": [0.4, 0.4, 0.6]})
    found = [verifier.verify(update) for update in (0, 10, 20)]
    assert found == [{"lfw": 0.0, "cfp": 0.4}, {"lfw": 0.9, "cfp": 0.4}, {"lfw": 0.7, "cfp": 0.6}]
    assert verifier.export_state(20).values == {
        "first": {"lfw": 0.0, "cfp": 0.4}, "last": found[-1], "best": {"lfw": 0.9, "cfp": 0.6},
    }  # fmt: skip
    assert reports[::2] == [("lfw", 0.0, 0.0, 0), ("lfw", 0.9, 0.9, 10), ("lfw", 0.7, 0.9, 20)]
    assert reports[-1] == ("cfp", 0.6, 0.6, 20)
    caplog.set_level(logging.INFO)
    verifier.summarize()
    assert caplog.messages == [
        "verification lfw: accuracy untrained 0.0000, trained 0.7000, best 0.9000",
        "verification cfp: accuracy untrained 0.4000, trained 0.6000, best 0.6000",
    ]
    # Averaged once before both sets; the rank evaluates its share.
    extracts = [(one.args[0], one.args[1].name) for one in calls.mock_calls[1:4]]
    times = ("averaged 1 times", "averaged 2 times", "averaged 2 times")
    assert extracts == [*zip(times, ("cfp", "lfw", "cfp"))]
    options = calls.call_args.kwargs
    ranks = options.pop("ranks")
    assert ranks[:2] == (2, 3) and ranks.allgather("array")[1] == "array"
    assert options == {"batch_size": 5, "image_size": (8, 9)}


def test_a_run_that_goes_on_remembers(make, caplog) -> None:
    verifier, *_ = make({"lfw": [0.5, 0.9]})
    verifier.verify(0)
    state = verifier.export_state(1)
    verifier.verify(1)
    # What was exported does not change with the run.
    assert state.values == {name: {"lfw": 0.5} for name in ("first", "best", "last")}
    other, reports, _ = make({"lfw": [0.3]})
    other.load_state(SavedValues(state.values))
    other.verify(2)
    assert (other.first, other.best, other.last) == ({"lfw": 0.5}, {"lfw": 0.5}, {"lfw": 0.3})
    assert reports == [("lfw", 0.3, 0.5, 2)]
    # The summary tells of what the run has verified itself.
    third, *_ = make({"cfp": [0.5, 0.6]})
    third.load_state(SavedValues(state.values))
    for update in (6, 9):
        third.verify(update)
    caplog.set_level(logging.INFO)
    third.summarize()
    assert caplog.messages == ["verification cfp: accuracy trained 0.6000, best 0.6000"]
