"""Numbers that are not finite: seen on all ranks, and nothing is left of a skipped update."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from runtime.mxnet import mx
from tests.support.thread_world import run_ranks
from tests.training.checkpoint.test_resume import Run
from training.checkpoint.reader import Checkpoint
from training.update.finite_guard import FiniteGuard, NonFiniteError
from training.update.gradients import Reduced
from training.update.mixed_precision import LossScale

FINITE = Reduced((), lambda numbers: True)
GOOD, NAN = mx.nd.array([1.0]), mx.nd.array([np.nan])


def spoil(run, what):
    """A rank's features become infinite in the next update, or its gradient while all is fine."""
    head_step = run.head.step

    def step(features, *arguments, **options):
        run.head.step = head_step
        if what == "features":
            features[:] = np.inf
        result = head_step(features, *arguments, **options)
        if what == "gradient":
            result.gradient[:] = 3e38
        return result

    run.head.step = step


def arrays_of(run):
    return {
        f"{name}/{key}": stored.array.copy()
        for name, part in run.parts.items()
        for key, stored in part.export_state(0).arrays.items()
    }


@pytest.mark.parametrize(
    ("spoiled", "loss", "what"),
    [
        ("features", "adaface", "the loss is nan"),
        ("gradient", "arcface", "a gradient of the backbone is not finite"),
    ],
)
def test_a_skipped_update_leaves_nothing_and_all_ranks_stop_at_it(spoiled, loss, what, tmp_path):
    def rank_main(world):
        run = Run(world, tmp_path, loss, batch_norm=True)
        run.step._guard = guard = FiniteGuard("skip")
        run.train(2)
        before = arrays_of(run)
        if world.rank == 1:
            spoil(run, spoiled)
        run.train(3)
        for name, array in arrays_of(run).items():
            np.testing.assert_array_equal(array, before[name], err_msg=name)
        assert guard.skipped == 1
        run.train(4)
        assert guard.skipped == 1
        assert any(np.any(array != before[name]) for name, array in arrays_of(run).items())
        run.step._guard = FiniteGuard("stop", run.saves.last_good)
        run.saves.save(4)
        if world.rank == 1:
            spoil(run, spoiled)
        with pytest.raises(NonFiniteError) as error:
            run.train(5)
        return str(error.value)

    (message,) = set(run_ranks(2, rank_main))
    assert message.startswith(f"update 5: {what}; the last good checkpoint is {tmp_path}")
    Checkpoint(tmp_path / "checkpoints" / "update-00000004").verify(1)


def test_an_update_is_judged_when_the_next_one_is_queued_or_the_run_stops_to_look() -> None:
    judged = []

    def reduced(update: int) -> Reduced:
        def are_finite(numbers: Sequence[float]) -> bool:
            judged.append((update, numbers))
            return update < 2

        return Reduced((mx.nd.array([update + 0.5]), mx.nd.array([7.0])), are_finite)

    guard = FiniteGuard()
    guard.submit(0, GOOD, reduced(0))
    assert judged == []
    guard.submit(1, GOOD, reduced(1))
    assert judged == [(0, [0.5, 7.0])]
    guard.finish()
    guard.finish()
    assert judged == [(0, [0.5, 7.0]), (1, [1.5, 7.0])]
    guard.submit(2, GOOD, reduced(2))
    with pytest.raises(NonFiniteError, match="update 3: a gradient .*; there is no checkpoint yet"):
        guard.submit(3, GOOD, reduced(3))


def test_a_loss_that_is_not_finite_is_not_told_as_an_overflow(caplog) -> None:
    """Its gradients are not finite either; with ``skip`` the loss scale stays as it is."""
    nan = mx.nd.array([np.nan], ctx=mx.cpu(1))
    reduced = LossScale(mx.cpu(1)).judge([nan], 0)
    assert not FiniteGuard("skip").accept(0, nan, reduced)
    assert "update 1 skipped: the loss is nan" in caplog.text
    assert "loss scale" not in caplog.text


def test_a_run_that_only_skips_stops(caplog):
    guard = FiniteGuard("skip")
    assert not guard.accept(0, NAN, FINITE)
    assert guard.accept(1, GOOD, FINITE)
    for update in range(2, 102):
        assert not guard.accept(update, NAN, FINITE)
    assert "update 102 skipped: the loss is nan; 101 skipped in all" in caplog.text
    with pytest.raises(NonFiniteError, match="update 103: .* after 100 skipped updates"):
        guard.accept(102, NAN, FINITE)
