"""``train.py --center-store`` on a disk that is full, and with the store of another run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.campaign import contents
from tests.support.launch import finish

pytestmark = pytest.mark.thorough

UPDATES = 12
# An update writes 200 rows of 4,096 bytes, and those that it overwrites into a log.
OPTIONS = (
    "--debug", "--rec", ".", "--num-classes", 2000, "--network", "tiny",
    "--embedding-size", 512, "--batch-size", 4, "--sample-ratio", 0.1, "--lr", 0.01,
    "--save-interval", 2, "--frequent", 1, "--verbose", 10_000,
)  # fmt: skip
can_mount = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("mount") is None, reason="only root mounts a small disk"
)


def end_of(models: Path, updates: int = UPDATES) -> Path:
    return models / f"checkpoints/update-{updates:08d}"


def train(
    models: Path, *options: object, updates: int = UPDATES
) -> subprocess.CompletedProcess[str]:
    words = (*OPTIONS, "--models-root", models, "--max-update", updates, *options)
    return finish(sys.executable, "train.py", *words, status=None)


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of a run that has ended with an error."""
    assert done.returncode == 2, done.stderr
    (line,) = re.findall(r"^error: .*", done.stderr, re.MULTILINE)
    assert done.stderr.rstrip().endswith(line) and "Traceback" not in done.stderr
    return str(line)


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def enlarge(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=100m", folder], check=True)


@can_mount
@pytest.mark.launcher
def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path: Path) -> None:
    disk, models, undisturbed = (tmp_path / name for name in ("disk", "models", "undisturbed"))
    assert train(undisturbed).returncode == 0
    store = ("--center-store", disk / "centers")
    with small_disk(disk):
        said = error_of(train(models, *store))
        assert f"--center-store {disk / 'centers'} cannot be read or written (No space" in said
        assert "see to its disk and start again: the run goes on from its last checkpoint" in said
        last = sorted((models / "checkpoints").glob("update-*"))[-1]
        assert last.name < end_of(models).name
        enlarge(disk)
        done = train(models, *store)
        assert done.returncode == 0 and f"{last}" in done.stdout + done.stderr, done.stderr
        assert contents(end_of(models), store[1]) == contents(end_of(undisturbed))


def test_the_store_of_another_run_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    models, another, store = (tmp_path / name for name in ("one", "another", "centers"))
    stored = ("--center-store", store)
    assert train(models, *stored, updates=6).returncode == 0
    before = {path.name: path.read_bytes() for path in store.iterdir()}
    further = ("--resume", end_of(models, 6), *stored)
    for folder, options, words in (
        (another, stored, f"--center-store {store} holds the centers of another run, at update 6"),
        # Neither does a run that begins with one of its checkpoints.
        (another, further, f"belongs to the run in {models}, whose checkpoints need it: going on"),
    ):
        assert words in error_of(train(folder, *options))
    assert before == {path.name: path.read_bytes() for path in store.iterdir()}
