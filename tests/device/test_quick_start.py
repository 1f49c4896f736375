"""The run of the quick start learns on the device path as it does on the host.

On the host, two ranks with 64 images each end at 0.9577. Here one rank with a batch of 128 trains
on the same 12,000 images, with as many updates and the same learning rate. The updates take about
80 seconds of a processor in float32, and 260 in float16.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import train
from tests.device.half_products import emulate_float16
from tests.device.programs import reports, run_on
from tests.device.updates import DEVICE

UNTRAINED, TRAINED = 0.6, 0.93


@pytest.mark.device
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_quick_start_learns(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulate_float16(monkeypatch)
    run_on(
        DEVICE,
        train,
        *("--dataset", "synthetic", "--rec", tmp_path / "synthetic", "--dtype", dtype),
        *("--batch-size", 128, "--models-root", tmp_path / "models"),
    )
    accuracies = reports(tmp_path / "models", "accuracy")
    assert accuracies[0] < UNTRAINED and accuracies[-1] >= TRAINED, accuracies
    losses = reports(tmp_path / "models", "loss")
    assert losses[-1] < 0.5 * losses[0]
