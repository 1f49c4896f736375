"""Programs whose files, docstrings or names are gone: each ends with one line, or trains."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.launch import clean_environment

pytestmark = [pytest.mark.thorough, pytest.mark.waits]

ROOT = Path(__file__).resolve().parents[1]
TRAIN = (
    *("train.py", "--dataset", "synthetic", "--debug", "--num-classes", 50, "--num-images", 50),
    *("--embedding-size", 16, "--batch-size", 4, "--verbose", 100_000),
)
CLASSIFY = ("classify.py", "--dataset", "synthetic", "--num-examples", 40, "--batch-size", 8)
SHORT = [(*TRAIN, "--max-update", 2), (*CLASSIFY, "--epochs", 1)]
SECONDS = 120


def start(*words: object, first: tuple[str, ...] = (), **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*first, sys.executable, *map(str, words)],
        cwd=ROOT, env={**clean_environment(), **more}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(program: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        _, errors = program.communicate(timeout=SECONDS)
    finally:
        program.kill()
    return program.returncode, errors


def wait_until(is_so: Callable[[], bool], program: subprocess.Popen[str]) -> None:
    started = time.monotonic()
    while not is_so():
        if program.poll() is not None or time.monotonic() - started > SECONDS:
            raise AssertionError(finish(program))
        time.sleep(0.02)


def has_logged(models: Path, text: str) -> Callable[[], bool]:
    log = models / "logs/rank-0000.log"
    return lambda: log.exists() and text in log.read_text()


@pytest.mark.parametrize("often", ["--frequent", "--save-interval"])
def test_a_folder_that_is_moved_away_is_not_made_again(tmp_path: Path, often: str) -> None:
    """Not by reports, models, checkpoints and the page at the end."""
    models, is_replaced = tmp_path / "run", often == "--frequent"
    rest = {"--frequent": 100_000, "--save-interval": 100_000} | {often: 2}
    options = [word for pair in rest.items() for word in pair]
    program = start(*TRAIN, *options, "--max-update", 3000, "--models-root", models)
    if often == "--frequent":
        wait_until(has_logged(models, "update 4/"), program)
    else:
        wait_until(lambda: any(models.glob("checkpoints/update-*")), program)
    models.rename(tmp_path / "moved")
    if is_replaced:
        models.mkdir()
    status, errors = finish(program)
    assert (status, errors.count("\n")) == (2, 1) and errors.startswith("error: "), errors
    if often == "--frequent":
        assert f"--models-root {models} is no longer the folder in which this run" in errors
        assert "move it back" in errors
    assert not (any(models.iterdir()) if is_replaced else models.exists())
    assert "stopped after update" in (tmp_path / "moved/logs/rank-0000.log").read_text()


@pytest.mark.parametrize(("words", "optimize"), [(SHORT[1], "1"), (SHORT[0], "2")])
def test_programs_run_without_assertions_and_say_that_mxnet_needs_docstrings(
    tmp_path: Path, words: tuple[object, ...], optimize: str
) -> None:
    program = start(*words, "--models-root", tmp_path, PYTHONOPTIMIZE=optimize)
    status, errors = finish(program)
    if optimize == "1":
        assert status == 0 and "Traceback" not in errors, errors
    else:
        assert (status, errors.count("\n")) == (2, 1), errors
        assert errors.startswith("error: python -OO (PYTHONOPTIMIZE=2) removes docstrings")
    shown = start(words[0], "--help", PYTHONOPTIMIZE=optimize)
    assert shown.communicate(timeout=SECONDS) == start(words[0], "--help").communicate()


ELSEWHERE = ("unshare", "-u", "sh", "-c", 'hostname no-such-name-here && exec "$@"', "sh")
NAMELESS = "import socket; socket.gethostbyname(socket.gethostname())"


def has_no_name() -> bool:
    """True if a host of another name can be made here, and the name has no address."""
    if os.geteuid() or not shutil.which("unshare") or not shutil.which("hostname"):
        return False
    made, looked_up = [
        subprocess.run([*ELSEWHERE, *words], capture_output=True, check=False).returncode
        for words in (["true"], [sys.executable, "-c", NAMELESS])
    ]
    return made == 0 and looked_up != 0


def test_a_single_rank_needs_no_address_of_its_host(tmp_path: Path) -> None:
    if not has_no_name():
        pytest.skip("needs root, unshare and hostname, and a name server that knows not every name")
    status, errors = finish(start(*SHORT[0], "--models-root", tmp_path, first=ELSEWHERE))
    assert status == 0 and "error" not in errors, (status, errors)
    assert (tmp_path / "metrics.jsonl").stat().st_size
