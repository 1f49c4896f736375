"""Host and device of a rank, and the interface of the ranks that compute together.

The host is ``mx.cpu()``; every other context is a device: its arrays are worked on by MXNet's
operators alone, which the engine queues, and nothing may wait for them without need. MXNet treats
``mx.cpu(1)`` as a device of its own, though it is the same processor: tests use it to run, without
a GPU, what runs on one.
"""

from __future__ import annotations

import os
import uuid
from collections import deque
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from runtime.errors import ConfigError
from runtime.installed import UUID_BYTES, CudaDriver
from runtime.mxnet import mx


class Communicator(Protocol):
    """The ranks that compute together, seen from one of them; a single one needs no more."""

    rank: int
    """Number of this rank, 0 … size - 1."""
    size: int
    local_rank: int
    """Number of this rank among those on its host."""

    def allreduce(self, array: Any, name: str, op: str = "sum") -> Any:
        """Reduce an NDArray over the ranks, in place.

        Asynchronous: the reduction is queued as an operation of MXNet's engine, and a read of the
        array waits for it.

        Args:
            array: an NDArray of the same shape and type on every rank.
            name: the stable name of this collective.
            op: "sum", "mean" or "max".
        """
        return array

    def allgather(self, array: Any, name: str) -> Any:
        """Concatenate NDArrays of all ranks along their first axis, in rank order.

        Asynchronous like ``allreduce``, so all of them must have one shape and type.
        """
        return array

    def wait(self, array: Any) -> None:
        """Call it where a reduction is needed, after all work that can hide it.

        What uses the array waits for it anyway; a timed world measures the wait here.
        """
        return None


def is_host(context: Any) -> bool:
    """Return True if arrays of this context lie in the memory that kernels share."""
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


def choose(ranks: Communicator, dtype: str) -> Any:
    """Return the GPU of the rank's number on its host, or the CPU if it has none; collective.

    A rank that sees a single GPU takes that one. Some launchers show each rank one of its own,
    which has the number 0 everywhere: by ``CUDA_VISIBLE_DEVICES``, as Slurm's
    ``--gpus-per-task=1``, or without a trace, as a container that has one GPU. Others show the same
    GPU to all ranks. So the ranks compare the identities that the driver gives to their GPUs.

    Raises:
        ConfigError: the host has fewer GPUs than ranks, two ranks would share a GPU, some ranks
            have a GPU and others none, or float16 is asked of a CPU, bfloat16 of a GPU.
    """
    visible = mx.context.num_gpus()
    # ``parallel.launch`` gives the same variables to all workers of a host.
    may_be_own = visible == 1 and "GROUPING_LOCAL_WORKER" not in os.environ
    number = 0 if may_be_own else ranks.local_rank
    if 0 < visible <= number:
        raise ConfigError(
            f"local rank {ranks.local_rank} has no GPU: this process sees {visible}; start at most "
            f"{visible} ranks on its host (-H host:{visible}), or show them more by "
            "CUDA_VISIBLE_DEVICES"
        )
    if ranks.size > 1:
        own = CudaDriver().identity(number) if visible else bytes(UUID_BYTES)
        sent = mx.nd.array(np.frombuffer(own, np.uint8)[None], dtype="uint8")
        _check_distinct([row.tobytes() for row in ranks.allgather(sent, "devices").asnumpy()])
    if visible and dtype == "bfloat16":
        raise ConfigError(
            "--dtype bfloat16 is for CPUs: MXNet has no bfloat16 on a GPU; use float16, "
            "or set CUDA_VISIBLE_DEVICES= to train on the CPU"
        )
    if visible:
        return mx.gpu(number)
    if dtype == "float16":
        raise ConfigError(
            "--dtype float16 needs a GPU: MXNet has no float16 products on the CPU; use float32"
        )
    return mx.cpu()


def _check_distinct(identities: list[bytes]) -> None:
    """Refuse ranks that share a GPU, or of which some have none, on every rank alike."""
    rank_of: dict[bytes, int] = {}
    for rank, identity in enumerate(identities):
        other = rank_of.setdefault(identity, rank)
        if other != rank and any(identity):
            raise ConfigError(
                f"ranks {other} and {rank} would share GPU-{uuid.UUID(bytes=identity)}; start at "
                "most one rank per GPU (-H host:N), or show each rank a GPU of its own by "
                "CUDA_VISIBLE_DEVICES"
            )
    without = rank_of.pop(bytes(UUID_BYTES), None)
    if without is not None and rank_of:
        raise ConfigError(
            f"rank {without} sees no GPU, but rank {min(rank_of.values())} does; repair the driver "
            "there (nvidia-smi), leave that host out, or set CUDA_VISIBLE_DEVICES= for all"
        )
