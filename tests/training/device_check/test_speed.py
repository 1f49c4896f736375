"""The counter of waits, and single operators of a device."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.gpu_check import Wrong
from runtime.mxnet import mx
from training.device_check import contexts, speed


def test_waits_for_the_host_do_not_count() -> None:
    host, device = (mx.nd.ones((3,), ctx=context) for context in (mx.cpu(), mx.cpu(1)))
    mx.nd.waitall()
    with speed.counted_waits() as counts:
        host.asnumpy()
        host.wait_to_read()
        host[:] = np.zeros(3, np.float32)
        pinned = mx.nd.empty((3,), ctx=mx.cpu_pinned())
        pinned[:] = np.zeros(3, np.float32)
        copy = device + 1
        assert not counts
        pinned.asnumpy()
        copy.asnumpy()
        copy.wait_to_read()
        copy[:] = np.zeros(3, np.float32)
        mx.nd.waitall()
    assert counts == {"SyncCopyToCPU": 2, "WaitToRead": 1, "SyncCopyFromCPU": 1, "WaitAll": 1}
    device.asnumpy()
    assert sum(counts.values()) == 5


def test_an_update_with_more_waits_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert " for the device in an update" in speed._count(mx.cpu(1), "float32")
    update = speed.Training.update

    def waiting(self, number):
        loss = update(self, number)
        for _ in range(3):
            loss.wait_to_read()
        return loss

    monkeypatch.setattr(speed.Training, "update", waiting)
    with pytest.raises(Wrong, match="WaitToRead .*; at most 1 expected"):
        speed._count(mx.cpu(1), "float32")


def test_names_of_contexts() -> None:
    assert contexts.parse("gpu(3)") == mx.gpu(3)
    assert contexts.parse("cpu(1)") == mx.cpu(1)


def test_a_device_with_wrong_products_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    product = mx.nd.FullyConnected

    def wrong(data, weight, **attributes):
        result = product(data, weight, **attributes)
        return result * 1.01 if data.context == mx.cpu(1) else result

    monkeypatch.setattr(mx.nd, "FullyConnected", wrong)
    lines = list(contexts.lines(mx.cpu(1)))
    assert [line[:30] for line in lines if line.startswith("FAIL")] == [
        "FAIL     cpu(1) product float3"
    ]
    assert "off by 1.0e-02 of the largest value, allowed 0.002" in lines[1]
    assert lines[0].startswith("pass") and lines[2].startswith("pass")
