"""Single operators of a device."""

from __future__ import annotations

import pytest

from runtime.mxnet import mx
from training.device_check import contexts


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
