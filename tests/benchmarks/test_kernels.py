"""Every network runs without reference kernels, and with no more reorders than a stated number.

The short form has two networks that would have reference kernels, or many reorders, as their plain
graphs.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from benchmarks import kernels
from runtime.environment import Bfloat16Unit, bfloat16_unit, channel_block


class Limits(NamedTuple):
    """Reorders of maps at most, with AVX2 or AVX-512; reference kernels of inference with AVX-512.

    For inference oneDNN's convolutions write NHWC (acdb) there, but for those to which its matrix
    kernel does not take: where both meet in a sum or a concatenation, that is a reference kernel.
    MXNet writes the parts of maps of short rows in the plain layout, four reorders a layer.
    """

    training: int
    inference: int
    references: int = 0


LIMITS = {
    "VGG16": Limits(20, 21),
    "ResNet18": Limits(18, 16),
    "ResNet50": Limits(50, 30),
    "ResNet101": Limits(101, 30),
    "RegNetX_200MF": Limits(61, 15),
    "RegNetY_400MF": Limits(354, 89),
    "MobileNetV2": Limits(54, 3),
    "ResNeXt29_32x4d": Limits(44, 23),
    "ResNeXt29_2x64d": Limits(38, 15),
    "SimpleDLA": Limits(96, 25),
    "DenseNet121": Limits(356, 18, 16),
    "PreActResNet18": Limits(17, 16),
    "DPN92": Limits(437, 148),
    "DLA": Limits(100, 25),
    "LeNet": Limits(2, 2),
    "resnet20": Limits(20, 1),
    "resnet164": Limits(164, 1),
    "inception-bn-28-small": Limits(78, 11, 4),
    "r18": Limits(13, 5),
    "r50": Limits(29, 5),
    "r18-se": Limits(94, 21),
    "mbf": Limits(68, 5),
    "tiny": Limits(16, 6),
}
# Which of two operators reads an array first, and so reorders it, MXNet's threads decide: one more
# was seen in 94. So one in twenty is allowed above the limits, and at least one.
SLACK = 20


def networks(*short: str) -> list[object]:
    """All networks, of which a few are in the short form."""
    return [
        pytest.param(name, marks=() if name in short else pytest.mark.kernels) for name in LIMITS
    ]


@pytest.mark.parametrize("work", kernels.WORK)
@pytest.mark.parametrize("network", networks("MobileNetV2", "r18-se"))
def test_a_network_has_fast_kernels(network: str, work: str) -> None:
    (step,) = kernels.steps(*kernels.subject(network, work, batch=8), threads=2)
    # Several for each layer; it is the whole step.
    assert len(step.primitives) > 8
    limits = LIMITS[network]
    allowed = limits.references if work == "inference" and channel_block() == 16 else 0
    # Those of the loss are not of the network.
    references = [one for one in step.references if one.kind != "softmax"]
    found = "\n".join(kernels.described(one) for one in references)
    assert len(references) <= allowed, found
    for one in references:
        assert one.kind in ("sum", "concat") and "acdb" in [name for _, name in one.layouts], found
    limit = getattr(limits, work)
    assert len(step.moved_maps) <= limit + max(limit // SLACK, 1)


@pytest.mark.skipif(not bfloat16_unit(), reason="needs a processor that multiplies bfloat16")
@pytest.mark.parametrize("network", networks("tiny", "resnet20"))
def test_a_network_has_fast_kernels_in_bfloat16(network: str) -> None:
    (step,) = kernels.steps(*kernels.subject(network, "training", 4, "bfloat16"), threads=2)
    assert not step.references, "\n".join(kernels.described(one) for one in step.references)
    # Forward and backward of the embedding's; a DenseNet's are of concatenations, in float32.
    plain = [one for one in step.primitives if one.implementation == "ncsp_bnorm:any"]
    assert len(plain) <= 2 or network == "DenseNet121", "\n".join(map(kernels.described, plain))
    name = "amx" if bfloat16_unit() is Bfloat16Unit.TILES else "bf16"
    narrow = [one for one in step.primitives if name in one.implementation]
    # Those of 20 and 50 channels fill no tile and no register.
    assert len(narrow) > 20 or network == "LeNet"
