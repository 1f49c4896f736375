"""Another user of this host calls every port of a job: its result stays what it is, or it ends.

A rank of Gloo ends if another user calls it where none of its own ranks will.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Union

import pytest

from tests.distributed.test_listening import FACES, IMAGES, LAUNCH, PROGRAMS, ROOT, TWO
from tests.support.launch import clean_environment
from tests.support.stranger import AS_ROOT

pytestmark = [pytest.mark.launcher, AS_ROOT]

FEW = ("--max-update", "12", "--num-examples", "160", "--epochs", "1")
RANKS = ("bash", "config.sh", *FACES, *FEW[:2])
COMMANDS = {
    "run.sh": ("bash", "run.sh", *FACES, *FEW[:2]),
    "horovodrun --gloo": (str(PROGRAMS / "horovodrun"), "--gloo", *TWO, *RANKS),
    "dist_gsync": (
        *(*LAUNCH, "--groups", "{groups}", "--", sys.executable, "classify.py", *IMAGES),
        *("--kv-store", "dist_gsync", *FEW[2:]),
    ),
}


def train(job: str, folder: Path) -> Union[bytes, str]:
    """Run a job to its end; returns the trained weights, or what it said if it failed."""
    folder.mkdir()
    (folder / "groups").write_text("127.0.0.1 127.0.0.1\n")
    command = [word.format(groups=folder / "groups") for word in COMMANDS[job]]
    command += ["--models-root", str(folder / "models")]
    said = subprocess.run(
        command, cwd=ROOT, env={**clean_environment(), "NETWORK": "tiny"}, timeout=300,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if said.returncode != 0:
        return said.stdout
    (weights,) = (folder / "models").rglob("model-0000.params")
    return weights.read_bytes()


@pytest.mark.thorough
@pytest.mark.parametrize("job", COMMANDS)
def test_another_user_changes_nothing(job: str, tmp_path: Path) -> None:
    # The first run compiles, and may round differently.
    train(job, tmp_path / "compiled")
    undisturbed = train(job, tmp_path / "undisturbed")
    command = [sys.executable, "-m", "tests.support.stranger"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            disturbed = train(job, tmp_path / "disturbed")
        finally:
            process.kill()
            reached = process.stdout.read().split("\n")[:-1]
    assert reached and isinstance(undisturbed, bytes)
    if job == "run.sh" or isinstance(disturbed, bytes):
        assert disturbed == undisturbed
    else:
        assert "accept: Software caused connection abort" in disturbed
