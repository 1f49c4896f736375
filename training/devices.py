"""Which device a rank computes on, and in which types."""

from __future__ import annotations

import logging
from typing import Any

from runtime import amx, environment
from runtime.errors import ConfigError
from runtime.mxnet import mx

_log = logging.getLogger(__name__)


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


def head_dtype(dtype: str, device: Any) -> str:
    """The type of the head's products: ``dtype``, or float32 where bfloat16 would not be faster.

    Raises:
        ConfigError: bfloat16 is wanted on a GPU.
    """
    if dtype == "bfloat16":
        if device.device_type != "cpu":
            raise ConfigError(
                "--head-dtype bfloat16 is for CPUs with AMX: MXNet has no bfloat16 on a GPU; "
                "use float32"
            )
        if not amx.request_tiles():
            _log.warning(
                "--head-dtype bfloat16: this processor or its kernel has no AMX tiles, without "
                "which bfloat16 is slower than float32; the head computes in float32"
            )
            return "float32"
    return dtype
