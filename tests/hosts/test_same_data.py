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
from tests.support.hosts import Host, TwoHosts

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.prefix) / "bin"
NAMES = "host1:1,host2:1"
RUN = ("bash", "run.sh", "--val-targets", "lfw")
HOROVODRUN = ("horovodrun", "--gloo", "-np", "2", "-H", NAMES, "bash", "config.sh")
IMAGES = (
    f"mpirun -np 2 -H {NAMES} -bind-to none python classify.py --dataset imagenet "
    "--model mobilenet0.25 --image-size 64 --batch-size 4 --epochs 1"
).split()


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
    two: TwoHosts, models: Path, data: Path, *command: object
) -> subprocess.CompletedProcess[str]:
    """With a set of faces, or of images."""
    records = data / "train.rec"
    sets = ("--rec-train", records, "--rec-val", records, "--models-root", models)
    return two.run(
        *command, *(sets if "classify.py" in command else ("--rec", data)), folder=ROOT,
        path=[PROGRAMS], OMP_NUM_THREADS="1", VIRTUAL_ENV=sys.prefix, NETWORK="tiny",
        BATCH_SIZE="4", MAX_UPDATE="2", MODELS_ROOT=str(models), HOSTS=NAMES,
    )  # fmt: skip


@pytest.mark.parametrize("command", [RUN, IMAGES], ids=["faces", "images"])
def test_equal_copies_train(two, copies: Path, tmp_path: Path, command) -> None:
    result = run(two, tmp_path, copies, *command)
    assert result.returncode == 0, result.stdout + result.stderr
    assert list(tmp_path.glob("model-0*.params"))


@pytest.mark.parametrize(
    ("command", "name", "change"),
    [
        (RUN, "train.rec", "truncate -s -1000 train.rec"),
        # Of an earlier set with other images.
        (RUN, "train.idx", "sed -i '$d' train.idx"),
        (RUN, "property", "echo 5,112,112 >property"),
        (RUN, "lfw.bin", "rm lfw.bin"),
        (RUN, "train.rec", "rm train.*"),
        (HOROVODRUN, "train.idx", "rm train.idx"),
        # Another set of the same size: it opens, and trains.
        (IMAGES, "train.rec", "printf x | dd of=train.rec bs=1 seek=200 conv=notrunc"),
    ],
)
def test_another_copy_on_the_second_host_is_named(
    two, copies: Path, tmp_path: Path, command, name: str, change: str
) -> None:
    shell(two.second, f"cd {copies} && {change}")
    path = copies / name
    program = "from pathlib import Path; from data.fingerprint import fingerprint as f; "
    describe = f"{PROGRAMS}/python -c \"{program}print(f([Path('{path}')])['{path}'])\""
    expected, found = (shell(host, f"cd {ROOT} && {describe}").strip() for host in two.all)
    assert "bytes" in expected and expected != found
    result = run(two, tmp_path, copies, *command)
    assert result.returncode == 2 or (command == HOROVODRUN and result.returncode), result
    said = (result.stdout + result.stderr).splitlines()
    line = f"host2 has another {path} than host1: {found}, not {expected}; copy the data set from"
    errors = [one.partition("error: ")[2] for one in said if "error: " in one]
    assert errors[0].startswith(line) and (len(errors) == 1 or command == HOROVODRUN)
    assert "Traceback" not in result.stderr and not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize(
    ("command", "change", "words"),
    [
        (RUN, "rm -r {}", "--rec {} does not exist"),
        (IMAGES, "truncate -s 5 {}/train.rec", "{}/train.rec"),
    ],
)
def test_a_set_that_does_not_open_on_one_host_is_named_with_it(
    two, copies: Path, tmp_path: Path, command, change: str, words: str
) -> None:
    shell(two.second, change.format(copies))
    result = run(two, tmp_path, copies, *command)
    assert result.returncode == 2
    assert f"error: host2: {words.format(copies)}" in result.stdout + result.stderr
