"""The length and the learning rate of a run that goes on, also with another global batch."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from data.batches.position import Position
from training.config.faces import parse
from training.progress import Progress, changed_order
from training.schedules import POLY, WarmupAndDecay


class Saved(dict):
    has, count = dict.__contains__, dict.__getitem__


def source(global_batch, num_images=1000):
    return SimpleNamespace(
        num_images=num_images,
        global_batch=global_batch,
        updates_per_epoch=num_images // global_batch,
    )


def config(epochs):
    return parse(["--dataset", "synthetic", "--epochs", str(epochs)]).schedule


def go_on(config, first, stop, then):
    before = Progress.plan(config, source(first))
    saved = Saved(before.export_state(stop).values)
    return before, Progress.plan(config, source(then), saved)


def rates(progress, *updates):
    schedule = progress.shifted(WarmupAndDecay(POLY, 0.1, progress.schedule_updates))
    return [schedule(update) for update in updates]


def test_with_the_same_global_batch_or_a_length_in_updates_nothing_changes():
    in_updates = parse("--dataset synthetic --max-update 40".split()).schedule
    for length, then in ((config(4), 100), (in_updates, 100), (in_updates, 50)):
        before, after = go_on(length, 100, 17, then)
        assert (after.start_update, after.start) == (17, Position(1, 700))
        assert before.total_updates == after.total_updates == 40
        assert after.schedule_shift == 0 and after.schedule_updates == before.schedule_updates == 40


def test_a_length_in_epochs_ends_after_what_is_left_of_them(caplog):
    caplog.set_level("INFO")
    before, after = go_on(config(4), 100, 20, 50)
    assert "batch was 100 and is 50: going on at image 0 of epoch 2" in caplog.text
    # Two epochs of ten updates are over; two of twenty are left.
    assert after.total_updates == 20 + 40
    assert rates(after, 20, 40, 60) == [*rates(before, 20, 30), 0]
    # Going on twice keeps the place.
    again = Progress.plan(config(4), source(50), Saved(after.export_state(30).values))
    assert (again.total_updates, again.schedule_shift) == (60, after.schedule_shift)
    assert again.start == after.epoch_plan.at(30) == Position(2, 500)


def test_a_period_goes_on_through_another_share():
    first = Progress.plan(config(6), source(100))
    assert [first.period_end(every) for every in (None, 2, 6, 9)] == [60, 20, 60, 60]
    second = Progress.from_period(config(6), source(50), epoch=2, update=20)
    assert (second.start_update, second.start) == (20, Position(2, 0))
    assert (second.period_end(2), second.total_updates) == (20 + 2 * 20, 20 + 4 * 20)
    assert rates(first, 20) == rates(second, 20)
    # Fewer images than before, and a period that is the last.
    third = Progress.from_period(config(6), source(250), epoch=4, update=60)
    assert third.period_end(2) == third.total_updates == 60 + 2 * 4
    # Who goes on in the middle of a period meets the others at its end.
    _, saver = go_on(config(6), 100, 27, 100)
    other = go_on(config(6), 100, 27, 50)[1].from_epoch(config(6), source(50))
    assert saver.period_end(2) == 40 and other.period_end(2) == 4 * 20
    assert saver.epoch_plan.at(40) == other.epoch_plan.at(80) == Position(4, 0)


@pytest.mark.parametrize("update", [3, 10])
def test_a_checkpoint_of_another_order_is_told_within_an_epoch(caplog, update):
    values = dict(Progress.plan(config(6), source(100)).export_state(update).values)
    changed = changed_order(
        {"seed": 1, "class_balance": 0.5, "lr": 0.1}, {"seed": 2, "class_balance": 0.5, "lr": 0.2}
    )
    line = "--seed 1 is now 2: in the rest of epoch 0, after image 300, images may"
    Progress.plan(config(6), source(100), Saved(values))
    assert not caplog.messages
    Progress.plan(config(6), source(100), Saved(values), changed)
    assert [line in said for said in caplog.messages] == [True] * (update == 3)


def again(config, first, stop, then):
    """Finish a run, train its schedule again until ``stop``, and go on with another batch."""
    finished = Progress.plan(config, source(first))
    total = finished.total_updates
    done = Progress.plan(config, source(first), Saved(finished.export_state(total).values))
    assert done.is_finished and not finished.is_finished
    second = done.again(config, source(first))
    third = Progress.plan(config, source(then), Saved(second.export_state(stop).values))
    return second, third


def test_a_finished_run_trains_its_schedule_again():
    second, third = again(config(4), 100, 57, 100)
    assert (second.start_update, second.start, second.total_updates) == (40, Position(4, 0), 80)
    assert (second.epochs_before, second.first_epoch, second.is_finished) == (0, 4, False)
    first = Progress.plan(config(4), source(100))
    assert rates(second, *range(40, 81)) == rates(first, *range(41))
    # Interrupted, it goes on with the second schedule.
    assert (third.start_update, third.start, third.total_updates) == (57, Position(5, 700), 80)
    assert rates(third, *range(57, 81)) == rates(second, *range(57, 81))
    assert third.epochs_before == 1.7 and third.first_epoch == 4
    # Of a run that was finished within an epoch, as it is given fewer than it had.
    here = Progress.plan(config(1), source(100), Saved(first.export_state(17).values))
    second = here.again(config(1), source(100))
    assert (second.start_update, second.start, second.total_updates) == (17, Position(2, 0), 27)


def test_a_schedule_that_is_trained_again_goes_on_with_another_global_batch():
    second, third = again(config(4), 100, 60, 50)
    # Two epochs of ten updates are over; two of twenty are left.
    assert third.total_updates == 60 + 40 and third.epochs_before == 2
    assert rates(second, 60, 70) == rates(third, 60, 80)
    period = Progress.from_period(config(4), source(50), 6, 60, third.first_epoch)
    assert (period.total_updates, period.schedule_shift) == (100, third.schedule_shift)
    share = third.from_epoch(config(4), source(50))
    assert (share.start_update, share.start, share.total_updates) == (120, Position(6, 0), 160)
    assert rates(share, 120, 159) == rates(third, 60, 99)
