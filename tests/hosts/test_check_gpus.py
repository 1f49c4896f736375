"""``parallel.check`` where hosts have GPUs: stubs of NVIDIA's driver, libraries and programs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.support import hosts
from tests.support.check_cluster import (
    BOTH,
    FIRST,
    HOROVOD,
    INSTALLED,
    SECOND,
    Cluster,
    Mistake,
    Plant,
    Wrong,
    assert_found,
    compile_library,
    instead,
    second_does,
    sh,
)
from tests.support.hosts import Host

WHY_NOT = hosts.missing()
pytestmark = [pytest.mark.hosts, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]
# The functions of NVIDIA's driver that are asked, and of its libraries that MXNet loads.
DRIVER = r"""
#include <stdio.h>
#include <string.h>
int cuInit(unsigned flags) { return INIT; }
int cuDriverGetVersion(int* version) { *version = VERSION; return 0; }
int cuDeviceGetCount(int* count) { *count = COUNT; return 0; }
int cuDeviceGet(int* device, int index) { *device = index; return 0; }
int cuDeviceGetName(char* name, int size, int device) { strcpy(name, "Stub GPU"); return 0; }
int cuDeviceTotalMem_v2(size_t* bytes, int device) { *bytes = 1ul << 34; return 0; }
int cuDeviceGetAttribute(int* value, int key, int _) { *value = key == 75 ? MAJOR : 0; return 0; }
"""
LIBRARIES = {
    "libcudart.so.11.0": "int cudaRuntimeGetVersion(int *v) { *v = VERSION; return 0; }",
    "libcudnn.so.8": "unsigned long cudnnGetCudartVersion(void) { return VERSION; }",
}
MXNET = "import ctypes, os\n" + "".join(
    f"ctypes.CDLL(os.path.dirname(__file__) + '/{name}')\n" for name in LIBRARIES
)


@dataclass(frozen=True)
class Gpus:
    """NVIDIA's part of a host."""

    init: int = 0
    """What the driver answers first."""
    driver: int = 11040
    count: int = 2
    major: int = 7
    """Of the compute capability."""
    cudnn: int = 11020
    smi: str = "echo 470.57.02"

    def put(self, cluster: Cluster, on: list[Host]) -> None:
        """Replace what is there."""
        made = cluster.folder / "gpu"
        shutil.rmtree(made, ignore_errors=True)
        for name in ("bin", "lib", "packages"):
            (made / name).mkdir(parents=True)
        values = {"INIT": self.init, "VERSION": self.driver, "COUNT": self.count}
        options = [f"-D{name}={value}" for name, value in {**values, "MAJOR": self.major}.items()]
        compile_library(made / "lib/libcuda.so.1", DRIVER, *options)
        for (name, source), version in zip(LIBRARIES.items(), (11020, self.cudnn)):
            compile_library(made / "packages" / name, source, f"-DVERSION={version}")
        program = made / "bin/nvidia-smi"
        program.write_text(f"#!/bin/sh\n{self.smi}\n")
        program.chmod(0o755)
        for host in on:
            script = 'rm -rf "$2/gpu"; cp -a "$1" "$2/gpu"; mv "$2/gpu/packages/"* "$3"'
            sh(host, script, made, cluster.private, cluster.packages)


def other_gpus(**values) -> Plant:
    """On the second host."""

    @contextmanager
    def plant(cluster: Cluster) -> Iterator[None]:
        Gpus(**values).put(cluster, [cluster.second])
        try:
            yield
        finally:
            Gpus().put(cluster, [cluster.second])

    return plant


