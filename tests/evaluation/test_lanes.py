"""The programs that embed many images divide the threads before MXNet reads how many there are."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    "evaluation.verification.__main__": "--model none,0 --target none.bin",
    "evaluation.embed.__main__": "--model none,0 none --out none",
    "evaluation.ijb.__main__": "--model none,0 none --out none",
}
of_each_program = pytest.mark.parametrize("name", PROGRAMS)


class Divided(Exception):
    """The threads would be divided here."""


@of_each_program
def test_a_program_divides_its_threads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def divide() -> None:
        raise Divided

    program = importlib.import_module(name)
    monkeypatch.setattr(program, "prepare_lanes", divide)
    with pytest.raises(Divided):
        program.main(PROGRAMS[name].split())


@of_each_program
def test_nothing_before_imports_mxnet(name: str) -> None:
    code = f"import sys; import {name}; sys.exit('mxnet' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
