from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from backbones import classifiers
from backbones.classifiers import Normalization
from runtime.errors import ConfigError
from runtime.mxnet import mx
from tests.support.graphs import fingerprint

# All but LeNet, for 10 classes: parameters and millions of multiply-adds of the originals,
# https://github.com/kuangliu/pytorch-cifar and, "resnet20" to "inception-bn", the graphs of
# https://github.com/CGCL-codes/MXNet-G as MXNet 1.9.1 builds them (from "VGG11" on the layers of
# the originals were counted without PyTorch); and the fingerprint of the graph, so that checkpoints
# of today are networks of tomorrow.
NETWORKS = {
    "VGG16": (14_728_266, 313, 1594744775),
    "ResNet18": (11_173_962, 555, 749203297),
    "ResNet50": (23_520_842, 1298, 4293779912),
    "ResNet101": (42_512_970, 2510, 3624689129),
    "RegNetX_200MF": (2_321_946, 223, 4033208470),
    "RegNetY_400MF": (5_714_362, 467, 1751678888),
    "MobileNetV2": (2_296_922, 91, 3222742530),
    "ResNeXt29_32x4d": (4_774_218, 773, 1698084123),
    "ResNeXt29_2x64d": (9_128_778, 1410, 1755130008),
    "SimpleDLA": (15_142_970, 914, 2686472135),
    "DenseNet121": (6_956_298, 888, 2850704044),
    "PreActResNet18": (11_171_146, 555, 3722814407),
    "DPN92": (34_236_634, 2042, 1155499731),
    "DLA": (16_291_386, 1031, 68000077),
    "resnet20": (272_544, 41.08, 319892002),
    "resnet164": (1_703_264, 247.65, 3411617773),
    "inception-bn-28-small": (1_652_826, 204.22, 2452767766),
    "VGG11": (9_231_114, 152.77, 334788613),
    "VGG13": (9_416_010, 228.27, 4040930475),
    "VGG19": (20_040_522, 398.14, 4042983851),
    "MobileNet": (3_217_226, 46.35, 3809070148),
    "ResNet34": (21_282_122, 1159.4, 882866266),
    "ResNet152": (58_156_618, 3722.14, 2381865770),
    "PreActResNet34": (21_279_306, 1159.4, 1579129339),
    "PreActResNet50": (23_509_066, 1297.83, 117148430),
    "PreActResNet101": (42_501_194, 2509.98, 2713479786),
    "PreActResNet152": (58_144_842, 3722.14, 3344454057),
    "SENet18": (11_260_354, 555.51, 278031592),
    "RegNetX_400MF": (4_779_338, 466.16, 116537424),
    "ResNeXt29_4x64d": (27_104_586, 4228.08, 3102360338),
    "ResNeXt29_8x64d": (89_598_282, 14093.1, 3161506529),
    "DenseNet161": (26_482_378, 2467.55, 2554625231),
    "DenseNet169": (12_493_322, 1059.8, 2347563782),
    "DenseNet201": (18_104_330, 1363.89, 1826375723),
    "DPN26": (11_574_842, 665.05, 255512220),
    "densenet_cifar": (1_000_618, 125.34, 511445800),
}
COLOR = Normalization((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))


def build(name: str, **more: Any) -> Any:
    return classifiers.build(name, **{"classes": 10, "normalization": COLOR, **more})


def counts(symbol: Any, size: int) -> tuple[int, float]:
    """Parameters, and millions of multiply-adds of convolutions and linear layers for one image."""
    internals = symbol.get_internals()
    arguments, outputs, _ = internals.infer_shape(data=(1, 3, size, size))
    shapes = dict(zip(internals.list_arguments(), arguments))
    del shapes["data"]
    sizes = dict(zip(internals.list_outputs(), map(math.prod, outputs)))
    products = sum(
        math.prod(shape[1:]) * sizes[name.replace("_weight", "_output")]
        for name, shape in shapes.items()
        if name.endswith("_weight")
    )
    return sum(map(math.prod, shapes.values())), products / 1e6


def test_networks_are_those_of_the_originals_and_of_earlier_checkpoints() -> None:
    for name, (parameters, millions, expected) in NETWORKS.items():
        symbol = build(name)
        assert fingerprint(symbol) == expected, name
        found, counted = counts(symbol, 28 if name.startswith("inception") else 32)
        digits = 1 if isinstance(millions, int) else 0.01
        assert found == parameters and counted == pytest.approx(millions, abs=digits), name


def test_lenet_is_that_of_the_examples() -> None:
    assert fingerprint(build("LeNet")) == 937345924
    symbol = build("LeNet", normalization=Normalization((0.1,), (0.3,)))
    arguments, _, _ = symbol.infer_shape(data=(1, 1, 28, 28))
    assert arguments[1::2] == [(20, 1, 5, 5), (50, 20, 5, 5), (512, 50 * 4 * 4), (10, 512)]


def test_the_names_are_written_down_completely() -> None:
    assert classifiers.names() == ["LeNet", *NETWORKS, *classifiers._ZOO]
    with pytest.raises(ValueError, match="Available options are") as caught:
        mx.gluon.model_zoo.vision.get_model("")
    known = str(caught.value).split("\t", 1)[1].split("\n\t")
    assert sorted(classifiers._ZOO) == sorted(known)
    for name, message in (
        ("ResNet19", r"'ResNet19' is unknown \(did you mean 'ResNet18'\?\)"),
        ("resnet50_v3", "resnet50_v1"),
    ):
        with pytest.raises(ConfigError, match=message) as refused:
            build(name)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", classifiers._ZOO)
def test_every_network_of_the_zoo_can_be_built(name: str) -> None:
    _, outputs, _ = build(name, classes=7).infer_shape(data=(2, 3, 299, 299))
    assert outputs == [(2, 7)]


@pytest.mark.parametrize("name", ["ResNet18", "RegNetY_400MF", "DPN92", "resnet18_v1"])
def test_float16_computes_the_network_only(name: str) -> None:
    symbol = build(name, dtype="float16")
    arguments, outputs, statistics = symbol.infer_type(data="float32")
    types = dict(zip(symbol.list_arguments(), arguments))
    assert {types[key] for key in types if key.endswith("_weight")} == {np.float16}
    assert {types["data"], *outputs, *statistics} == {np.float32}
