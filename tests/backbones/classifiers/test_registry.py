from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from backbones import classifiers
from backbones.classifiers import Normalization
from runtime.errors import ConfigError
from runtime.mxnet import mx
from tests.support.graphs import fingerprint

# Of the originals, https://github.com/kuangliu/pytorch-cifar and, "resnet20" to "inception-bn", the
# graphs of https://github.com/CGCL-codes/MXNet-G as MXNet 1.9.1 builds them; for 10 classes. From
# "VGG11" on the layers of the originals were counted without PyTorch.
PARAMETERS = {
    "VGG16": 14_728_266,
    "ResNet18": 11_173_962,
    "ResNet50": 23_520_842,
    "ResNet101": 42_512_970,
    "RegNetX_200MF": 2_321_946,
    "RegNetY_400MF": 5_714_362,
    "MobileNetV2": 2_296_922,
    "ResNeXt29_32x4d": 4_774_218,
    "ResNeXt29_2x64d": 9_128_778,
    "SimpleDLA": 15_142_970,
    "DenseNet121": 6_956_298,
    "PreActResNet18": 11_171_146,
    "DPN92": 34_236_634,
    "DLA": 16_291_386,
    "resnet20": 272_544,
    "resnet164": 1_703_264,
    "inception-bn-28-small": 1_652_826,
    "VGG11": 9_231_114,
    "VGG13": 9_416_010,
    "VGG19": 20_040_522,
    "MobileNet": 3_217_226,
    "ResNet34": 21_282_122,
    "ResNet152": 58_156_618,
    "PreActResNet34": 21_279_306,
    "PreActResNet50": 23_509_066,
    "PreActResNet101": 42_501_194,
    "PreActResNet152": 58_144_842,
    "SENet18": 11_260_354,
    "RegNetX_400MF": 4_779_338,
    "ResNeXt29_4x64d": 27_104_586,
    "ResNeXt29_8x64d": 89_598_282,
    "DenseNet161": 26_482_378,
    "DenseNet169": 12_493_322,
    "DenseNet201": 18_104_330,
    "DPN26": 11_574_842,
    "densenet_cifar": 1_000_618,
}
MULTIPLY_ADDS = {
    "VGG16": 313,
    "ResNet18": 555,
    "ResNet50": 1298,
    "ResNet101": 2510,
    "RegNetX_200MF": 223,
    "RegNetY_400MF": 467,
    "MobileNetV2": 91,
    "ResNeXt29_32x4d": 773,
    "ResNeXt29_2x64d": 1410,
    "SimpleDLA": 914,
    "DenseNet121": 888,
    "PreActResNet18": 555,
    "DPN92": 2042,
    "DLA": 1031,
    "resnet20": 41.08,
    "resnet164": 247.65,
    "inception-bn-28-small": 204.22,
    "VGG11": 152.77,
    "VGG13": 228.27,
    "VGG19": 398.14,
    "MobileNet": 46.35,
    "ResNet34": 1159.4,
    "ResNet152": 3722.14,
    "PreActResNet34": 1159.4,
    "PreActResNet50": 1297.83,
    "PreActResNet101": 2509.98,
    "PreActResNet152": 3722.14,
    "SENet18": 555.51,
    "RegNetX_400MF": 466.16,
    "ResNeXt29_4x64d": 4228.08,
    "ResNeXt29_8x64d": 14093.1,
    "DenseNet161": 2467.55,
    "DenseNet169": 1059.8,
    "DenseNet201": 1363.89,
    "DPN26": 665.05,
    "densenet_cifar": 125.34,
}
# Of an image that multiply-adds are counted for.
SIDES = {"inception-bn-28-small": 28}
# Of the graphs, so that checkpoints of today are networks of tomorrow.
FINGERPRINTS = {
    "LeNet": 937345924,
    "VGG16": 1594744775,
    "ResNet18": 749203297,
    "ResNet50": 4293779912,
    "ResNet101": 3624689129,
    "RegNetX_200MF": 4033208470,
    "RegNetY_400MF": 1751678888,
    "MobileNetV2": 3222742530,
    "ResNeXt29_32x4d": 1698084123,
    "ResNeXt29_2x64d": 1755130008,
    "SimpleDLA": 2686472135,
    "DenseNet121": 2850704044,
    "PreActResNet18": 3722814407,
    "DPN92": 1155499731,
    "DLA": 68000077,
    "resnet20": 319892002,
    "resnet164": 3411617773,
    "inception-bn-28-small": 2452767766,
    "VGG11": 334788613,
    "VGG13": 4040930475,
    "VGG19": 4042983851,
    "MobileNet": 3809070148,
    "ResNet34": 882866266,
    "ResNet152": 2381865770,
    "PreActResNet34": 1579129339,
    "PreActResNet50": 117148430,
    "PreActResNet101": 2713479786,
    "PreActResNet152": 3344454057,
    "SENet18": 278031592,
    "RegNetX_400MF": 116537424,
    "ResNeXt29_4x64d": 3102360338,
    "ResNeXt29_8x64d": 3161506529,
    "DenseNet161": 2554625231,
    "DenseNet169": 2347563782,
    "DenseNet201": 1826375723,
    "DPN26": 255512220,
    "densenet_cifar": 511445800,
}
COLOR = Normalization((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))


