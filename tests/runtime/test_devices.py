"""The types that a device can compute in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from runtime import devices
from runtime.errors import ConfigError
from runtime.mxnet import mx


def test_float16_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.context, "num_gpus", lambda: 0)
    assert devices.choose(0, "float32") == mx.cpu()
    with pytest.raises(ConfigError, match="--dtype float16 needs a GPU"):
        devices.choose(0, "float16")


def test_a_rank_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.context, "num_gpus", lambda: 2)
    assert devices.choose(1, "float16") == mx.gpu(1)
    with pytest.raises(ConfigError, match="local rank 2 has no GPU: this host has 2"):
        devices.choose(2, "float32")


@pytest.mark.parametrize(("shown", "is_own"), [("3", True), ("GPU-5fa2,", True), ("0,1", False)])
def test_a_rank_takes_the_only_visible_gpu_if_it_is_its_own(
    monkeypatch: pytest.MonkeyPatch, shown: str, is_own: bool
) -> None:
    monkeypatch.setattr(mx.context, "num_gpus", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    if is_own:
        assert devices.choose(5, "float16") == mx.gpu(0)
        return
    with pytest.raises(ConfigError, match="local rank 5 has no GPU: this host has 1"):
        devices.choose(5, "float32")


def test_two_ranks_on_a_host_with_one_gpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.context, "num_gpus", lambda: 1)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(ConfigError, match="with CUDA_VISIBLE_DEVICES"):
        devices.choose(1, "float32")


@pytest.mark.parametrize("context", [mx.cpu(), mx.cpu(1)])
def test_uploads_have_the_values_that_were_there_when_they_were_queued(context: Any) -> None:
    upload, values, copies = devices.Uploads(context), np.zeros((64, 1000), np.int32), []
    for number in range(5):
        values[:] = number
        copies.append(upload(values))
    transposed = upload(np.arange(6, dtype=np.float32).reshape(2, 3).T)
    assert [copy.asnumpy()[0, 0] for copy in copies] == [0, 1, 2, 3, 4]
    assert all((copy.asnumpy() == number).all() for number, copy in enumerate(copies))
    assert {copy.context for copy in (*copies, transposed)} == {context}
    assert copies[0].dtype == np.int32
    assert transposed.asnumpy().tolist() == [[0, 3], [1, 4], [2, 5]]


def test_only_the_first_cpu_context_is_the_host() -> None:
    assert devices.is_host(mx.cpu()) and devices.is_host(mx.cpu(0))
    # MXNet has device 1 of the processor, too; the tests of the device path rely on it.
    assert not devices.is_host(mx.cpu(1))
    assert not devices.is_host(mx.gpu(0))
