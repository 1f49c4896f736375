"""What is installed: the package, CUDA's libraries, the driver, the GPUs, Horovod's parts."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Optional

from runtime import environment, installed
from runtime.errors import ConfigError
from runtime.gpu_check import NotRun, Wrong, checked
from runtime.installed import Gpu, dotted, mxnet_package

_GIBIBYTE = 2**30


def lines(devices: Sequence[str]) -> Iterator[str]:
    """Check what is installed.

    Args:
        devices: names of contexts; without any, there have to be GPUs.

    Raises:
        ConfigError: there are none, or MXNet cannot use them.
    """
    package = mxnet_package()
    gpus = installed.gpus()
    if not devices:
        _need_gpus(package, gpus)
    yield checked("toolkit", _commit)
    yield checked("Python", platform.python_version)
    yield checked("MXNet", partial(_mxnet, package))
    yield checked("CUDA", partial(_cuda, package))
    yield checked("cuDNN", _cudnn)
    for index, gpu in enumerate(gpus):
        yield checked(f"gpu({index})", partial(_gpu, gpu, package))
    yield checked("Horovod", partial(_horovod, needs_nccl=bool(gpus)))


def _need_gpus(package: str, gpus: Sequence[Gpu]) -> None:
    try:
        from runtime.mxnet import mx
    except OSError as error:
        raise ConfigError(
            f"{package} does not load ({error}): install the driver and the CUDA libraries of its "
            "version; docs/gpu.md says which"
        ) from None
    if not mx.runtime.Features().is_enabled("CUDA"):
        raise ConfigError(
            f"the MXNet package here is {package}, which is for processors: install the one for "
            "your GPU as in MXNET_PACKAGE=mxnet-cu112 make env; docs/gpu.md says which"
        )
    if not gpus or mx.context.num_gpus() == 0:
        raise ConfigError(
            "MXNet sees no GPU: nvidia-smi has to list one (install NVIDIA's driver), and "
            "CUDA_VISIBLE_DEVICES must not hide it"
        )


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        raise NotRun("its folder is no clone, or git is not installed") from None
    return f"commit {found.stdout.strip()}"


def _mxnet(package: str) -> str:
    from runtime.mxnet import mx

    features = mx.runtime.Features()
    enabled = [name for name in features if features.is_enabled(name)]
    shown = f"{mx.__version__}, package {package}, features {' '.join(sorted(enabled))}"
    if "CUDA" in enabled and "CUDNN" not in enabled:
        raise Wrong(f"{shown}: a build without cuDNN has slow convolutions")
    return shown


def _cuda(package: str) -> str:
    from runtime.mxnet import mx

    built = installed.cuda_of(package)
    runtime = installed.version(mx.base._LIB, "cudaRuntimeGetVersion")
    driver = installed.version(mx.base._LIB, "cudaDriverGetVersion")
    if runtime is None or driver is None:
        raise NotRun(f"{package} has no CUDA")
    shown = f"built for {'{}.{}'.format(*built) if built else 'an unknown version'}, "
    shown += f"runs with {dotted(runtime)}, the driver knows up to {dotted(driver)}"
    if built and built[0] != runtime // 1000:
        raise Wrong(f"{shown}: install the CUDA libraries of the version that it was built for")
    if installed.is_too_old(driver, runtime):
        raise Wrong(f"{shown}: install a newer driver")
    return shown


def _cudnn() -> str:
    from runtime.mxnet import mx

    found = installed.version(mx.base._LIB, "cudnnGetVersion")
    if found is None:
        raise NotRun("MXNet has none")
    nccl = installed.version(mx.base._LIB, "ncclGetVersion")
    own = f"; MXNet's own NCCL is {nccl}" if nccl else ""
    return f"{found}, that of the build unless a note below names another{own}"


def _gpu(gpu: Gpu, package: str) -> str:
    capability = "{}.{}".format(*gpu.capability)
    shown = f"{gpu.name}, compute capability {capability}, {gpu.memory / _GIBIBYTE:.1f} GiB"
    runs = gpu.runs(package)
    if runs is None:
        raise NotRun(f"{shown}; for which GPUs {package} has machine code is not known")
    if not runs:
        raise Wrong(f"{shown}: {package} has no machine code for it; docs/gpu.md says which has")
    return f"{shown}, {package} has machine code for it"


def _horovod(*, needs_nccl: bool) -> str:
    command = Path(sys.executable).with_name("horovodrun")
    found = subprocess.run(
        [str(command), "--check-build"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment.variables(),
        check=False,
    )
    return judge_horovod(found.stdout, needs_nccl=needs_nccl)


def judge_horovod(report: str, *, needs_nccl: bool) -> str:
    """The version and the parts that ``horovodrun --check-build`` reports.

    Raises:
        Wrong: one that training needs is missing.
    """
    version = re.search(r"Horovod v?([\d.]+\d)", report)
    built, missing = installed.horovod_parts(report)
    shown = f"{version[1] if version else 'unknown'} with {' '.join(built) or 'nothing'}"
    if not needs_nccl and "NCCL" in missing:
        missing.remove("NCCL")
    if missing:
        raise Wrong(f"{shown}, without {' '.join(missing)}: remove .venv, and make env")
    return shown


def tf32_refusal(device: str) -> Optional[str]:
    """Why float32 products of a context are not computed in TF32; None if they may be."""
    index, package = re.fullmatch(r"gpu\((\d+)\)", device), mxnet_package()
    if index is None:
        return f"{device} is no GPU"
    gpu = installed.gpus()[int(index[1])]
    if not gpu.has_tf32:
        return f"{gpu.name} has none"
    return f"{package} has none" if re.search(r"cu10\d$", package) else None