def shapes(symbol, size=32) -> dict[str, tuple[int, ...]]:
    arguments, _, _ = symbol.infer_shape(data=(1, 3, size, size))
    found = dict(zip(symbol.list_arguments(), arguments))
    del found["data"]
    return found


def multiply_adds(symbol, size: int) -> int:
    """Those of convolutions and linear layers, for one image."""
    internals = symbol.get_internals()
    _, outputs, _ = internals.infer_shape(data=(1, 3, size, size))
    sizes = dict(zip(internals.list_outputs(), outputs))
    return sum(
        int(np.prod(shape[1:])) * int(np.prod(sizes[name.replace("_weight", "_output")]))
        for name, shape in shapes(symbol, size).items()
        if name.endswith("_weight")
    )


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_and_multiply_adds_are_those_of_the_originals(name: str) -> None:
    symbol = classifiers.build(name, classes=10, normalization=COLOR)
    assert sum(int(np.prod(shape)) for shape in shapes(symbol).values()) == PARAMETERS[name]
    digits = 1 if isinstance(MULTIPLY_ADDS[name], int) else 0.01
    counted = multiply_adds(symbol, SIDES.get(name, 32)) / 1e6
    assert counted == pytest.approx(MULTIPLY_ADDS[name], abs=digits)


def test_grouping_sgds_resnets_have_the_names_of_their_originals() -> None:
    names = list(shapes(classifiers.build("resnet20", classes=10, normalization=COLOR)))
    unit = "stage2_unit1"
    wanted = [
        *(f"{unit}_bn1_gamma", f"{unit}_bn1_beta", f"{unit}_conv1_weight"),
        *(f"{unit}_bn2_gamma", f"{unit}_bn2_beta", f"{unit}_conv2_weight", f"{unit}_sc_weight"),
    ]
    assert sorted(name for name in names if name.startswith(f"{unit}_")) == sorted(wanted)
    assert names[:3] == ["bn_data_gamma", "bn_data_beta", "conv0_weight"]
    assert names[-4:-2] == ["bn1_gamma", "bn1_beta"]
    # Every stage projects once, the first as well, and only a stage's first unit does.
    deep = list(shapes(classifiers.build("resnet164", classes=10, normalization=COLOR)))
    projections = [name for name in deep if name.endswith("_sc_weight")]
    assert projections == [f"stage{stage}_unit1_sc_weight" for stage in (1, 2, 3)]
    assert sum(name.endswith("_conv3_weight") for name in deep) == 3 * 18


def test_inceptions_gammas_stay_at_one() -> None:
    symbol = classifiers.build("inception-bn-28-small", classes=10, normalization=COLOR)
    norms = [node for name, node in symbol.attr_dict().items() if name.endswith("_bn")]
    assert {(node["fix_gamma"], float(node["eps"])) for node in norms} == {("True", 1e-3)}
    assert len(norms) == 19


