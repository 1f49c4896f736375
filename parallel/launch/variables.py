"""Environment variables that launchers send to other hosts, and their way there.

Every user of a host can read the arguments of all processes. So launchers send the values of
variables on the standard input of ssh, and send only variables that a library of this project or
the project itself reads: a shell has passwords in others. ``SEND_VARIABLES`` names more variables.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from runtime.errors import ConfigError

NAMED = "SEND_VARIABLES"
"""Variable in which users name further variables."""
CHOICES = (
    *("DATASET", "NETWORK", "LOSS", "BATCH_SIZE", "LR", "SAMPLE_RATIO", "MAX_UPDATE"),
    "MODELS_ROOT",
)
"""Choices of a run, which config.sh reads."""
_READ = frozenset(
    (
        *("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "NIC", "PROGRESS", *CHOICES),
        *("NVIDIA_TF32_OVERRIDE", "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"),
    )
)
_READ_PREFIXES = (
    *("MXNET_", "DMLC_", "PS_", "HOROVOD_", "GLOO_", "NCCL_", "OMPI_MCA_", "PMIX_MCA_", "UCX_"),
    *("FI_", "CUDA_", "CUBLAS_", "CUDNN_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "DNNL_"),
    *("ONEDNN_", "NUMBA_", "OPENCV_", "PYTHON", "TOOLKIT_"),
)
# Slurm gives each host of a job a value of its own.
_GPUS, _OF_SLURM = "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

RECEIVER = (
    *("bash", "--norc", "-c"),
    'while IFS= read -r -d "" pair && [[ $pair ]]; do export "$pair"; done; SHLVL=9; exec "$@"',
    "bash",
)
"""Words before a command on another host: it gets the variables with which its input starts.

Below level 2 (``SHLVL``), ``bash -c`` in a session of ssh reads ~/.bashrc, which may change
``PATH``.
"""


def names(own: Mapping[str, str]) -> list[str]:
    """Return the names of those variables that other hosts get.

    Args:
        own: all variables of this process.

    Raises:
        ConfigError: ``SEND_VARIABLES`` is wrong.
    """
    named = own.get(NAMED, "").replace(",", " ").split()
    for name in named:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{NAMED}: {name.partition('=')[0][:80]!r} is not the name of a variable; give "
                f"names without values, as in {NAMED}=WANDB_API_KEY,HF_HOME"
            )
        if name not in own:
            raise ConfigError(f"{NAMED}: {name[:80]} is not set; set it, or leave it out")
    read = {name for name in own if name in _READ or name.startswith(_READ_PREFIXES)}
    if _OF_SLURM in own:
        read.discard(_GPUS)
    return sorted({*filter(_NAME.fullmatch, read), *named})


def packed(values: Mapping[str, str]) -> bytes:
    """Return variables in the form in which ``RECEIVER`` reads them."""
    return b"".join(os.fsencode(f"{name}={value}\0") for name, value in values.items()) + b"\0"
