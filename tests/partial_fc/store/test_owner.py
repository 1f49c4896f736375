"""Whose a store is, and when it is made anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.errors import ConfigError, DataError
from runtime.mxnet import mx
from tests.support.stored_head import (
    CLASSES,
    EMBEDDING,
    SavedStore,
    advance,
    are_equal,
    create,
    joined,
    opened,
    trained,
)
from tests.support.thread_world import run_ranks


def test_the_store_of_another_run_is_not_overwritten(tmp_path: Path) -> None:
    number = trained(tmp_path)

    def run(world: Any) -> None:
        head = create(world, tmp_path)
        try:
            advance(world, head, 0, 1)
        finally:
            head.rows.close()

    with pytest.raises(ConfigError, match="holds the centers of another run, at update 8; give"):
        run_ranks(1, run)
    with pytest.raises(DataError, match="is not the store of this checkpoint"):
        opened(tmp_path, number + 1, 8)
    with pytest.raises(DataError, match="does not reach back to update 6"):
        opened(tmp_path, number, 6)
    opened(tmp_path, number, 8)


def test_a_store_that_no_checkpoint_needs_is_made_anew(tmp_path: Path) -> None:
    def run(world: Any) -> Any:
        head = create(world, tmp_path)
        head.export_state(0)
        advance(world, head, 0, 3)
        arrays = head.rows.export()
        head.rows.close()
        return arrays

    first, second = run_ranks(1, run)[0], run_ranks(1, run)[0]
    assert are_equal(first, second)


def test_a_store_in_use_is_refused(tmp_path: Path) -> None:
    def run(world: Any) -> None:
        head = create(world, tmp_path)
        try:
            with pytest.raises(ConfigError, match="is in use by another run; give each run"):
                create(world, tmp_path)
        finally:
            head.rows.close()

    run_ranks(1, run)


def test_a_checkpoint_of_a_store_needs_its_folder(tmp_path: Path) -> None:
    number = trained(tmp_path)

    def run(world: Any) -> None:
        create(world, None).load_state(SavedStore(number, 8))

    with pytest.raises(DataError, match="are in the store of its run; give its folder with"):
        run_ranks(1, run)


def began(folder: Path, run: Path, *, killed: bool) -> Any:
    """Begin a run, which ends without a checkpoint if it is killed; returns the centers."""

    def rank(world: Any) -> Any:
        head = create(world, folder)
        try:
            head.begin(run)
            head.export_state(0)
            advance(world, head, 0, 3)
            # The checkpoint is begun; only ``when_saved`` would say that it exists.
            state = head.export_state(3)
            arrays = head.rows.export()
            if not killed:
                assert state.when_saved is not None
                state.when_saved([3])
        finally:
            head.rows.close()
        return arrays

    return joined(run_ranks(2, rank))


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew(tmp_path: Path) -> None:
    store, run = tmp_path / "store", tmp_path / "run"
    first = began(store, run, killed=True)
    # Nobody else may: the checkpoint may exist.
    with pytest.raises(ConfigError, match="holds the centers of another run, at update 3; give"):
        began(store, tmp_path / "another", killed=True)
    assert are_equal(began(store, run, killed=False), first)
    with pytest.raises(ConfigError, match="holds the centers of another run"):
        began(store, run, killed=True)


def test_centers_that_are_read_are_those_of_a_new_run(tmp_path: Path) -> None:
    (tmp_path / "centers").mkdir()
    values = np.full((CLASSES, EMBEDDING), 0.75, np.float32)
    mx.nd.save(str(tmp_path / "centers" / "0_centers.param"), mx.nd.array(values))

    def run(world: Any) -> None:
        head = create(world, tmp_path / "store", pretrained_centers=str(tmp_path / "centers"))
        head.begin(tmp_path)
        assert np.array_equal(head.rows.export()["centers"], values)
        assert not head.rows.export()["momenta"].any()
        head.rows.close()

    run_ranks(1, run)
