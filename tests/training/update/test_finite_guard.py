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
from training.update.loss_scale import LossScale
from training.update.reduced import Reduced

FINITE = Reduced((), lambda numbers: True)


def spoil_features(run):
    """A rank's features become infinite, in this update alone."""
    head_step = run.head.step

    def step(features, *arguments, **options):
        run.head.step = head_step
        features[:] = np.inf
        return head_step(features, *arguments, **options)

    run.head.step = step


def spoil_centers(run):
    run.head.rows.export()["centers"][0, 0] = np.nan


def spoil_gradient(run):
    """A rank's gradient of the backbone overflows while the loss is fine."""
    head_step = run.head.step

    def step(*arguments, **options):
        run.head.step = head_step
        result = head_step(*arguments, **options)
        result.gradient[:] = 3e38
        return result

    run.head.step = step


def arrays_of(run):
    found = {}
    for name, part in run.parts.items():
        state = part.export_state(0)
        found.update({f"{name}/{key}": stored.array for key, stored in state.arrays.items()})
    return found


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (spoil_features, "the loss is nan"),
        (spoil_centers, "the loss is nan"),
        (spoil_gradient, "a gradient of the backbone is not finite"),
    ],
)
def test_all_ranks_stop_at_the_update(spoil, what, tmp_path):
    def rank_main(world):
        run = Run(world, tmp_path)
        run.step._guard = FiniteGuard("stop", run.saves.last_good)
        run.train(2)
        run.saves.save(2)
        if world.rank == 1:
            spoil(run)
        with pytest.raises(NonFiniteError) as error:
            run.train(3)
        return str(error.value)

    messages = run_ranks(2, rank_main)
    assert messages[0] == messages[1]
    assert messages[0].startswith(f"update 3: {what}; the last good checkpoint is {tmp_path}")
    Checkpoint(tmp_path / "checkpoints" / "update-00000002").verify(1)


@pytest.mark.parametrize("spoil", [spoil_features, spoil_gradient])
@pytest.mark.parametrize("loss", ["arcface", "adaface"])
def test_a_skipped_update_leaves_nothing(spoil, loss, tmp_path):
    def rank_main(world):
        run = Run(world, tmp_path, loss, batch_norm=True)
        run.step._guard = guard = FiniteGuard("skip")
        run.train(2)
        before = {name: array.copy() for name, array in arrays_of(run).items()}
        if world.rank == 1:
            spoil(run)
        run.train(3)
        for name, array in arrays_of(run).items():
            np.testing.assert_array_equal(array, before[name], err_msg=name)
        assert guard.skipped == 1
        run.train(4)
        assert guard.skipped == 1
        return any(np.any(array != before[name]) for name, array in arrays_of(run).items())

    assert run_ranks(2, rank_main) == [True, True]


def test_skipping_changes_nothing_as_long_as_all_is_finite(tmp_path):
    def rank_main(world, on_nan):
        run = Run(world, tmp_path, batch_norm=True, go_on="never")
        run.step._guard = FiniteGuard(on_nan)
        return run.train(4)

    stopping, skipping = (
        run_ranks(2, lambda world, on_nan=on_nan: rank_main(world, on_nan))
        for on_nan in ("stop", "skip")
    )
    assert stopping == skipping


def test_an_update_is_judged_when_the_next_one_is_queued_or_the_run_stops_to_look() -> None:
    judged = []

    def reduced(update: int) -> Reduced:
        def are_finite(numbers: Sequence[float]) -> bool:
            judged.append((update, numbers))
            return update < 2

        return Reduced((mx.nd.array([update + 0.5]), mx.nd.array([7.0])), are_finite)

    guard = FiniteGuard()
    guard.submit(0, mx.nd.array([1.0]), reduced(0))
    assert judged == []
    guard.submit(1, mx.nd.array([1.0]), reduced(1))
    assert judged == [(0, [0.5, 7.0])]
    guard.finish()
    guard.finish()
    assert judged == [(0, [0.5, 7.0]), (1, [1.5, 7.0])]
    guard.submit(2, mx.nd.array([1.0]), reduced(2))
    with pytest.raises(NonFiniteError, match="update 3: a gradient of the backbone"):
        guard.submit(3, mx.nd.array([1.0]), reduced(3))


@pytest.mark.parametrize("on_nan", ["stop", "skip"])
def test_a_loss_that_is_not_finite_is_not_told_as_an_overflow(
    on_nan: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its gradients are not finite either; with ``skip`` the loss scale stays as it is."""
    device = mx.cpu(1)
    guard, scale = FiniteGuard(on_nan), LossScale(dynamic=True, ctx=device)
    nan = mx.nd.array([np.nan], ctx=device)
    reduced = scale.judge([nan], 0)
    if on_nan == "stop":
        guard.submit(0, nan, reduced)
        with pytest.raises(NonFiniteError, match="update 1: the loss is nan"):
            guard.finish()
    else:
        assert not guard.accept(0, nan, reduced)
        assert "update 1 skipped: the loss is nan" in caplog.text
    assert "loss scale" not in caplog.text


@pytest.mark.parametrize("good", [0, 1])
def test_a_run_that_only_skips_stops(good, caplog):
    guard = FiniteGuard("skip")
    nan = mx.nd.array([np.nan])
    for update in range(good):
        assert guard.accept(update, mx.nd.array([1.0]), FINITE)
    for update in range(100):
        assert not guard.accept(update, nan, FINITE)
    assert "update 100 skipped: the loss is nan; 100 skipped in all" in caplog.text
    with pytest.raises(NonFiniteError, match="update 101: .* after 100 skipped updates"):
        guard.accept(100, nan, FINITE)
