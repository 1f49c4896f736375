"""Every operator that a device runs has a kernel for GPUs in MXNet 1.9.1."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from backbones.network import Network
from partial_fc.options import LOSSES
from partial_fc.shard import STATES
from runtime.mxnet import mx
from tests.device import gpu_kernels
from tests.device.engine_operations import counted_operations
from tests.device.half_products import emulate_float16
from tests.device.updates import DEVICE, ClassifierUpdates, Faces, FaceUpdates

# Of MXNet's arrays and not of an operator, for all devices: a copy, whose name tells from where to
# where, and a fill.
NO_OPERATORS = {"CopyCPU2CPU", "SetValueOp"}


def test_the_list_is_that_of_the_version_in_use() -> None:
    title, *names = gpu_kernels.LIST.read_text().splitlines()
    pins = (gpu_kernels.LIST.parents[2] / "requirements.txt").read_text()
    assert title.endswith("tag 1.9.1") and "mxnet==1.9.1" in pins
    assert names == sorted(names) and len(names) > 500
    count, known = ctypes.c_uint(), ctypes.POINTER(ctypes.c_char_p)()
    mx.base._LIB.MXListAllOpNames(ctypes.byref(count), ctypes.byref(known))
    # The package for CPUs lacks these.
    others = {"_FusedOp", "_TensorRT", "_contrib_mrcnn_mask_target"}
    assert set(names) - {name.decode() for name in known[: count.value]} == others
    assert gpu_kernels.WAITING < set(names)


def operators(updates: Any, folder: Path) -> set[str]:
    """What an update runs when it has run twice before, with no operators joined."""
    updates.train(2)
    with counted_operations(folder) as found:
        updates.train(1, start=2)
    assert not set(found) & gpu_kernels.WAITING
    return set(found) - NO_OPERATORS


@pytest.fixture(autouse=True)
def separate_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the engine run a network's operators one by one, under their own names."""
    flags = {"forward_bulk_size": 1, "backward_bulk_size": 1}
    monkeypatch.setattr(
        Network,
        "hybridize",
        lambda self: self._block.hybridize(static_alloc=True, static_shape=True, **flags),
    )


CHOICES = [
    *map(Faces, LOSSES),
    *(Faces(optimizer=optimizer) for optimizer in STATES if optimizer != "sgd"),
    Faces(filter_threshold=0.2),
]


@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_faces(choices: Faces, tmp_path: Path) -> None:
    found = operators(FaceUpdates(choices, DEVICE), tmp_path)
    assert found > {"Convolution", "_backward_Convolution", "BatchNorm", "FullyConnected"}
    assert found <= gpu_kernels.listed()


@pytest.mark.parametrize("optimizer", sorted(STATES))
def test_float16(optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emulate_float16(monkeypatch)
    for recompute in (False, True):
        choices = Faces("cosface", optimizer, "float16", recompute=recompute)
        found = operators(FaceUpdates(choices, DEVICE), tmp_path)
        assert found <= gpu_kernels.listed()


def test_prelu(tmp_path: Path) -> None:
    found = operators(FaceUpdates(Faces(network="r18"), DEVICE), tmp_path)
    assert "_backward_LeakyReLU" in found and found <= gpu_kernels.listed()


@pytest.mark.parametrize("mixup", [0.0, 0.2])
def test_classifiers(mixup: float, tmp_path: Path) -> None:
    found = operators(ClassifierUpdates(DEVICE, mixup=mixup), tmp_path)
    assert "log_softmax" in found and found <= gpu_kernels.listed()