WITHOUT_NCCL = HOROVOD.format("False")
GPU_MISTAKES: dict[str, tuple[Plant, str, int]] = {
    "more ranks than GPUs": (other_gpus(count=1), r"more ranks \(2\) than GPUs \(1\); ", 2),
    "no GPU": (
        other_gpus(init=100), r"it has no GPU that ranks would see, but 10\.77\.0\.1 does", 1
    ),
    "a driver that fails": (
        other_gpus(init=803), "NVIDIA's driver does not work: cuInit fails with CUDA error 803", 1
    ),
    "an nvidia-smi that fails": (
        other_gpus(smi="echo Driver/library version mismatch; exit 18"),
        r"nvidia-smi fails \(Driver/library version mismatch\); .*restart the host", 1,
    ),
    "a driver that is too old": (
        other_gpus(driver=10020), r"its driver 470\.57\.02 is for CUDA 10\.2, too old for mxnet", 1
    ),
    "a GPU that is too new": (
        other_gpus(major=9), "mxnet-cu112 has no machine code for Stub GPU; docs/gpu.md", 1
    ),
    "another cuDNN": (
        other_gpus(cudnn=12010), r"mxnet-cu112 does not load as it should \(.*cuDNN for CUDA 12", 1
    ),
    "a Horovod without NCCL": (
        instead("{packages}/horovod/mxnet.py", WITHOUT_NCCL), "Horovod is built without NCCL; ", 1
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def gpu_cluster(cluster: Cluster) -> Cluster:
    """The same hosts with GPUs and MXNet's package for CUDA 11.2, from here on."""
    Gpus().put(cluster, cluster.two.all)
    changes = {"mxnet.py": MXNET, "horovod/mxnet.py": HOROVOD.format("True")}
    for name, text in changes.items():
        source = cluster.folder / "changed"
        source.write_text(text)
        for host in cluster.two.all:
            sh(host, 'cp "$1" "$2"', source, cluster.packages / name)
    for host in cluster.two.all:
        renamed = "sed -i 's/^Name: mxnet$/Name: mxnet-cu112/' \"$1\"/mxnet*/METADATA"
        moved = 'mv "$1"/mxnet-1.9.1.dist-info "$1"/mxnet_cu112-1.9.1.dist-info'
        sh(host, f"{renamed}; {moved}", cluster.packages)
    return cluster


def gpu_variables(cluster: Cluster) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": f"{cluster.private / 'gpu/lib'}"}


def test_healthy_hosts_with_gpus(gpu_cluster: Cluster) -> None:
    result = gpu_cluster.check("-H", f"{FIRST}:2,{SECOND}:2", **gpu_variables(gpu_cluster))
    assert (result.returncode, result.stderr) == (0, ""), result.stdout
    for shown in ("2 Stub GPU", "470.57.02 CUDA 11.4", "1.9.1 mxnet-cu112"):
        assert result.stdout.count(shown) == 2, result.stdout


@pytest.mark.parametrize("name", GPU_MISTAKES)
def test_a_planted_mistake_with_gpus(gpu_cluster: Cluster, name: str) -> None:
    plant, line, ranks = GPU_MISTAKES[name]
    options, variables = ("-H", f"{FIRST}:1,{SECOND}:{ranks}"), gpu_variables(gpu_cluster)
    wrong = (Wrong(SECOND, line),)
    assert_found(gpu_cluster, Mistake(plant, wrong, options, tuple(variables.items())))


def test_mxnet_for_processors_on_a_host_with_gpus(gpu_cluster: Cluster) -> None:
    named = f"cd {INSTALLED}; sed -i 's/^Name: {{}}$/Name: {{}}/' mxnet*/METADATA"
    plant = second_does(named.format("mxnet-cu112", "mxnet"), named.format("mxnet", "mxnet-cu112"))
    found = (
        Wrong(SECOND, r"MXNet is mxnet 1\.9\.1, but mxnet-cu112 1\.9\.1 on 10\.77\.0\.1; "),
        Wrong(SECOND, "its MXNet is for processors and would not use its 2 GPUs; MXNET_PACKAGE="),
    )
    variables = tuple(gpu_variables(gpu_cluster).items())
    assert_found(gpu_cluster, Mistake(plant, found, ("-H", BOTH), variables))
