"""What a run knows when it begins; how it goes on from checkpoints is in test_resume."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typing_extensions import override

from data.batches.position import EpochPlan, Position
from parallel.world import LoneWorld
from runtime.mxnet import mx
from runtime.state import Saved, State, Stateful
from runtime.stopwatch import Stopwatch
from training.checkpoint.storage import Storage
from training.config import images
from training.exchange.ranks import Period, Ranks
from training.log.run_log import RunLog
from training.loop import Interlude, Step
from training.run import Every, Run, open_run


class Source:
    """Batches that are their update and position."""

    num_images, global_batch, updates_per_epoch = 100, 10, 10
    num_classes, image_size = 10, (32, 32)

    def batches(self, start_update: int, position: Position) -> Iterator[Any]:
        plan = EpochPlan(self.num_images, self.global_batch, start_update, position)
        while True:
            yield start_update, plan.at(start_update)
            start_update += 1


class Log:
    """Reports nothing."""

    def __init__(self) -> None:
        self.stopwatch = Stopwatch()

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None

    @contextmanager
    def paused(self) -> Iterator[None]:
        yield


class Nothing(Stateful):
    def export_state(self, update: int) -> State:
        return State()

    def load_state(self, saved: Saved) -> None:
        pass


class Rebalanced(Ranks):
    """One of two workers: it reads half of the images from epoch 2 on, and saves until epoch 4."""

    rebalance_interval = 2

    def __init__(self) -> None:
        super().__init__(LoneWorld())
        self.met: list[Period] = []

    def rebalance(self, here: Period, throughput: Any, batches: Source) -> Period:
        self.met.append(here)
        batches.num_images, batches.updates_per_epoch = 50, 5
        self.saves = here.epoch < 4
        return Period(here.epoch, here.update + 100)


class Recorder(Step):
    """A step that notes what it is called with."""

    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.rates: list[float] = []

    @override
    def __call__(self, batch: Any, update: int, lr: float) -> Any:
        assert batch[0] == update
        self.batches.append(batch)
        self.rates.append(lr)
        return SimpleNamespace(asscalar=lambda: 0.0)

    @override
    def finish(self) -> None:
        """Everything is known."""


class Beginner(Stateful):
    """A part that notes how it begins."""

    def __init__(self) -> None:
        self.begun: list[object] = []

    @override
    def export_state(self, update: int) -> State:
        self.begun.append(update)
        return State()

    @override
    def load_state(self, saved: Saved) -> None:
        raise AssertionError(saved)

    @override
    def begin(self, run: Path) -> None:
        self.begun.append(run)


def test_a_part_of_a_new_run_begins_before_it_is_asked_for_its_state(tmp_path: Path) -> None:
    run, part = make_run(tmp_path, Ranks(LoneWorld()), epochs=3), Beginner()
    run.plan(Source())
    run.restore(part=part)
    assert part.begun == [tmp_path, 0]


class Kept(Stateful):
    """A part that notes what is done to it."""

    def __init__(self, name: str, done: list[str]) -> None:
        self._name, self._done = name, done

    @override
    def export_state(self, update: int) -> State:
        self._done.append(f"{self._name} exported at {update}")
        return State()

    @override
    def load_state(self, saved: Saved) -> None:
        self._done.append(f"{self._name} loaded")


def test_a_finished_run_trains_again_with_a_new_optimizer(tmp_path: Path) -> None:
    def start(**given: Any) -> tuple[list[str], Recorder]:
        done: list[str] = []
        run, step = make_run(tmp_path, Ranks(LoneWorld()), epochs=2, **given), Recorder()
        run.plan(Source())
        parts = {name: Kept(name, done) for name in ("classifier", "optimizer")}
        run.restore(lambda: done.append("again"), **parts)
        assert run.fit(step, [Every(run.save_checkpoint, epochs=1)]) == 0
        return done, step

    start(lr=0.5)
    # The rate alone changes nothing.
    done, step = start(lr=0.25)
    assert done[:2] == ["classifier loaded", "optimizer loaded"] and not step.rates
    done, step = start(lr=0.25, resume="auto")
    # The best network is there before any part is asked for its state.
    assert done[:3] == ["classifier loaded", "again", "classifier exported at 20"]
    assert "optimizer loaded" not in done
    assert [update for update, _ in step.batches] == list(range(20, 40))
    assert step.rates[0] == 0.25 and step.rates[10] == pytest.approx(0.125)
    # It is finished, too.
    done, step = start(lr=0.25, resume="auto")
    assert done[:2] == ["classifier loaded", "optimizer loaded"] and not step.rates


def test_a_schedule_that_is_trained_again_is_not_begun_twice(tmp_path: Path) -> None:
    def start(**given: Any) -> tuple[list[str], Run]:
        done: list[str] = []
        run = make_run(tmp_path, Ranks(LoneWorld()), epochs=2, **given)
        run.plan(Source())
        run.restore(
            lambda: done.append("again"),
            **{name: Kept(name, done) for name in ("classifier", "optimizer")},
        )
        return done, run

    _, run = start(lr=0.5)
    run.fit(Recorder(), [Every(run.save_checkpoint, epochs=1)])
    # Killed before its first update.
    done, _ = start(lr=0.25, resume="auto")
    assert "again" in done
    done, run = start(lr=0.25, resume="auto")
    assert done[:2] == ["classifier loaded", "optimizer loaded"] and "again" not in done
    step = Recorder()
    assert run.fit(step, []) == 0
    assert [update for update, _ in step.batches] == list(range(20, 40))


def make_run(folder: Path, ranks: Ranks, **given: Any) -> Run:
    config = images.resolve({"dataset": "synthetic", "models_root": str(folder), **given})
    storage = Storage.find(folder, ranks.world)
    return Run(config, ranks, SimpleNamespace(status=0), Log(), storage)


def test_periods_go_on_where_worker_0_is_and_through_their_own_share(tmp_path: Path) -> None:
    ranks, step, called = Rebalanced(), Recorder(), []
    options = {"epochs": 6, "lr": 0.5, "lr_schedule": "step", "lr_steps": (3,)}
    run = make_run(tmp_path, ranks, **options)
    run.plan(Source())
    run.restore(part=Nothing())
    assert run.is_new

    def save(update: int) -> None:
        called.append(update)
        run.save_checkpoint(update)

    assert run.fit(step, [Every(save, epochs=1, on_stop=True)]) == 0
    assert ranks.met == [Period(2, 20), Period(4, 130)]
    expected = [(update, divmod(update, 10)) for update in range(20)]
    expected += [(120 + update, (2 + update // 5, update % 5)) for update in range(10)]
    expected += [(230 + update, (4 + update // 5, update % 5)) for update in range(10)]
    assert [(update, (at.epoch, at.samples // 10)) for update, at in step.batches] == expected
    assert step.rates == [0.5] * 25 + [0.05] * 15
    # From epoch 4 on it saves no more, and still knows the last checkpoint.
    assert called == [10, 20, 125, 130]
    assert run.last_checkpoint() == tmp_path / "checkpoints/update-00000130"
    assert json.loads((tmp_path / "config.json").read_text()) == run._config.values()


def test_the_report_gets_the_first_batch_and_where_the_run_begins(tmp_path: Path) -> None:
    step, told, ranks = Recorder(), [], Ranks(LoneWorld())
    run = make_run(tmp_path, ranks, epochs=1)
    run.log.sample = lambda batch: told.append(batch)
    run.log.begin_part = lambda update, **facts: told.append((update, facts))
    run.plan(Source())
    run.restore()
    assert run.fit(step, []) == 0
    assert told == [(0, {"total_updates": 10, "ranks": 1, "device": ""}), step.batches[0]]
    assert [update for update, _ in step.batches] == list(range(10))


@pytest.mark.parametrize("ends", ["in order", "by an error"])
def test_all_ranks_wait_for_the_report_of_a_run_that_ends_in_order(
    tmp_path: Path, monkeypatch, ends: str
) -> None:
    """A launcher kills the others as soon as one has left with the status of a signal."""
    done: list[str] = []
    ranks = Ranks(LoneWorld())
    monkeypatch.setattr(RunLog, "write_report", lambda log: done.append("report"))
    monkeypatch.setattr(ranks.world, "barrier", lambda: done.append("barrier"))
    config = images.resolve({"dataset": "synthetic", "models_root": str(tmp_path)})
    with suppress(ZeroDivisionError):
        with open_run(config, ranks, mx.cpu(), SimpleNamespace(status=0)) as run:
            assert run.folder == tmp_path
            done.clear()
            if ends == "by an error":
                raise ZeroDivisionError
    assert done == (["report", "barrier"] if ends == "in order" else [])


def test_a_run_that_is_told_to_end_does_not_rebalance(tmp_path: Path) -> None:
    ranks, step = Rebalanced(), Recorder()
    ranks.stop = lambda request: iter([0, 143]).__next__
    run = make_run(tmp_path, ranks, epochs=6)
    run.plan(Source())
    run.restore()
    assert run.fit(step, []) == 143 and len(step.batches) == 2 and not ranks.met


def test_a_worker_that_is_told_to_end_at_a_rebalancing_trains_no_further(tmp_path: Path) -> None:
    ranks, step = Rebalanced(), Recorder()
    ranks.rebalance = lambda *_: None
    run = make_run(tmp_path, ranks, epochs=3)
    run.plan(Source())
    run.restore()
    assert run.fit(step, []) == 0 and len(step.batches) == 20


def test_a_worker_that_does_not_save_resumes_at_the_beginning_of_the_epoch(tmp_path: Path) -> None:
    """Its data is another than that of the workers whose position the checkpoint has."""
    ranks, step = Ranks(LoneWorld()), Recorder()
    ranks.stop = lambda request: iter([0] * 26 + [143]).__next__
    run = make_run(tmp_path, ranks, epochs=6)
    run.plan(Source())
    run.restore()
    assert run.fit(step, [Every(run.save_checkpoint, on_stop=True)]) == 143
    starts = []
    for saves in (True, False):
        ranks.saves = saves
        resumed = make_run(tmp_path, ranks, epochs=6)
        resumed.plan(Source())
        assert not resumed.is_new
        starts.append((resumed.progress.start_update, *resumed.progress.start))
    assert starts == [(27, 2, 70), (20, 2, 0)]


def test_actions_in_epochs_are_counted_from_where_epochs_begin() -> None:
    epochs = EpochPlan(100, 10, start_update=7, start=Position(2, 50))
    # Epoch 3 begins five updates later, with update 12.
    assert Every(print, epochs=3).interlude(epochs) == Interlude(print, 30, origin=12 - 30)
    assert Every(print, updates=4, on_stop=True).interlude(epochs) == Interlude(print, 4, True)
    assert Every(print).interlude(epochs) == Interlude(print, 0)


@pytest.mark.parametrize(
    ("root", "go_on", "is_told"),
    [("models/x", "auto", True), ("models/x", "never", False), ("other", "auto", False)],
)
def test_checkpoints_in_the_folder_of_earlier_versions_are_told_of(
    root: str,
    go_on: str,
    is_told: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models/checkpoints").mkdir(parents=True)
    caplog.set_level("INFO")
    make_run(Path(root), Ranks(LoneWorld()), resume=go_on).plan(Source())
    assert ("go on from them with --models-root models" in caplog.text) == is_told
