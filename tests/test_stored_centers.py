"""``train.py --center-store`` on a disk that is full, and with the store of another run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.campaign import contents
from tests.support.alone import assert_one_line
from tests.support.launch import finish

pytestmark = pytest.mark.thorough

# An update writes 200 rows of 4,096 bytes, and those that it overwrites into a log.
OPTIONS = (
    "--debug --rec . --num-classes 2000 --network tiny --embedding-size 512 --batch-size 4 "
    "--sample-ratio 0.1 --lr 0.01 --save-interval 2 --frequent 1 --verbose 10000"
).split()
can_mount = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("mount") is None, reason="only root mounts a small disk"
)


def train(
    models: Path, *options: object, updates: int = 12, status: int = 0
) -> subprocess.CompletedProcess[str]:
    words = (*OPTIONS, "--models-root", models, "--max-update", updates, *options)
    return finish(sys.executable, "train.py", *words, status=status)


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@can_mount
@pytest.mark.launcher
def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path: Path) -> None:
    disk, models, undisturbed = (tmp_path / name for name in ("disk", "models", "undisturbed"))
    train(undisturbed)
    store, end = ("--center-store", disk / "centers"), "checkpoints/update-00000012"
    with small_disk(disk):
        assert_one_line(
            train(models, *store, status=2),
            f"--center-store {disk / 'centers'} cannot be read or written (No space",
            "see to its disk and start again: the run goes on from its last checkpoint",
        )
        last = sorted((models / "checkpoints").glob("update-*"))[-1]
        assert last.name < Path(end).name
        subprocess.run(["mount", "-o", "remount,size=100m", disk], check=True)
        done = train(models, *store)
        assert f"{last}" in done.stdout + done.stderr, done.stderr
        assert contents(models / end, store[1]) == contents(undisturbed / end)


def test_the_store_of_another_run_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    models, another, store = (tmp_path / name for name in ("one", "another", "centers"))
    stored = ("--center-store", store)
    train(models, *stored, updates=6)
    before = {path.name: path.read_bytes() for path in store.iterdir()}
    refused = train(another, *stored, status=2)
    assert_one_line(
        refused, f"--center-store {store} holds the centers of another run, at update 6"
    )
    # Neither does a run that begins with one of its checkpoints.
    further = ("--resume", models / "checkpoints/update-00000006", *stored)
    refused = train(another, *further, status=2)
    assert_one_line(
        refused, f"belongs to the run in {models}, whose checkpoints need it: going on"
    )
    assert before == {path.name: path.read_bytes() for path in store.iterdir()}
