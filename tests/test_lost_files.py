"""Programs whose files, docstrings, names or room are gone: each ends with one line, or trains."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.campaign import contents
from tests.support.alone import assert_one_line
from tests.support.job import Started
from tests.support.launch import finish

pytestmark = [pytest.mark.thorough, pytest.mark.waits]

TRAIN = (
    "train.py --debug --rec . --num-classes 50 --num-images 50 --network tiny "
    "--embedding-size 16 --batch-size 4 --verbose 100000 --max-update"
).split()


@pytest.mark.parametrize("often", ["--frequent", "--save-interval"])
def test_a_folder_that_is_moved_away_is_not_made_again(tmp_path: Path, often: str) -> None:
    models, is_replaced = tmp_path / "run", often == "--frequent"
    seldom = ("--frequent", 100_000, "--save-interval", 100_000)
    words = (*TRAIN, 3000, *seldom, often, 2, "--models-root", models)
    with Started(tmp_path, sys.executable, *words) as job:
        if is_replaced:
            job.wait_until(lambda: "update 4/" in job.said())
        else:
            job.wait_until(lambda: any(models.glob("checkpoints/update-*")))
        models.rename(tmp_path / "moved")
        if is_replaced:
            models.mkdir()
        assert job.wait() == 2
    (error,) = re.findall("^error: .*", job.said(), re.MULTILINE)
    assert "Traceback" not in job.said()
    if is_replaced:
        about = f"--models-root {models} is no longer the folder in which this run .* move it back"
        assert re.search(about, error)
    assert not (any(models.iterdir()) if is_replaced else models.exists())
    assert "stopped after update" in (tmp_path / "moved/logs/rank-0000.log").read_text()


def test_programs_run_without_assertions_and_give_help_without_docstrings(tmp_path: Path) -> None:
    words = "classify.py --dataset synthetic --num-examples 40 --batch-size 8 --epochs 1".split()
    command = (sys.executable, *words, "--models-root", str(tmp_path))
    done = finish(*command, PYTHONOPTIMIZE="1")
    assert "Traceback" not in done.stderr
    shown, expected = (finish(*command[:2], "--help", PYTHONOPTIMIZE=level) for level in "20")
    assert (shown.stdout, shown.stderr) == (expected.stdout, expected.stderr)


ELSEWHERE = ("unshare", "-u", "sh", "-c", 'hostname no-such-name-here && exec "$@"', "sh")


def test_a_single_rank_needs_no_address_of_its_host(tmp_path: Path) -> None:
    if os.geteuid() or not shutil.which("unshare") or subprocess.call([*ELSEWHERE, "true"]):
        pytest.skip("needs root, unshare and hostname")
    done = finish(*ELSEWHERE, sys.executable, *TRAIN, 2, "--models-root", tmp_path)
    assert "error" not in done.stderr, done.stderr
    assert (tmp_path / "metrics.jsonl").stat().st_size


# An update writes 200 rows of 4,096 bytes, and those that it overwrites into a log.
STORED = (
    "--debug --rec . --num-classes 2000 --network tiny --embedding-size 512 --batch-size 4 "
    "--sample-ratio 0.1 --lr 0.01 --save-interval 2 --frequent 1 --verbose 10000 --max-update 12"
).split()


def train_stored(models: Path, *options: object, status: int = 0):
    words = (*STORED, "--models-root", models, *options)
    return finish(sys.executable, "train.py", *words, status=status)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="only root mounts")
@pytest.mark.launcher
def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path: Path) -> None:
    disk, models, undisturbed = (tmp_path / name for name in ("disk", "models", "undisturbed"))
    train_stored(undisturbed)
    store, end = ("--center-store", disk / "centers"), "checkpoints/update-00000012"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", disk], check=True)
    try:
        assert_one_line(
            train_stored(models, *store, status=2),
            f"--center-store {disk / 'centers'} cannot be read or written (No space",
            "see to its disk and start again: the run goes on from its last checkpoint",
        )
        last = sorted((models / "checkpoints").glob("update-*"))[-1]
        assert last.name < Path(end).name
        subprocess.run(["mount", "-o", "remount,size=100m", disk], check=True)
        done = train_stored(models, *store)
        assert f"{last}" in done.stdout + done.stderr, done.stderr
        assert contents(models / end, store[1]) == contents(undisturbed / end)
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)
