"""Each data set and network has a folder of its own, and each folder one run at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from runtime.errors import ConfigError, DataError
from training import run_folder
from training.config import faces
from training.run_folder import locked

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ({"dataset": "synthetic"}, "./models/synthetic-tiny"),
        ({"rec": ("datasets/faces/",), "network": "mbf"}, "./models/faces-mbf"),
        ({"rec": ("/data/faces/train.rec",)}, "./models/faces-r50"),
        ({"rec": ("../a", "/b/c")}, "./models/a+c-r50"),
        ({"dataset": "emore", "rec": ("/ram/disk",)}, "./models/disk-r100"),
        ({"rec": ("a",), "models_root": "./models"}, "./models"),
        # Of many sets, a name that file systems take.
        ({"rec": ("a" * 60, "b" * 60)}, f"./models/{'a' * 60}+{'b' * 39}-r50"),
    ],
)
def test_faces_have_a_folder_by_data_and_network(given: dict[str, Any], folder: str) -> None:
    assert faces.resolve(given).run.models_root == folder


def claim(folder: Path) -> None:
    with locked(folder):
        assert f"process {os.getpid()}, " in (folder / "run.lock").read_text()
    assert (folder / "run.lock").read_text() == ""


@pytest.fixture
def no_patience(monkeypatch) -> None:
    monkeypatch.setattr(run_folder, "_SECONDS_SAME_HOST", 0.0)
    monkeypatch.setattr(run_folder, "_SECONDS_OTHER_HOST", 0.0)


def test_a_second_run_is_refused_with_the_name_of_the_first(no_patience, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--rec", "my faces\n"])
    root = tmp_path / "very/deep"
    with locked(root):
        for _ in range(2):
            with pytest.raises(ConfigError) as caught:
                claim(root)
        # No other folder was taken.
        claim(tmp_path)
    message = str(caught.value)
    holder = f"host {os.uname().nodename}, process {os.getpid()}, python"
    assert f"another run writes into --models-root {root}: {holder}" in message
    assert " train.py --rec 'my faces" in message and "\n" not in message
    claim(root)


@pytest.mark.parametrize("host", [os.uname().nodename, "far.away"])
def test_a_run_that_is_about_to_end_is_waited_for(host: str, tmp_path: Path, monkeypatch) -> None:
    """Longer where its host is another one, which may be gone."""
    if host == "far.away":
        monkeypatch.setattr(run_folder, "_SECONDS_SAME_HOST", 0.0)
    first, ended = locked(tmp_path), []
    first.__enter__()
    (tmp_path / "run.lock").write_text(f"host {host}, process 7, python train.py\n")
    ending = threading.Timer(0.5, lambda: (ended.append(host), first.__exit__(None, None, None)))
    ending.start()
    with locked(tmp_path):
        assert ended == [host]
    ending.join()


def test_the_lock_of_a_killed_process_is_taken_over(no_patience: None, tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from training.run_folder import locked\n"
        "with locked(Path(sys.argv[1])):\n"
        "    assert 'mxnet' not in sys.modules\n"
        "    print('locked', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(ConfigError, match=f"process {process.pid}, "):
            claim(tmp_path)
        process.send_signal(signal.SIGKILL)
    claim(tmp_path)


def test_a_lock_that_another_host_left_gives_a_warning(tmp_path: Path, capsys) -> None:
    (tmp_path / "run.lock").write_text("host far.away, process 7, python train.py\n\0more")
    claim(tmp_path)
    said = capsys.readouterr().err
    assert "left without a regular end by a run of host far.away, process 7, python" in said
    claim(tmp_path)
    assert capsys.readouterr().err == ""


def test_a_full_disk_hides_no_error(tmp_path: Path, monkeypatch) -> None:
    """What the disk has not taken is written again when the lock is closed."""
    lock = open("/dev/full", "w")
    lock.write("host")
    monkeypatch.setattr(run_folder, "_lock", lambda models_root: lock)
    with pytest.raises(DataError, match="the data is broken"):
        with locked(tmp_path):
            raise DataError("the data is broken")


def test_a_file_system_without_locks_gives_a_warning(tmp_path: Path, capsys, monkeypatch) -> None:
    refuse = Mock(side_effect=OSError(errno.ENOLCK, os.strerror(errno.ENOLCK)))
    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(tmp_path):
        assert "run.lock cannot be locked (No locks available)" in capsys.readouterr().err
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="--models-root .*/file/run cannot be written"):
        claim(tmp_path / "file" / "run")
