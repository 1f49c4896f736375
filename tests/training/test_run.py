"""A run: what it knows when it begins, its folder, and whose data it compares."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock, call

import pytest

from data.batches.position import EpochPlan, Position
from parallel.world import LoneWorld
from runtime.errors import ConfigError
from runtime.mxnet import mx
from runtime.state import State
from runtime.stopwatch import Stopwatch
from tests.support.thread_world import ThreadWorld, run_ranks
from training import run_folder
from training.checkpoint import resume
from training.config import faces, images
from training.exchange.ranks import Period, Ranks
from training.log.run_log import RunLog
from training.loop import Every, Step
from training.run import Run, open_run
from training.run_folder import Storage, locked


class Source:
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


class Recorder(Step):
    def __init__(self) -> None:
        self.batches, self.rates = [], []

    def __call__(self, batch: Any, update: int, lr: float) -> Any:
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

    pauses, settled = [], []
    ranks.pause, ranks.settle = pauses.append, settled.append
    ranks.numbers = lambda: {"staleness": 2.0}
    assert run.fit(step, [Every(save, epochs=1, on_stop=True)], lambda: {"loss": 1.0}) == 0
    assert ranks.met == [(2, 20), (4, 130)]
    assert pauses == [10, 20, 125, 130, 235, 240] and settled == [20, 130, 240]
    assert run.log.folder.check.call_count == 4 + 2
    facts = {"total_updates": 60, "ranks": 1, "device": ""}
    run.log.files.begin_part.assert_called_once_with(0, facts)
    assert run.log.files.sample.mock_calls == [call(step.batches[number]) for number in (0, 20, 30)]
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


def test_a_run_that_is_told_to_end_does_not_rebalance_or_trains_no_further(tmp_path: Path) -> None:
    for name, replaced, status, updates in (
        ("stop", lambda request: iter([0, 143]).__next__, 143, 2),
        ("rebalance", lambda *_: None, 0, 20),
    ):
        ranks, step = Rebalanced(), Recorder()
        setattr(ranks, name, replaced)
        run = make_run(tmp_path / name, ranks, epochs=6)
        run.restore()
        assert run.fit(step, []) == status and len(step.batches) == updates and not ranks.met


def test_a_worker_that_does_not_save_resumes_at_the_beginning_of_the_epoch(tmp_path: Path) -> None:
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
        starts.append((resumed.progress.start_update, *resumed.progress.epoch_plan.start))
    assert starts == [(27, 2, 70), (20, 2, 0)]


@pytest.mark.parametrize(("given", "folder"), [
    ({"dataset": "synthetic"}, "./models/synthetic-tiny"),
    ({"rec": ("/data/faces/train.rec",)}, "./models/faces-r50"),
    ({"rec": ("../a", "/b/c")}, "./models/a+c-r50"),
    ({"dataset": "emore", "rec": ("/ram/disk",)}, "./models/disk-r100"),
    # Of many sets, a name that file systems take.
    ({"rec": ("a" * 60, "b" * 60)}, f"./models/{'a' * 60}+{'b' * 39}-r50"),
])  # fmt: skip
def test_faces_have_a_folder_by_data_and_network(given: dict[str, Any], folder: str) -> None:
    assert faces.resolve(given).run.models_root == folder


def test_a_second_run_is_refused_with_the_name_of_the_first(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--rec", "my faces\n"])
    monkeypatch.setattr(run_folder, "_SECONDS_SAME_HOST", 0.0)
    root = tmp_path / "very/deep"
    with locked(root):
        for _ in range(2):
            with pytest.raises(ConfigError) as caught, locked(root):
                pass
        with locked(tmp_path):
            pass
    message = str(caught.value)
    holder = f"host {os.uname().nodename}, process {os.getpid()}, python"
    assert f"another run writes into --models-root {root}: {holder}" in message
    assert " train.py --rec 'my faces" in message and "\n" not in message
    with locked(root):
        assert f"process {os.getpid()}, " in (root / "run.lock").read_text()


def test_a_run_on_another_host_that_is_about_to_end_is_waited_for(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(run_folder, "_SECONDS_SAME_HOST", 0.0)
    first, ended = locked(tmp_path), []
    first.__enter__()
    (tmp_path / "run.lock").write_text("host far.away, process 7, python train.py\n")
    ending = threading.Timer(0.5, lambda: (ended.append(True), first.__exit__(None, None, None)))
    ending.start()
    with locked(tmp_path):
        assert ended
    ending.join()


def test_a_file_system_without_locks_gives_a_warning(tmp_path, capsys, monkeypatch) -> None:
    refuse = Mock(side_effect=OSError(errno.ENOLCK, os.strerror(errno.ENOLCK)))
    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(tmp_path):
        assert "run.lock cannot be locked (No locks available)" in capsys.readouterr().err


def test_one_rank_of_each_host_reads_and_all_are_told_the_same(monkeypatch) -> None:
    paths, read = [Path("train.rec"), Path("train.idx")], []

    def fingerprint(given: list[Path]) -> dict[str, str]:
        read.append(os.uname().nodename)
        assert given == paths
        return {"train.idx": f"as on {read[-1]}"}

    def rank_main(world: ThreadWorld) -> str:
        world.local_rank = world.rank % 2
        host = ("left", "right")[world.rank // 2]
        monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename=host))
        with pytest.raises(ConfigError) as error:
            run_folder.check_data(paths, world)
        return str(error.value)

    monkeypatch.setattr(run_folder, "fingerprint", fingerprint)
    (said,) = {*run_ranks(4, rank_main)}
    assert said.startswith("right has another train.idx than left: ") and "; copy the" in said
    # One rank, and data without files, compare nothing.
    for given, size in ((paths, 1), ([], 2)):
        run_folder.check_data(given, SimpleNamespace(size=size, local_rank=0))
    assert sorted(read) == ["left", "right"]


NINE = {"images": 9, "fingerprint": "a"}


@pytest.mark.parametrize(("before", "here", "is_same"), [
    (NINE, NINE, True),
    ({**NINE, "more": 1}, NINE, True),
    (None, NINE, True),
    *((NINE, {**NINE, **change}, False)
      for change in ({"images": 12}, {"images": 8}, {"fingerprint": "b"})),
    # What is damaged describes other images.
    *((damaged, NINE, False) for damaged in (7, [], {}, "none")),
])  # fmt: skip
def test_other_images_are_an_error_or_a_warning(before, here, is_same: bool, caplog) -> None:
    manifest = SimpleNamespace(about={} if before is None else {"data": before})
    checkpoint = SimpleNamespace(manifest=manifest)
    saved = SimpleNamespace(path=Path("update-00000008"), checkpoint=checkpoint)
    message = f"update-00000008 was trained on other images: .* {here['images']} here"
    with nullcontext() if is_same else pytest.raises(ConfigError, match=message):
        resume.check_images(saved, here, insists=False)
    assert not caplog.messages
    resume.check_images(saved, here, insists=True)
    told = [] if is_same else ["with other images than update-00000008 was trained on"]
    assert len(caplog.messages) == len(told) and all(one in caplog.text for one in told)
