"""What a run knows when it begins; how it goes on from checkpoints is in test_resume."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock, call

import pytest

from data.batches.position import EpochPlan, Position
from parallel.world import LoneWorld
from runtime.mxnet import mx
from runtime.state import State
from runtime.stopwatch import Stopwatch
from tests.support.steps import FunctionStep
from tests.support.thread_world import ThreadWorld, run_ranks
from training import run_folder
from training.checkpoint.storage import Storage
from training.config import images
from training.exchange.ranks import Period, Ranks
from training.log.run_log import RunLog
from training.loop import Every
from training.run import Run, open_run


class Source:
    """Batches that are their update and position."""

    num_images, global_batch, updates_per_epoch = 100, 10, 10
    num_classes, image_size = 10, (32, 32)

    def batches(self, start_update: int, position: Position) -> Iterator[Any]:
        plan = EpochPlan(self.num_images, self.global_batch, start_update, position)
        while True:
            yield start_update, plan.at(start_update)
            start_update += 1


class Rebalanced(Ranks):
    """One of two workers: it reads half of the images from epoch 2 on, and saves until epoch 4."""

    rebalance_interval = 2

    def __init__(self) -> None:
        super().__init__(LoneWorld())
        self.met: list[Period] = []

    def rebalance(self, here: Period, throughput: Any, batches: Source) -> Period:
        self.met.append(here)
        batches.num_images, batches.updates_per_epoch = 50, 5
        self.saves = here[0] < 4
        return here[0], here[1] + 100


class Recorder(FunctionStep):
    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.rates: list[float] = []
        super().__init__(self.note)

    def note(self, batch: Any, update: int, lr: float) -> Any:
        assert batch[0] == update
        self.batches.append(batch)
        self.rates.append(lr)
        return SimpleNamespace(asscalar=lambda: 0.0)


def config_of(folder: Path, **given: Any) -> Any:
    return images.resolve({"dataset": "synthetic", "models_root": str(folder), **given})


def make_run(folder: Path, ranks: Ranks, **given: Any) -> Run:
    folder.mkdir(parents=True, exist_ok=True)
    log = MagicMock(stopwatch=Stopwatch())
    log.reports.return_value = False
    storage = Storage.find(folder, ranks.world)
    run = Run(config_of(folder, **given), ranks, SimpleNamespace(status=0), log, storage)
    run.plan(Source())
    return run


def test_a_finished_run_trains_again_with_a_new_optimizer(tmp_path: Path) -> None:
    def start(**given: Any) -> tuple[Mock, list[str], Run]:
        done = Mock()
        parts = {name: getattr(done, name) for name in ("classifier", "optimizer")}
        for part in parts.values():
            part.export_state.return_value = State()
        run = make_run(tmp_path, Ranks(LoneWorld()), epochs=2, **given)
        run.restore(done.again, **parts)
        return done, [one[0] for one in done.mock_calls], run

    def fit(run: Run, saves: bool = True) -> Recorder:
        step = Recorder()
        assert run.fit(step, [Every(run.save_checkpoint, epochs=1)] if saves else []) == 0
        return step

    done, _, run = start(lr=0.5)
    # A part of a new run begins before it is asked for its state.
    assert done.classifier.mock_calls == [call.begin(tmp_path), call.export_state(0)]
    fit(run)
    # The rate alone changes nothing.
    loaded = ["classifier.load_state", "optimizer.load_state"]
    _, names, run = start(lr=0.25)
    assert names[:2] == loaded and not fit(run).rates
    done, names, _ = start(lr=0.25, resume="auto")
    # The best network is there before any part is asked for its state.
    assert names[:3] == ["classifier.load_state", "again", "classifier.export_state"]
    assert done.classifier.export_state.call_args_list[0] == call(20)
    done.optimizer.load_state.assert_not_called()
    # Killed before its first update, it is not begun twice.
    for saves in (False, True):
        _, names, run = start(lr=0.25, resume="auto")
        assert names[:2] == loaded and "again" not in names
        step = fit(run, saves)
        assert [update for update, _ in step.batches] == list(range(20, 40))
        assert step.rates[0] == 0.25 and step.rates[10] == pytest.approx(0.125)
    # It is finished, too.
    _, names, run = start(lr=0.25, resume="auto")
    assert names[:2] == loaded and not fit(run).rates


def test_periods_go_on_where_worker_0_is_and_through_their_own_share(tmp_path: Path) -> None:
    ranks, step, called = Rebalanced(), Recorder(), []
    run = make_run(tmp_path, ranks, epochs=6, lr=0.5, lr_schedule="step", lr_steps=(3,))
    run.restore(part=Mock(**{"export_state.return_value": State()}))
    assert run.is_new

    def save(update: int) -> None:
        called.append(update)
        run.save_checkpoint(update)

    # The others wait while some save, and have to know it, also from those that do not save.
    pauses, settled = [], []
    ranks.pause, ranks.settle = pauses.append, settled.append
    ranks.numbers = lambda: {"staleness": 2.0}
    actions = [Every(save, epochs=1, on_stop=True)]
    assert run.fit(step, actions, lambda: {"loss": 1.0}) == 0
    assert ranks.met == [(2, 20), (4, 130)]
    assert pauses == [10, 20, 125, 130, 235, 240] and settled == [20, 130, 240]
    # Before each save, and after a rebalancing.
    assert run.log.check_folder.call_count == 4 + 2
    reported = run.log.update.call_args.kwargs
    assert reported["averages"]() == {"loss": 1.0, "staleness": 2.0}
    assert reported["images"] == run._config.data.batch_size
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
    step, run = Recorder(), make_run(tmp_path, Ranks(LoneWorld()), epochs=1)
    run.restore()
    assert run.fit(step, []) == 0
    run.log.begin_part.assert_called_once_with(0, total_updates=10, ranks=1, device="")
    run.log.sample.assert_called_once_with(step.batches[0])
    assert [update for update, _ in step.batches] == list(range(10))


def test_all_ranks_wait_for_the_report_of_a_run_that_ends_in_order(tmp_path, monkeypatch) -> None:
    """A launcher kills the others as soon as one has left with the status of a signal."""
    done: list[str] = []
    ranks = Ranks(LoneWorld())
    monkeypatch.setattr(RunLog, "write_report", lambda log: done.append("report"))
    monkeypatch.setattr(ranks.world, "barrier", lambda: done.append("barrier"))
    for fails, expected in ((False, ["report", "barrier"]), (True, [])):
        with suppress(ZeroDivisionError):
            with open_run(config_of(tmp_path), ranks, mx.cpu(), None) as run:
                assert run.folder == tmp_path
                done.clear()
                if fails:
                    raise ZeroDivisionError
        assert done == expected


def test_the_first_rank_of_a_folder_locks_it_and_others_wait(tmp_path: Path, monkeypatch) -> None:
    order: list[Any] = []

    @contextmanager
    def locked(folder: Path) -> Iterator[None]:
        order.append(folder)
        yield

    def rank_main(world: ThreadWorld) -> None:
        ranks = Ranks(world)
        ranks.saves = world.rank < 2
        with open_run(config_of(tmp_path), ranks, mx.cpu(), None):
            order.append(world.rank)

    monkeypatch.setattr(run_folder, "locked", locked)
    monkeypatch.setattr(RunLog, "write_report", lambda log: None)
    run_ranks(3, rank_main)
    assert order[0] == tmp_path and sorted(order[1:]) == [0, 1, 2]


def test_a_run_that_is_told_to_end_does_not_rebalance_or_trains_no_further(tmp_path: Path) -> None:
    for name, replaced, status, updates in (
        ("stop", lambda request: iter([0, 143]).__next__, 143, 2),
        # At a rebalancing.
        ("rebalance", lambda *_: None, 0, 20),
    ):
        ranks, step = Rebalanced(), Recorder()
        setattr(ranks, name, replaced)
        run = make_run(tmp_path / name, ranks, epochs=6)
        run.restore()
        assert run.fit(step, []) == status
        assert len(step.batches) == updates and not ranks.met


def test_a_worker_that_does_not_save_resumes_at_the_beginning_of_the_epoch(tmp_path: Path) -> None:
    """Its data is another than that of the workers whose position the checkpoint has."""
    ranks, step = Ranks(LoneWorld()), Recorder()
    ranks.stop = lambda request: iter([0] * 26 + [143]).__next__
    run = make_run(tmp_path, ranks, epochs=6)
    run.restore()
    assert run.fit(step, [Every(run.save_checkpoint, on_stop=True)]) == 143
    starts = []
    for saves in (True, False):
        ranks.saves = saves
        resumed = make_run(tmp_path, ranks, epochs=6)
        assert not resumed.is_new
        starts.append((resumed.progress.start_update, *resumed.progress.start))
    assert starts == [(27, 2, 70), (20, 2, 0)]
