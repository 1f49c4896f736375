"""Every network runs without reference kernels, and with no more reorders than a stated number.

A step runs in a process of its own, in which oneDNN 2.4.4 prints what it executes
(``DNNL_VERBOSE=1``):

    dnnl_verbose,exec,cpu,convolution,jit:avx2,forward_training,<layouts>,<attributes>,
    <auxiliary>,<problem>,<milliseconds>
"""

from __future__ import annotations

import re
import sys
from typing import NamedTuple

import pytest

from runtime.environment import bfloat16_unit, channel_block
from tests.support.launch import finish

WORK = {"training": "ToolkitTraining", "inference": "ToolkitInference"}
THIRD = "the third step"
_STEP = f"""
import sys
from benchmarks import toolkit_subjects
name, network, batch, dtype = sys.argv[1:]
taken = getattr(toolkit_subjects, name)(network, int(batch), dtype)
for step in range(3):
    print("{THIRD}" if step == 2 else "", flush=True)
    taken.step()
"""
_LAYOUT = re.compile(r"[a-z]+_[a-z0-9]+:[^:\s]*:blocked:([A-Za-z0-9]+):")
# Kernels are blocked along their outputs, or have a dimension for the groups; maps do not.
_KERNEL_LAYOUT = re.compile(r"A|^abcde$|e")


class Limits(NamedTuple):
    """Reorders of maps at most, with AVX2 or AVX-512; reference kernels of inference with AVX-512.

    In training, sums of products by squeeze and excitation with a shortcut are reference kernels.

    For inference most of oneDNN's convolutions write NHWC (acdb) there: a sum or a concatenation
    with others is a reference kernel.
    """

    training: int
    inference: int
    references: int = 0
    sums: int = 0


class Primitive(NamedTuple):
    """An execution: its kind, oneDNN's implementation, the layouts of its arrays, its sizes."""

    kind: str
    implementation: str
    layouts: list[str]
    sizes: str

    @property
    def is_reference(self) -> bool:
        return re.search(r"\bref|_ref", self.implementation) is not None

    @property
    def moves_maps(self) -> bool:
        """True for a reorder of maps, of plain kernels too; an array of one pixel is no map."""
        is_map = all("d" in one and not _KERNEL_LAYOUT.search(one) for one in self.layouts)
        return self.kind == "reorder" and is_map and not self.sizes.endswith("x1x1")


LIMITS = {
    "VGG16": Limits(20, 21), "ResNet18": Limits(18, 16, 1), "ResNet50": Limits(50, 30),
    "ResNet101": Limits(101, 30), "RegNetX_200MF": Limits(61, 15), "RegNetY_400MF": Limits(354, 89),
    "MobileNetV2": Limits(54, 3), "ResNeXt29_32x4d": Limits(44, 23),
    "ResNeXt29_2x64d": Limits(38, 15), "SimpleDLA": Limits(96, 25, 2),
    "DenseNet121": Limits(356, 18, 16), "PreActResNet18": Limits(17, 16, 1),
    "DPN92": Limits(437, 148), "DLA": Limits(100, 25, 2), "LeNet": Limits(2, 2),
    "resnet20": Limits(20, 1), "resnet164": Limits(164, 1),
    "inception-bn-28-small": Limits(78, 11, 4), "r18": Limits(13, 5), "r50": Limits(29, 5),
    "r18-se": Limits(94, 23, 1, 4), "mbf": Limits(68, 9), "tiny": Limits(16, 6),
}  # fmt: skip
# MXNet's threads decide which of two operators reorders an array: one more was seen in 94.
SLACK = 20


def networks(*short: str) -> list[object]:
    """Return all networks; only the named ones, whose plain graphs are slow, are tested usually."""
    long = pytest.mark.kernels
    return [pytest.param(name, marks=() if name in short else long) for name in LIMITS]


def third_step(network: str, work: str, batch: int, dtype: str = "float32") -> list[Primitive]:
    """Return what oneDNN executes in a step, after two that warm up."""
    words = (_STEP, WORK[work], network, batch, dtype)
    done = finish(sys.executable, "-c", *words, DNNL_VERBOSE="1", OMP_NUM_THREADS="2")
    executed = re.findall(r"^dnnl_verbose,exec,.*$", done.stdout.partition(THIRD)[2], re.M)
    fields = [line.split(",") for line in executed]
    return [Primitive(one[3], one[4], _LAYOUT.findall(one[6]), one[9]) for one in fields]


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("network", networks("MobileNetV2", "tiny"))
def test_a_network_has_fast_kernels(network: str, work: str) -> None:
    step = third_step(network, work, batch=8)
    # Several for each layer; it is the whole step.
    assert len(step) > 8
    limits = LIMITS[network]
    allowed = limits.references if channel_block() == 16 else 0
    allowed = allowed if work == "inference" else limits.sums
    # Those of the loss are not of the network.
    references = [one for one in step if one.is_reference and one.kind != "softmax"]
    assert len(references) <= allowed, references
    assert all(one.kind in ("sum", "concat") for one in references)
    assert work == "training" or all("acdb" in one.layouts for one in references)
    limit = getattr(limits, work)
    assert sum(one.moves_maps for one in step) <= limit + max(limit // SLACK, 1)


@pytest.mark.skipif(not bfloat16_unit(), reason="needs a processor that multiplies bfloat16")
@pytest.mark.parametrize("network", networks("tiny", "resnet20"))
def test_a_network_has_fast_kernels_in_bfloat16(network: str) -> None:
    step = third_step(network, "training", 4, "bfloat16")
    assert not [one for one in step if one.is_reference]
    # Forward and backward of the embedding's; a DenseNet's are of concatenations, in float32.
    plain = [one for one in step if one.implementation == "ncsp_bnorm:any"]
    assert len(plain) <= 2 or network == "DenseNet121", plain
    name = "amx" if bfloat16_unit() == "AMX" else "bf16"
    # Those of 20 and 50 channels fill no tile and no register.
    assert sum(name in one.implementation for one in step) > 20 or network == "LeNet"
