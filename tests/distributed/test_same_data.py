"""Files are compared over Horovod: lines of unequal lengths, one result on both ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launch import clean_environment

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.launcher


# A rank that takes itself for the first of its host, and compares files of a folder of its own.
COMPARE = """
import os, sys
from pathlib import Path
from parallel.world import HorovodWorld
from runtime.errors import run_program
from training import same_data

def main():
    world = HorovodWorld()
    os.chdir(sys.argv[1 + world.rank])
    world.local_rank = 0
    same_data.check([Path("train.rec"), Path("train.idx")], world)
    print(f"rank {world.rank} goes on")

run_program(main)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("controller", "index"),
    [("--gloo", b"1\t0\n"), ("--mpi", b"1\t0\n2\t100\n"), ("--gloo", None)],
)
def test_two_ranks(controller: str, index: bytes | None, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "second")]
    for folder, content in zip(folders, (b"1\t0\n", index)):
        folder.mkdir()
        (folder / "train.rec").write_bytes(bytes(1000))
        if content is not None:
            (folder / "train.idx").write_bytes(content)
    command = [str(Path(sys.executable).with_name("horovodrun")), controller, "-np", "2"]
    result = subprocess.run(
        [*command, "-H", "localhost:2", sys.executable, "-c", COMPARE, *folders],
        cwd=ROOT, env=clean_environment(), capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    goes_on = [f"rank {rank} goes on" in result.stdout for rank in (0, 1)]
    if index == b"1\t0\n":
        assert result.returncode == 0 and all(goes_on), result.stderr
        return
    assert result.returncode != 0 and not any(goes_on)
    found = "missing" if index is None else "10 bytes, checksum "
    said = result.stdout + result.stderr
    (line,) = [line for line in said.splitlines() if "error: " in line and "another" in line]
    assert "has another train.idx than " in line and f": {found}" in line
    assert ", not 4 bytes, checksum " in line
