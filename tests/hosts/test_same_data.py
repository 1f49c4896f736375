"""Two hosts with copies of a data set of their own train together if the copies are the same.

If they are not, all ranks end before the first update with one line that names the host.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
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


def run(
    two: TwoHosts, models: Path, *command: object, **variables: str
) -> subprocess.CompletedProcess[str]:
    return two.run(
        *command, folder=ROOT, path=[PROGRAMS], OMP_NUM_THREADS="1", VIRTUAL_ENV=sys.prefix,
        NETWORK="tiny", BATCH_SIZE="4", MAX_UPDATE="2", MODELS_ROOT=str(models), HOSTS=NAMES,
        **variables,
    )  # fmt: skip


def train(two: TwoHosts, models: Path, data: Path, *options: str):
    return run(two, models, "bash", "run.sh", "--rec", data, "--val-targets", "lfw", *options)


def assert_refused(result: subprocess.CompletedProcess[str], models: Path, words: str) -> None:
    assert result.returncode == 2, result.stdout + result.stderr
    said = (result.stdout + result.stderr).splitlines()
    assert [line.partition("error: ")[2] for line in said if "error: " in line] == [words]
    assert "Traceback" not in result.stderr and not (models / "checkpoints").exists()


def test_equal_copies_train(two, copies: Path, tmp_path: Path) -> None:
    result = train(two, tmp_path, copies)
    assert result.returncode == 0, result.stdout + result.stderr
    assert (tmp_path / "model-0000.params").exists()


def described(path: Path, host: Host) -> str:
    command = f'{PROGRAMS}/python -c "from data.fingerprint import fingerprint as f; '
    return shell(
        host,
        f"cd {ROOT} && {command}from pathlib import Path; print(f([Path('{path}')])['{path}'])\"",
    ).strip()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("train.rec", "truncate -s -1000 train.rec"),
        # Of an earlier set with other images.
        ("train.idx", "sed -i '$d' train.idx"),
        ("train.idx", "rm train.idx"),
        ("property", "echo 5,112,112 >property"),
        ("lfw.bin", "rm lfw.bin"),
        ("lfw.bin", "truncate -s +1 lfw.bin"),
        ("train.rec", "rm train.*"),
    ],
)
def test_another_copy_on_the_second_host_is_named(
    two, copies: Path, tmp_path: Path, name: str, change: str
) -> None:
    shell(two.second, f"cd {copies} && {change}")
    path = copies / name
    expected, found = described(path, two.first), described(path, two.second)
    assert "bytes" in expected and expected != found
    assert_refused(
        train(two, tmp_path, copies), tmp_path,
        f"host2 has another {path} than host1: {found}, not {expected}; copy the data set from one "
        "host to the others",
    )  # fmt: skip


def test_a_folder_that_the_second_host_lacks_is_named_with_it(two, copies, tmp_path) -> None:
    shell(two.second, f"rm -r {copies}")
    result = train(two, tmp_path, copies)
    assert result.returncode == 2
    assert f"error: host2: --rec {copies} does not exist" in result.stdout + result.stderr


@pytest.mark.parametrize("controller", ["--mpi", "--gloo"])
def test_horovodrun(two, copies: Path, tmp_path: Path, controller: str) -> None:
    shell(two.second, f"truncate -s -1000 {copies}/train.rec")
    command = ("horovodrun", controller, "-np", "2", "-H", NAMES, "bash", "config.sh")
    result = run(two, tmp_path, *command, "--rec", copies)
    assert result.returncode != 0
    assert f"error: host2 has another {copies}/train.rec than host1: " in (
        result.stdout + result.stderr
    )


IMAGES = (
    "classify.py --dataset imagenet --model mobilenet0.25 --image-size 64 --batch-size 4 --epochs 1"
)


@pytest.mark.parametrize("equal", [True, False])
def test_classifiers(two, copies: Path, tmp_path: Path, equal: bool) -> None:
    if not equal:
        # Another set of the same size: it opens, and trains.
        shell(two.second, f"cd {copies} && printf x | dd of=train.rec bs=1 seek=200 conv=notrunc")
    options = (
        f"--rec-train {copies}/train.rec --rec-val {copies}/train.rec --models-root {tmp_path}"
    )
    command = f"mpirun -np 2 -H {NAMES} -bind-to none python {IMAGES} {options}"
    result = run(two, tmp_path, *command.split())
    if equal:
        assert result.returncode == 0, result.stdout + result.stderr
        return
    path = copies / "train.rec"
    expected, found = described(path, two.first), described(path, two.second)
    assert_refused(
        result, tmp_path,
        f"host2 has another {path} than host1: {found}, not {expected}; copy the data set from one "
        "host to the others",
    )  # fmt: skip


def test_a_set_that_does_not_open_on_one_host_is_named_with_it(two, copies, tmp_path) -> None:
    shell(two.second, f"truncate -s 5 {copies}/train.rec")
    options = (
        f"--rec-train {copies}/train.rec --rec-val {copies}/train.rec --models-root {tmp_path}"
    )
    command = f"mpirun -np 2 -H {NAMES} -bind-to none python {IMAGES} {options}"
    result = run(two, tmp_path, *command.split())
    assert result.returncode == 2
    assert f"error: host2: {copies}/train.rec" in result.stderr


@pytest.fixture
def places(private: Path, tmp_path: Path) -> Callable[[bool], Path]:
    return lambda is_private: private / "drawn" if is_private else tmp_path / "drawn"


@pytest.mark.parametrize("is_private", [True, False])
def test_hosts_draw_the_synthetic_set_together_or_each_its_own(
    two, copies: Path, tmp_path: Path, places, is_private: bool
) -> None:
    place = places(is_private)
    drawn = f"--dataset synthetic --num-classes 4 --num-images 40 --rec {place} --rec {copies}"
    result = run(two, tmp_path / "models", "bash", "run.sh", *drawn.split())
    assert result.returncode == 0, result.stdout + result.stderr
    for host in two.all:
        assert shell(host, f"ls {place}").split() == shell(two.first, f"ls {place}").split()
        assert "synthetic.json" in shell(host, f"ls {place}")
    assert "part" not in shell(two.first, f"ls -A {place.parent}")