def test_lenet_is_that_of_the_examples() -> None:
    symbol = classifiers.build("LeNet", classes=10, normalization=Normalization((0.1,), (0.3,)))
    arguments, _, _ = symbol.infer_shape(data=(1, 1, 28, 28))
    assert dict(zip(symbol.list_arguments(), arguments)) == {
        "data": (1, 1, 28, 28),
        "conv1_weight": (20, 1, 5, 5),
        "conv1_bias": (20,),
        "conv2_weight": (50, 20, 5, 5),
        "conv2_bias": (50,),
        "fc1_weight": (512, 50 * 4 * 4),
        "fc1_bias": (512,),
        "fc_output_weight": (10, 512),
        "fc_output_bias": (10,),
    }


@pytest.mark.parametrize("name", FINGERPRINTS)
def test_graphs_are_those_of_earlier_checkpoints(name: str) -> None:
    symbol = classifiers.build(name, classes=10, normalization=COLOR)
    assert fingerprint(symbol) == FINGERPRINTS[name]


def test_every_network_outside_of_the_zoo_has_a_fingerprint() -> None:
    assert list(FINGERPRINTS) == classifiers.names()[: len(FINGERPRINTS)]
    assert classifiers.names()[len(FINGERPRINTS) :] == list(classifiers._ZOO)


def test_the_zoo_is_written_down_completely() -> None:
    with pytest.raises(ValueError, match="Available options are") as caught:
        mx.gluon.model_zoo.vision.get_model("")
    known = str(caught.value).split("\t", 1)[1].split("\n\t")
    assert sorted(classifiers._ZOO) == sorted(known)


@pytest.mark.parametrize("name", classifiers._ZOO)
def test_every_network_of_the_zoo_can_be_built(name: str) -> None:
    symbol = classifiers.build(name, classes=7, normalization=COLOR)
    _, outputs, _ = symbol.infer_shape(data=(2, 3, 299, 299))
    assert outputs == [(2, 7)]


def test_resnet50_has_the_published_size() -> None:
    symbol = classifiers.build("resnet50_v1", classes=1000, normalization=COLOR)
    counted = sum(int(np.prod(shape)) for shape in shapes(symbol, 224).values())
    # The zoo's 1x1 convolutions have biases that the paper's do not; 25.56 M without them.
    assert round(counted / 1e6, 1) == 25.6


def test_unknown_names_get_the_closest_one() -> None:
    with pytest.raises(ConfigError, match=r"'ResNet19' is unknown \(did you mean 'ResNet18'\?\)"):
        classifiers.check("ResNet19")
    with pytest.raises(ConfigError, match="resnet50_v1"):
        classifiers.build("resnet50_v3", classes=2, normalization=COLOR)


def test_the_error_is_one_line() -> None:
    with pytest.raises(ConfigError) as caught:
        classifiers.check("ResNet19")
    assert "\n" not in str(caught.value)


def test_the_registry_does_not_load_mxnet() -> None:
    program = (
        "import sys; from backbones import classifiers; classifiers.check('ResNet18');"
        "classifiers.check('resnet50_v1'); sys.exit('mxnet' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_equal_names_whatever_was_built_before() -> None:
    for name in ("resnet18_v1", "MobileNetV2"):
        first = classifiers.build(name, classes=10, normalization=COLOR)
        classifiers.build("resnet34_v1", classes=10, normalization=COLOR)
        again = classifiers.build(name, classes=10, normalization=COLOR)
        assert again.tojson() == first.tojson()


@pytest.mark.parametrize("name", ["ResNet18", "RegNetY_400MF", "DPN92", "resnet18_v1"])
def test_float16_computes_the_network_only(name: str) -> None:
    symbol = classifiers.build(name, classes=10, normalization=COLOR, dtype="float16")
    arguments, outputs, statistics = symbol.infer_type(data="float32")
    types = dict(zip(symbol.list_arguments(), arguments))
    weights = {key: kind for key, kind in types.items() if key.endswith("_weight")}
    assert set(weights.values()) == {np.float16}
    assert {types["data"], *outputs, *statistics} == {np.float32}
