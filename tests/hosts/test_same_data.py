"""Two hosts with copies of a data set of their own train together if the copies are the same.

If they are not, all ranks end before the first update with one line that names the host.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from data.records.writer import RecordWriter
from data.verification.bin_file import write_bin
from tests.support import hosts
from tests.support.hosts import Host, TwoHosts

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.prefix) / "bin"
NAMES = "host1:1,host2:1"
IMAGES = f"mpirun -np 2 -H {NAMES} -bind-to none python classify.py --dataset imagenet --model "
IMAGES += "mobilenet0.25 --image-size 64 --batch-size 4 --epochs 1"

WHY_NOT = hosts.missing()
pytestmark = [pytest.mark.hosts, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set, in a folder that both hosts see."""
    folder, generator = tmp_path_factory.mktemp("original"), np.random.default_rng(1)
    pixels = generator.integers(0, 256, (12, 28, 28, 3), np.uint8).repeat(4, 1).repeat(4, 2)
    images = [bytes(cv2.imencode(".jpg", image)[1]) for image in pixels]
    with RecordWriter(folder, image_size=(112, 112)) as writer:
        for number, image in enumerate(images):
            writer.write(image, number // 3)
    write_bin(folder / "lfw.bin", images[:10] * 4, [True, False] * 10)
    return folder


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("private")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, private: Path) -> Iterator[TwoHosts]:
    with TwoHosts(tmp_path_factory.mktemp("hosts") / "hosts", private=private) as started:
        yield started


@pytest.fixture
def copies(two: TwoHosts, original: Path, private: Path) -> Path:
    """The folder in which each host has a copy of its own."""
    for host in two.all:
        shell(host, f"rm -rf {private}/* && cp -r {original} {private}/faces")
    return private / "faces"


def shell(host: Host, command: str) -> str:
    return subprocess.check_output(host.inside("sh", "-c", command), text=True)


def run(two: TwoHosts, models: Path, command: str) -> tuple[int, str]:
    """Return the status of a command and what it has printed."""
    result = two.run(
        *command.split(), folder=ROOT, path=[PROGRAMS], OMP_NUM_THREADS="1",
        VIRTUAL_ENV=sys.prefix, NETWORK="tiny", BATCH_SIZE="4", MAX_UPDATE="2",
        MODELS_ROOT=str(models), HOSTS=NAMES,
    )  # fmt: skip
    return result.returncode, result.stdout + result.stderr


def described(path: Path, host: Host) -> str:
    command = f'{PROGRAMS}/python -c "from data.fingerprint import fingerprint as f; '
    code = f"from pathlib import Path; print(f([Path('{path}')])['{path}'])\""
    return shell(host, f"cd {ROOT} && {command}{code}").strip()


def assert_named(two: TwoHosts, path: Path, models: Path, status: int, said: str) -> None:
    """Assert that the one line of an error names the file on the second host."""
    expected, found = described(path, two.first), described(path, two.second)
    assert "bytes" in expected and expected != found
    assert [line.partition("error: ")[2] for line in said.splitlines() if "error: " in line] == [
        f"host2 has another {path} than host1: {found}, not {expected}; copy the data set from one "
        "host to the others"
    ]
    assert status == 2 and "Traceback" not in said and not (models / "checkpoints").exists()


def test_faces(two, copies: Path, tmp_path: Path) -> None:
    """Equal copies train; files that differ and folders that one host lacks are named."""
    train = f"bash run.sh --rec {copies} --val-targets lfw"
    status, said = run(two, tmp_path / "equal", train)
    assert status == 0 and (tmp_path / "equal/model-0000.params").exists(), said
    shell(two.second, f"cd {copies} && truncate -s +1 lfw.bin")
    assert_named(two, copies / "lfw.bin", tmp_path, *run(two, tmp_path, train))
    shell(two.second, f"truncate -s -1000 {copies}/train.rec")
    for controller in ("--mpi", "--gloo"):
        command = f"horovodrun {controller} -np 2 -H {NAMES} bash config.sh --rec {copies}"
        status, said = run(two, tmp_path / controller, command)
        assert status != 0
        assert f"error: host2 has another {copies}/train.rec than host1: " in said
    shell(two.second, f"rm -r {copies}")
    status, said = run(two, tmp_path, train)
    assert status == 2 and f"error: host2: --rec {copies} does not exist" in said


def test_classifiers(two, copies: Path, tmp_path: Path) -> None:
    path = copies / "train.rec"
    command = f"{IMAGES} --rec-train {path} --rec-val {path} --models-root "
    status, said = run(two, tmp_path, f"{command}{tmp_path / 'equal'}")
    assert status == 0, said
    # Another set of the same size: it opens, and trains.
    shell(two.second, f"printf x | dd of={path} bs=1 seek=200 conv=notrunc")
    assert_named(two, path, tmp_path, *run(two, tmp_path, f"{command}{tmp_path}"))
    shell(two.second, f"truncate -s 5 {path}")
    status, said = run(two, tmp_path, f"{command}{tmp_path}")
    assert status == 2 and f"error: host2: {path}" in said


@pytest.mark.parametrize("is_private", [True, False])
def test_hosts_draw_the_synthetic_set_together_or_each_its_own(
    two, copies: Path, private: Path, tmp_path: Path, is_private: bool
) -> None:
    place = (private if is_private else tmp_path) / "drawn"
    drawn = f"--dataset synthetic --num-classes 4 --num-images 40 --rec {place} --rec {copies}"
    status, said = run(two, tmp_path / "models", f"bash run.sh {drawn}")
    assert status == 0, said
    first, second = (shell(host, f"ls {place}").split() for host in two.all)
    assert first == second and "synthetic.json" in first
    assert "part" not in shell(two.first, f"ls -A {place.parent}")
