from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from parallel.world import LoneWorld
from runtime import devices
from runtime.errors import ConfigError
from runtime.mxnet import mx
from tests.device.operator_calls import stalled
from tests.support.thread_world import ThreadWorld, run_ranks


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "GROUPING_LOCAL_WORKER"):
        monkeypatch.delenv(name, raising=False)


def chosen(patch: pytest.MonkeyPatch, seen: list[list[int]], dtype: str = "float32") -> list[Any]:
    """The device of each rank, or its error, if it sees the GPUs with these UUIDs."""

    def choose(world: ThreadWorld) -> Any:
        own = seen[world.rank]
        driver = SimpleNamespace(identity=lambda number: uuid.UUID(int=own[number]).bytes)
        patch.setattr(mx.context, "num_gpus", lambda: len(own))
        patch.setattr(devices, "CudaDriver", lambda: driver)
        try:
            return devices.choose(world, dtype)
        except ConfigError as error:
            return str(error)

    return run_ranks(len(seen), choose)


def test_ranks_take_the_gpus_of_their_numbers_or_the_only_one(monkeypatch) -> None:
    assert chosen(monkeypatch, [[7, 8, 9]] * 3) == [mx.gpu(0), mx.gpu(1), mx.gpu(2)]
    assert chosen(monkeypatch, [[7, 8]] * 2, "float16") == [mx.gpu(0), mx.gpu(1)]
    # With or without CUDA_VISIBLE_DEVICES: a container has no such variable.
    assert chosen(monkeypatch, [[7], [8], [9]]) == [mx.gpu(0)] * 3
    assert chosen(monkeypatch, [[7, 8], [9]]) == [mx.gpu(0)] * 2
    for dtype in ("float32", "bfloat16"):
        assert chosen(monkeypatch, [[], []], dtype) == [mx.cpu()] * 2


@pytest.mark.parametrize(
    ("seen", "dtype", "message"),
    [
        ([[7], [8], [7]], "float32", f"ranks 0 and 2 would share GPU-{uuid.UUID(int=7)};"),
        ([[7, 8], [9, 7], [7, 7, 7]], "float32", "ranks 0 and 1 would share GPU-"),
        ([[7], [], [9]], "float32", "rank 1 sees no GPU, but rank 0 does; "),
        ([[], [], [9]], "float32", "rank 0 sees no GPU, but rank 2 does; "),
        ([[], []], "float16", "--dtype float16 needs a GPU"),
        ([[7], [8]], "bfloat16", "--dtype bfloat16 is for CPUs: MXNet has no bfloat16 on a GPU"),
    ],
)
def test_ranks_are_refused_with_the_same_line(seen, dtype, message, monkeypatch) -> None:
    (line,) = set(chosen(monkeypatch, seen, dtype))
    assert line.startswith(message) and "\n" not in line


def test_a_rank_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.context, "num_gpus", lambda: 2)
    with pytest.raises(ConfigError, match="local rank 2 has no GPU: this process sees 2; start at"):
        devices.choose(LoneWorld(local_rank=2), "float32")
    monkeypatch.setattr(mx.context, "num_gpus", lambda: 1)
    assert devices.choose(LoneWorld(local_rank=1), "float32") == mx.gpu(0)
    # parallel.launch gives its workers the same variables, and most of them cannot compare.
    monkeypatch.setenv("GROUPING_LOCAL_WORKER", "1")
    assert devices.choose(LoneWorld(local_rank=0), "float32") == mx.gpu(0)
    with pytest.raises(ConfigError, match="local rank 1 has no GPU: this process sees 1"):
        devices.choose(LoneWorld(local_rank=1), "float32")


@pytest.mark.parametrize("context", [mx.cpu(), mx.cpu(1)])
def test_uploads_have_the_values_that_were_there_when_they_were_queued(context: Any) -> None:
    upload, values, copies = devices.Uploads(context), np.zeros((64, 1000), np.int32), []
    for number in range(5):
        values[:] = number
        copies.append(upload(values))
    transposed = upload(np.arange(6, dtype=np.float32).reshape(2, 3).T)
    assert all((copy.asnumpy() == number).all() for number, copy in enumerate(copies))
    assert {copy.context for copy in (*copies, transposed)} == {context}
    assert copies[0].dtype == np.int32
    assert transposed.asnumpy().tolist() == [[0, 3], [1, 4], [2, 5]]


def test_an_upload_does_not_wait_for_the_one_before() -> None:
    """Which a device may not have got to; it waits for the one before that."""
    device = mx.cpu(1)
    upload, values = devices.Uploads(device), np.zeros(1000, np.float32)
    upload(values)
    mx.nd.waitall()
    with stalled(device, patience=0.5) as stall:
        copies = [upload(values), upload(values)]
        assert not stall.waiting
        copies.append(upload(values))
        assert stall.waiting.startswith("runtime/devices.py:")
    assert len({copy.context for copy in copies}) == 1


def test_only_the_first_cpu_context_is_the_host() -> None:
    assert devices.is_host(mx.cpu()) and devices.is_host(mx.cpu(0))
    # MXNet has device 1 of the processor, too; the tests of the device path rely on it.
    assert not devices.is_host(mx.cpu(1))
    assert not devices.is_host(mx.gpu(0))
