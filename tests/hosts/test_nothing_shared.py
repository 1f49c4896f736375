"""Two hosts that share nothing but the code train, save and resume the bytes of one host."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from data.records.writer import RecordWriter
from data.verification.bin_file import write_bin
from runtime.state import REPLICATED
from tests.hosts.two_hosts import (
    ADDRESSES,
    MARKS,
    MPI_FLAGS,
    NAMES,
    PROGRAMS,
    ROOT,
    Host,
    HostJob,
    TwoHosts,
)
from training.checkpoint import layout

pytestmark = MARKS
ALONE = "10.77.0.1:2"
VARIABLES = {
    "OMP_NUM_THREADS": "1", "VIRTUAL_ENV": sys.prefix,
    "NETWORK": "tiny", "BATCH_SIZE": "8", "MAX_UPDATE": "30",
}  # fmt: skip
CHOICES = "--debug --save-interval 10 --keep 9 --models-root".split()
IMAGES = (
    "--dataset synthetic --num-examples 320 --batch-size 16 --epochs 3 --save-frequency 1 --keep 9 "
    "--models-root"
).split()


def horovodrun(names: str) -> list[str]:
    return ["horovodrun", "-np", "2", "-H", names, "bash", "config.sh", *CHOICES]


def run_sh(names: str) -> list[str]:
    return ["env", f"HOSTS={names}", "bash", "run.sh", *CHOICES]


def classify(names: str) -> list[str]:
    return ["mpirun", "-np", "2", "-H", names, *MPI_FLAGS, "python", "classify.py", *IMAGES]


def start(two: TwoHosts, command: list[str], models: Path) -> HostJob:
    """Start a command, whose last word is the --models-root, on the first host."""
    output = two.folder / "output"
    output.unlink(missing_ok=True)
    how: dict[str, Any] = {"folder": ROOT, "path": [PROGRAMS], "variables": VARIABLES}
    return HostJob(two, output, *command, models, **how)


def train(two: TwoHosts, command: list[str], models: Path) -> str:
    with start(two, command, models) as job:
        assert job.process.wait(400) == 0, job.said()
    return job.said()


def content(host: Host, models: Path) -> dict[str, Any]:
    """What has to be the same after a run: the weights, and the arrays of the last checkpoint.

    The best model is one of them only where the host had it before.
    """
    last = 'cd "$1" && ls -d model-0*.params $(ls -d checkpoints/update-* | tail -1)/*.json || true'
    found: dict[str, Any] = {}
    for name in host.sh(last, models).split():
        read = subprocess.check_output(host.inside("cat", models / name))
        if name.endswith(".params"):
            found[name] = read
            continue
        for rank, file in layout.parse(read, name).files.items():
            found[f"rank {rank}"] = "is here"
            found.update({
                f"rank {rank}: {entry.name}": entry.checksum
                for entry in file.entries
                if rank == 0 or entry.kind != REPLICATED
            })  # fmt: skip
    return found


def ranks_on(host: Host) -> list[int]:
    programs = ("train.py", "classify.py")
    return [one.pid for one, words in host.running() if "".join(words[1:2]).endswith(programs)]


def exists(host: Host, path: Path) -> bool:
    return subprocess.run(host.inside("test", "-e", path), check=False).returncode == 0


@pytest.fixture(scope="module")
def on_one_host(two: TwoHosts, private: Path) -> dict[str, dict[str, Any]]:
    """What two ranks on one host end with, by program; what compiles first may round otherwise."""
    found = {}
    for name, command in (("train.py", horovodrun), ("classify.py", classify)):
        for attempt in ("compiled", "loaded"):
            models = private / f"{name} {attempt}"
            train(two, command(ALONE), models)
        found[name] = content(two.first, models)
        assert "model-0000.params" in found[name] and len(ranks_of(found[name])) == 2
    return found


def ranks_of(found: dict[str, Any]) -> set[str]:
    return {name for name in found if re.fullmatch(r"rank \d", name)}


def assert_spread(parts: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    first, second = parts
    assert ranks_of(first) == {"rank 0"} and "model-0000.params" in first
    assert ranks_of(second) == {"rank 1"} and "model-0000.params" not in second
    assert {**first, **second} == expected


@pytest.mark.parametrize(("command", "program", "dies"), [
    (horovodrun, "train.py", 1), (run_sh, "train.py", 0), (classify, "classify.py", 1),
], ids=["horovodrun", "run.sh", "classify"])  # fmt: skip
def test_a_killed_run_resumes_to_the_same_bytes(two, private, on_one_host, command, program, dies):
    models = private / command.__name__
    saved = models / "checkpoints/update-00000010"
    with start(two, command(ADDRESSES), models) as job:
        job.wait_until(lambda: all(exists(host, saved) for host in two.all), 400)
        os.kill(ranks_on(two.all[dies])[0], signal.SIGKILL)
        assert job.process.wait(400) != 0
    assert not any(ranks_on(host) for host in two.all)
    said = train(two, command(ADDRESSES), models)
    assert "resumed at update " in said and "re-cut" not in said
    assert_spread([content(host, models) for host in two.all], on_one_host[program])
    first, second = (host.sh('ls "$1"', models).split() for host in two.all)
    assert {"metrics.jsonl", "config.json", "logs", "run.lock"} <= set(first)
    assert second == ["checkpoints", "logs", "run.lock"]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original")
    pixels = np.random.default_rng(1).integers(0, 256, (12, 112, 112, 3), np.uint8)
    images = [bytes(cv2.imencode(".jpg", image)[1]) for image in pixels]
    with RecordWriter(folder, image_size=(112, 112)) as writer:
        for number, image in enumerate(images):
            writer.write(image, number // 3)
    write_bin(folder / "lfw.bin", images[:10] * 4, [True, False] * 10)
    return folder


@pytest.fixture
def copies(two: TwoHosts, original: Path, private: Path) -> Path:
    for host in two.all:
        host.sh('rm -rf "$1"/*; cp -r "$2" "$1/faces"', private, original)
    return private / "faces"


def run(two: TwoHosts, models: Path, command: str) -> tuple[int, str]:
    words = shlex.split(command)
    result = two.train(models, *words, BATCH_SIZE="4", MAX_UPDATE="2", HOSTS=NAMES)
    return result.returncode, result.stdout + result.stderr


def test_faces(two, copies: Path, tmp_path: Path) -> None:
    """Equal copies train; files that differ and folders that one host lacks are named."""
    train = f"bash run.sh --rec '{copies}' --val-targets lfw"
    status, said = run(two, tmp_path / "equal", train)
    assert status == 0 and (tmp_path / "equal/model-0000.params").exists(), said
    two.second.sh('truncate -s +1 "$1/lfw.bin"', copies)
    status, said = run(two, tmp_path, train)
    (line,) = [line for line in said.splitlines() if "error: " in line]
    assert status == 2 and f"error: host2 has another {copies}/lfw.bin than host1: " in line
    assert "Traceback" not in said and not (tmp_path / "checkpoints").exists()
    two.second.sh('truncate -s -1000 "$1/train.rec"', copies)
    command = f"horovodrun --gloo -np 2 -H {NAMES} bash config.sh --rec '{copies}'"
    status, said = run(two, tmp_path / "gloo", command)
    assert status != 0 and f"error: host2 has another {copies}/train.rec than host1: " in said
    two.second.sh('rm -r "$1"', copies)
    status, said = run(two, tmp_path, train)
    assert status == 2 and f"error: host2: --rec {copies} does not exist" in said


@pytest.mark.parametrize("is_private", [True, False])
def test_hosts_draw_the_synthetic_set_once_or_each(two, copies, private, tmp_path, is_private):
    place = (private if is_private else tmp_path) / "drawn"
    drawn = f"--dataset synthetic --num-classes 4 --num-images 40 --rec '{place}' --rec '{copies}'"
    status, said = run(two, tmp_path / "models", f"bash run.sh {drawn}")
    assert status == 0, said
    first, second = (host.sh('ls "$1"', place).split() for host in two.all)
    assert first == second and "synthetic.json" in first
    assert "part" not in two.first.sh('ls -A "$1"', place.parent)
