"""How a process of a job is started on another machine."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from parallel.launch.job import ProcessSpec, by_ssh
from parallel.parameter_server.assignment import SCHEDULER, WORKER


def spec(role: str) -> ProcessSpec:
    return ProcessSpec(role, 0, "there", 2, ["python", "it's.py"], {"GROUPING_WORKER": "3"})


def test_variables_of_the_libraries_are_sent_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_TF32_OVERRIDE", "NCCL_DEBUG")
    for name in ("PATH", "MXNET_SEED", "OMP_NUM_THREADS", "SECRET", *gpus):
        monkeypatch.setenv(name, f"value of {name}")
    command, environment = by_ssh(spec(WORKER))
    assert environment is None
    assert (command[0], command[-2]) == ("ssh", "there")
    words = shlex.split(command[-1])
    assert words[:2] == ["cd", words[1]] and words[2:5] == ["&&", "exec", "env"]
    assert words[-2:] == ["python", "it's.py"]
    assert {"MXNET_SEED=value of MXNET_SEED", "GROUPING_WORKER=3"} < set(words)
    programs = Path(sys.executable).parent
    assert {"OMP_NUM_THREADS=value of OMP_NUM_THREADS", f"PATH={programs}:value of PATH"} <= set(
        words
    )
    assert {f"{name}=value of {name}" for name in gpus} < set(words)
    assert "SECRET" not in command[-1]


def test_the_scheduler_stays_on_this_machine() -> None:
    command, environment = by_ssh(spec(SCHEDULER))
    assert "ssh" not in command and environment is not None
    assert environment["GROUPING_WORKER"] == "3"
