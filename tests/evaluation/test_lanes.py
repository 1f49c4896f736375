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


class Divided(Exception):
    """The threads would be divided here."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_divides_its_threads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def divide() -> None:
        raise Divided

    program = importlib.import_module(name)
    monkeypatch.setattr(program, "prepare_lanes", divide)
    with pytest.raises(Divided):
        program.main(PROGRAMS[name].split())


def test_nothing_before_imports_mxnet_and_nothing_else_onnx() -> None:
    """In a process where no test has done so."""
    code = (
        f"import sys, {', '.join(PROGRAMS)}, evaluation.export.__main__; "
        "assert not {'mxnet', 'onnx', 'onnxruntime', 'torch'} & sys.modules.keys(); "
        "import train, classify, backbones.model, training.verifier; "
        "assert not {'onnx', 'onnxruntime', 'torch'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, check=True, timeout=120)
