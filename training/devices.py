"""Which device a rank computes on."""

from __future__ import annotations

from typing import Any

from runtime import environment
from runtime.errors import ConfigError
from runtime.mxnet import mx


def choose(local_rank: int, dtype: str) -> Any:
    """The GPU of the rank's number on its host where there are GPUs, else the CPU.

    Some launchers show each rank one GPU alone, its own, which then has the number 0 in all of them
    (``CUDA_VISIBLE_DEVICES``, as Slurm sets it for ``--gpus-per-task=1``).

    Raises:
        ConfigError: the host has fewer GPUs than ranks, or the CPU shall compute in float16.
    """
    num_gpus = mx.context.num_gpus()
    if num_gpus > local_rank:
        return mx.gpu(local_rank)
    if num_gpus == 1 and environment.sees_one_gpu():
        return mx.gpu(0)
    if num_gpus > 0:
        raise ConfigError(
            f"local rank {local_rank} has no GPU: this host has {num_gpus}; "
            f"start at most {num_gpus} ranks on it (-H host:{num_gpus}), or show each rank a GPU "
            "of its own with CUDA_VISIBLE_DEVICES"
        )
    if dtype == "float16":
        raise ConfigError(
            "--dtype float16 needs a GPU: MXNet has no float16 products on the CPU; use float32"
        )
    return mx.cpu()
