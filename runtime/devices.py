"""Where a rank computes: on the host, whose arrays Numba kernels share, or on a device.

The host is ``mx.cpu()``. Every other context is a device: its arrays are worked on by MXNet's
operators alone, which the engine queues, and nothing may wait for them without need. MXNet treats
``mx.cpu(1)`` as a device of its own, though it is the same processor: tests use it to run, without
a GPU, what runs on one.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime import environment
from runtime.errors import ConfigError
from runtime.mxnet import mx


def is_host(context: Any) -> bool:
    """Whether arrays of this context lie in the memory that kernels share."""
    return bool(context == mx.cpu())


class Uploads:
    """Copies of NumPy arrays in the memory of one device, without waiting for it.

    ``mx.nd.array(values, ctx=device)`` returns when the device has got them, after all that it had
    to do before. Here the copy is queued, and starts from page-locked memory, from which a GPU
    fetches without the processor. Such memory is dear to allocate and to free, so each shape and
    type has two buffers that take turns: writing into one waits for the copy before the last.
    """

    def __init__(self, context: Any) -> None:
        """Args: the MXNet context that the copies go to."""
        self._context = context
        self._buffers: dict[tuple[tuple[int, ...], str], deque[Any]] = {}

    def __call__(self, values: NDArray[Any]) -> Any:
        """Return an NDArray of the same type; ``values`` may be changed afterwards."""
        if is_host(self._context):
            return mx.nd.array(values, dtype=values.dtype)
        key = values.shape, values.dtype.str
        if key not in self._buffers:
            pinned = {"ctx": mx.cpu_pinned(self._context.device_id), "dtype": values.dtype}
            self._buffers[key] = deque(mx.nd.empty(values.shape, **pinned) for _ in range(2))
        buffers = self._buffers[key]
        buffers.rotate()
        buffers[0][:] = np.ascontiguousarray(values)
        return buffers[0].as_in_context(self._context)


def choose(local_rank: int, dtype: str) -> Any:
    """The GPU with the rank's number on its host; the CPU of a host without GPUs.

    Some launchers make only one GPU visible to each rank (``CUDA_VISIBLE_DEVICES``, as Slurm sets
    it for ``--gpus-per-task=1``), which then has the number 0 on every rank.

    Raises:
        ConfigError: the host has fewer GPUs than ranks, or float16 is asked of a CPU.
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
