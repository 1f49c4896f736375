"""What is installed: judged by versions that are made up here."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtime import installed
from runtime.errors import ConfigError
from runtime.gpu_check import NotRun, Wrong
from runtime.installed import Gpu
from runtime.mxnet import mx
from training.device_check import builds

T4 = Gpu("Tesla T4", (7, 5), 15 * 2**30)
A100 = Gpu("A100", (8, 0), 40 * 2**30)
H100 = Gpu("H100", (9, 0), 80 * 2**30)
HOROVOD = """
Horovod v0.28.1:

Available Frameworks:
    [ ] TensorFlow
    [X] MXNet
Available Controllers:
    [X] MPI
    [X] Gloo
Available Tensor Operations:
    [ ] NCCL
    [X] MPI
    [X] Gloo
"""


def build(monkeypatch: pytest.MonkeyPatch, **features: bool) -> None:
    class Features(dict[str, bool]):
        def is_enabled(self, name: str) -> bool:
            return self.get(name, False)

    monkeypatch.setattr(mx.runtime, "Features", lambda: Features(features))


def libraries(monkeypatch: pytest.MonkeyPatch, **versions: Any) -> None:
    monkeypatch.setattr(installed, "version", lambda library, name: versions.get(name))


def test_a_package_for_processors_and_a_machine_without_gpus_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert builds.mxnet_package() == "mxnet"
    with pytest.raises(ConfigError, match="package here is mxnet, .*MXNET_PACKAGE=mxnet-cu112"):
        list(builds.lines([]))
    build(monkeypatch, CUDA=True)
    for gpus in ([], [T4]):
        monkeypatch.setattr(installed, "gpus", lambda gpus=gpus: gpus)
        with pytest.raises(ConfigError, match="MXNet sees no GPU: nvidia-smi has to list one"):
            list(builds.lines([]))


def test_a_machine_with_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    build(monkeypatch, CUDA=True, CUDNN=True)
    monkeypatch.setattr(mx.context, "num_gpus", lambda: 2)
    monkeypatch.setattr(installed, "gpus", lambda: [T4, H100])
    monkeypatch.setattr(builds, "mxnet_package", lambda: "mxnet-cu112")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=HOROVOD))
    versions = {"cudaRuntimeGetVersion": 11020, "cudaDriverGetVersion": 11040}
    libraries(monkeypatch, cudnnGetVersion=8100, ncclGetVersion=2804, **versions)
    lines = list(builds.lines([]))
    assert "pass     MXNet: 1.9.1, package mxnet-cu112, features CUDA CUDNN" in lines
    shown = "built for 11.2, runs with 11.2, the driver knows up to 11.4"
    assert f"pass     CUDA: {shown}" in lines
    assert any("pass     cuDNN: 8100" in line and "NCCL is 2804" in line for line in lines)
    shown = "Tesla T4, compute capability 7.5, 15.0 GiB, mxnet-cu112 has machine code for it"
    assert f"pass     gpu(0): {shown}" in lines
    assert any(line.startswith("FAIL     gpu(1): H100, compute capability 9.0") for line in lines)
    assert lines[-1].startswith("FAIL     Horovod: 0.28.1 with MXNet MPI Gloo, without NCCL: ")
    assert builds.judge_horovod(HOROVOD, needs_nccl=False) == "0.28.1 with MXNet MPI Gloo"
    with pytest.raises(Wrong, match="^unknown with nothing, without MXNet MPI Gloo: "):
        builds.judge_horovod("", needs_nccl=False)


@pytest.mark.parametrize(
    ("package", "runtime", "driver", "reason"),
    [
        ("mxnet-cu112", 10010, 11040, "install the CUDA libraries"),
        ("mxnet-cu102", 11000, 11040, "install the CUDA libraries"),
        ("mxnet-cu117", 11070, 10020, "install a newer driver"),
        ("mxnet-cu101", 10010, 10000, "install a newer driver"),
        ("mxnet-cu117", 11070, 11040, None),
    ],
)
def test_cuda_libraries_and_driver_fit_the_package(
    monkeypatch: pytest.MonkeyPatch, package: str, runtime: int, driver: int, reason: str
) -> None:
    libraries(monkeypatch, cudaRuntimeGetVersion=runtime, cudaDriverGetVersion=driver)
    if reason is None:
        assert builds._cuda(package).startswith("built for 11.7")
        return
    with pytest.raises(Wrong, match=reason):
        builds._cuda(package)


def test_the_commit_is_named_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(NotRun, match="no clone"):
        builds._commit()
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@x"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run([*git, *command], check=True)
    assert re.fullmatch("commit [0-9a-f]{7,}", builds._commit())


def test_a_build_without_cudnn_is_wrong_and_an_unknown_package_not_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build(monkeypatch, CUDA=True)
    with pytest.raises(Wrong, match="without cuDNN"):
        builds._mxnet("mxnet-cu112")
    with pytest.raises(NotRun, match="T4.*for which GPUs mxnet-cu120 has machine code"):
        builds._gpu(T4, "mxnet-cu120")


def test_why_a_device_has_no_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "gpus", lambda: [T4, A100])
    monkeypatch.setattr(builds, "mxnet_package", lambda: "mxnet-cu112")
    assert builds.tf32_refusal("cpu(1)") == "cpu(1) is no GPU"
    assert builds.tf32_refusal("gpu(0)") == "Tesla T4 has none"
    assert builds.tf32_refusal("gpu(1)") is None
    monkeypatch.setattr(builds, "mxnet_package", lambda: "mxnet-cu102")
    assert builds.tf32_refusal("gpu(1)") == "mxnet-cu102 has none"
