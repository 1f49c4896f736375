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
SWAPPED, ALONE = "10.77.0.2:1,10.77.0.1:1", "10.77.0.1:2"
VARIABLES = {
    "OMP_NUM_THREADS": "1", "VIRTUAL_ENV": sys.prefix,
    "NETWORK": "tiny", "BATCH_SIZE": "8", "MAX_UPDATE": "30",
}  # fmt: skip
CHOICES = "--debug --save-interval 10 --keep 9 --models-root".split()
IMAGES = (
    "--dataset synthetic --num-examples 320 --batch-size 16 --epochs 3 --save-frequency 1 --keep 9 "
    "--models-root"
).split()
# Of a folder that another host has into one that is here.
RSYNC = """\
#!/bin/sh
test "$1" = -as || exit 2
test -d "$3" || mkdir "$3"
path=${2#*:}
ssh "${2%%:*}" tar -C "'${path%/*}'" -cf - "'${path##*/}'" | tar -C "$3" -xf -
"""


def horovodrun(names: str) -> list[str]:
    return ["horovodrun", "-np", "2", "-H", names, "bash", "config.sh", *CHOICES]


def run_sh(names: str) -> list[str]:
    return ["env", f"HOSTS={names}", "bash", "run.sh", *CHOICES]


def classify(names: str) -> list[str]:
    return ["mpirun", "-np", "2", "-H", names, *MPI_FLAGS, "python", "classify.py", *IMAGES]


def start(two: TwoHosts, command: list[str], models: Path, host: int = 0) -> HostJob:
    """Start a command, whose last word is the --models-root, on the first or the second host."""
    output = two.folder / "output"
    output.unlink(missing_ok=True)
    how: dict[str, Any] = {"folder": ROOT, "path": [PROGRAMS], "variables": VARIABLES}
    return HostJob(two, output, *command, models, host=host, **how)


def train(two: TwoHosts, command: list[str], models: Path, host=0, status=0) -> str:
    with start(two, command, models, host) as job:
        assert job.process.wait(400) == status, job.said()
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


@pytest.mark.parametrize(("before", "now", "starts_on", "typed"), [
    (ADDRESSES, SWAPPED, 1, ["host2", "host1"]),
    (ADDRESSES, ALONE, 0, ["host1"]),
    (ALONE, ADDRESSES, 0, ["host2"]),
], ids=["another order", "a host less", "a host more"])  # fmt: skip
def test_a_run_continues_after_the_commands_of_its_error(
    two, private, on_one_host, tmp_path, before, now, starts_on, typed
) -> None:
    (tmp_path / "rsync").write_text(RSYNC)
    (tmp_path / "rsync").chmod(0o755)
    whole, models = private / f"whole {before}", private / tmp_path.name
    if not exists(two.first, whole):
        train(two, horovodrun(before), whole)
    later = [models / f"checkpoints/update-000000{update}" for update in (20, 30)]
    for host in two.all if before == ADDRESSES else [two.first]:
        host.sh('cp -r "$1" "$2" && rm -rf "$3" "$4" "$2"/model-*', whole, models, *later)
    # Open MPI gives rank 0 to the host on which it is started.
    errors = train(two, horovodrun(now), models, starts_on, status=2)
    line = next(line for line in errors.splitlines() if "error: " in line)
    commands = re.findall(r"(host\d) lacks .*?, type there: (.*?);", line)
    assert [name for name, _ in commands] == typed
    for name, command in commands:
        # Once more, as after an interruption.
        for _ in range(2):
            script = f'HOME="$1" PATH="$2:$PATH"; export HOME; {command}'
            two.all[int(name[-1]) - 1].sh(script, two.folder / "home", tmp_path)
    said = train(two, horovodrun(now), models, starts_on)
    assert "resumed at update 10 from" in said
    parts = [content(host, models) for host in two.all]
    if now == ALONE:
        assert parts[0] == on_one_host["train.py"]
    else:
        assert_spread(parts[::-1] if now == SWAPPED else parts, on_one_host["train.py"])


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
    for controller in ("--mpi", "--gloo"):
        command = f"horovodrun {controller} -np 2 -H {NAMES} bash config.sh --rec '{copies}'"
        status, said = run(two, tmp_path / controller, command)
        assert status != 0
        assert f"error: host2 has another {copies}/train.rec than host1: " in said
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
