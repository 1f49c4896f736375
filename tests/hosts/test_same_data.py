"""Two hosts with own copies of a set train if these are the same; else a line names the host."""

import shlex
from pathlib import Path

import cv2
import numpy as np
import pytest

from data.records.writer import RecordWriter
from data.verification.bin_file import write_bin
from tests.support.hosts import MARKS, NAMES, TwoHosts

pytestmark = MARKS


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
