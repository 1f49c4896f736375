"""GPUs, driver and CUDA against the package of MXNet: healthy hosts, and one change each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from parallel.check.findings import findings
from parallel.check.survey import Survey
from runtime.installed import Gpu
from tests.support.healthy_hosts import GPU, healthy

H100 = Gpu("H100", (9, 0), 80 << 30)
TOOLKIT = "mxnet-cu112 needs the compiler of CUDA 11.2, and there is CUDA 12.1 in /x: install it"


def lines(survey: Survey, host: str = "b", **changes) -> list[str]:
    survey.facts[host] = replace(survey.facts[host], **changes)
    return [str(one) for one in findings(survey)]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"gpus": (GPU,) * 7}, "b: more ranks (8) than GPUs (7); give it no more than b:7, "),
        ({"gpus": (), "cuda_of_driver": None}, "b: it has no GPU that ranks would see, but a does"),
        ({"gpus": (GPU,) * 7 + (H100,)}, "b: mxnet-cu112 has no machine code for H100; docs"),
        ({"cuda_of_driver": 10020}, "b: its driver 470.57 is for CUDA 10.2, too old for mx"),
        ({"horovod_lacks": ("NCCL",)}, "b: Horovod is built without NCCL; "),
        ({"errors": {"mxnet": "no libcudnn.so.8"}}, "b: mxnet-cu112 does not load as it should ("),
        ({"errors": {"toolkit": TOOLKIT}}, f"b: {TOOLKIT.replace(': ', '; ')}"),
        ({"gpus": (), "errors": {"gpus": "it fails; restart"}}, "b: it fails; restart"),
        ({"driver": None, "errors": {"driver": "no NVML"}}, "b: nvidia-smi fails (no NVML); "),
    ],
)
def test_a_change_is_one_finding(change: dict[str, Any], line: str) -> None:
    (text,) = lines(healthy({"a": 8, "b": 8}, "mxnet-cu112"), **change)
    assert text.startswith(line)


@pytest.mark.parametrize(
    "change",
    [
        # Newer; or older within CUDA 11, which is enough.
        {"cuda_of_driver": 12020},
        {"cuda_of_driver": 11000},
        # An image for running has no compiler.
        {"nvcc": None, "errors": {"toolkit": TOOLKIT}},
        {"driver": None},
    ],
)
def test_what_is_enough(change: dict[str, Any]) -> None:
    assert lines(healthy({"a": 8, "b": 8}, "mxnet-cu112"), **change) == []


def test_the_toolkit_matters_where_horovod_has_to_be_built() -> None:
    survey = healthy({"a": 8, "b": 8}, "mxnet-cu112")
    found = lines(survey, nvcc=None, errors={"toolkit": TOOLKIT}, horovod_lacks=("NCCL",))
    assert len(found) == 2 and found[1].startswith("b: mxnet-cu112 needs the compiler")


def test_no_host_has_the_gpus_that_its_mxnet_is_for() -> None:
    survey = healthy({"a": 1}, "mxnet-cu112")
    (line,) = lines(survey, "a", gpus=())
    assert line.startswith("a: it has no GPU that ranks would see, but its MXNet is mxnet-cu112; ")


def test_mxnet_for_processors() -> None:
    survey = healthy({"a": 1})
    (line,) = lines(survey, "a", gpus=(GPU,), cuda_of_driver=11040)
    assert line.startswith("a: its MXNet is for processors and would not use its 1 GPUs; ")
    # Its driver and toolkit do not matter.
    errors = {"gpus": "it fails", "driver": "it fails"}
    assert lines(survey, "a", gpus=(), cuda_of_driver=None, nvcc="13.0", errors=errors) == []
