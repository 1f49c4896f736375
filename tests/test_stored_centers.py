"""``train.py --center-store`` on disks that are full or slow, and with the store of another run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.faults.campaign import contents
from tests.support.launch import clean_environment

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[1]
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
    models: Path, *options: object, program: str = "train", updates: int = UPDATES
) -> subprocess.CompletedProcess[str]:
    words = (*OPTIONS, "--models-root", models, "--max-update", updates, *options)
    return subprocess.run(
        [sys.executable, "-m", program, *map(str, words)],
        cwd=ROOT, env=clean_environment(), capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run with its centers in memory ends with."""
    models = tmp_path_factory.mktemp("undisturbed")
    done = train(models)
    assert done.returncode == 0, done.stderr
    return contents(end_of(models))


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
def test_a_full_disk_is_one_line_and_loses_nothing(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    disk, models = tmp_path / "disk", tmp_path / "models"
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
        assert contents(end_of(models), store[1]) == undisturbed


def test_a_slow_disk_costs_time_and_nothing_else(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    store = tmp_path / "centers"
    done = train(tmp_path, "--center-store", store, program="tests.support.slow_store")
    assert done.returncode == 0, done.stderr
    assert contents(end_of(tmp_path), store) == undisturbed
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    waiting = [record.get("waiting_for_rows", 0.0) for record in map(json.loads, lines)]
    assert 0.2 < max(waiting) < 1


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
    assert train(models, *stored, updates=7).returncode == 0
    contents(end_of(models, 7), store)
