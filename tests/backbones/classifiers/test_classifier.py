import json
import math
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from backbones import classifiers
from backbones.classifiers import Normalization
from backbones.model import _last_gammas
from runtime.errors import ConfigError, DataError
from runtime.mxnet import mx
from tests.backbones.passes import DATA, IMAGES, assert_same, classifier, conv, norm, train, values
from tests.support.graphs import fingerprint

# All but LeNet, for 10 classes: parameters of the originals,
# https://github.com/kuangliu/pytorch-cifar and, "resnet20" to "inception-bn", the graphs of
# https://github.com/CGCL-codes/MXNet-G as MXNet 1.9.1 builds them
# (from "VGG11" on the layers of the originals were counted without PyTorch).
NETWORKS = {
    "VGG16": 14_728_266, "ResNet18": 11_173_962, "ResNet50": 23_520_842, "ResNet101": 42_512_970,
    "RegNetX_200MF": 2_321_946, "RegNetY_400MF": 5_714_362, "MobileNetV2": 2_296_922,
    "ResNeXt29_32x4d": 4_774_218, "ResNeXt29_2x64d": 9_128_778, "SimpleDLA": 15_142_970,
    "DenseNet121": 6_956_298, "PreActResNet18": 11_171_146, "DPN92": 34_236_634, "DLA": 16_291_386,
    "resnet20": 272_544, "resnet164": 1_703_264, "inception-bn-28-small": 1_652_826,
    "VGG11": 9_231_114, "VGG13": 9_416_010, "VGG19": 20_040_522, "MobileNet": 3_217_226,
    "ResNet34": 21_282_122, "ResNet152": 58_156_618, "PreActResNet34": 21_279_306,
    "PreActResNet50": 23_509_066, "PreActResNet101": 42_501_194, "PreActResNet152": 58_144_842,
    "SENet18": 11_260_354, "RegNetX_400MF": 4_779_338, "ResNeXt29_4x64d": 27_104_586,
    "ResNeXt29_8x64d": 89_598_282, "DenseNet161": 26_482_378, "DenseNet169": 12_493_322,
    "DenseNet201": 18_104_330, "DPN26": 11_574_842, "densenet_cifar": 1_000_618,
}
COLOR = Normalization((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
build = partial(classifiers.build, classes=10, normalization=COLOR)


def test_networks_are_those_of_the_originals_and_of_earlier_checkpoints() -> None:
    fingerprints = []
    for name, parameters in NETWORKS.items():
        symbol = build(name)
        fingerprints.append(fingerprint(symbol))
        (_, *shapes), _, _ = symbol.infer_shape(data=(1, 3, 32, 32))
        assert sum(map(math.prod, shapes)) == parameters, name
    # Checkpoints of today are networks of tomorrow.
    assert zlib.crc32(json.dumps(fingerprints).encode()) == 2781524649


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


# One of each kind of block; a step of the others takes too long for every run of the tests.
QUICK = {"RegNetY_400MF", "resnet20", "inception-bn-28-small", "SENet18", "MobileNet"}
STEPS = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.models) for name in NETWORKS]


# The last layer may be a convolution, with an activation and pooling behind it.
@pytest.mark.parametrize(("name", "side"), [
    ("resnet20", 32), ("mobilenet0.25", 32), ("mobilenetv2_0.25", 32), ("squeezenet1.1", 224),
])
def test_a_checkpoint_for_other_classes_gives_the_other_layers(name, side, tmp_path) -> None:
    shape = (3, side, side)
    first, network = classifier(name, shape, classes=7, seed=5), classifier(name, shape, seed=9)
    first.export(tmp_path / "first", 3)
    before, given = values(network), values(first)
    network.load_pretrained(tmp_path / "first", 3)
    fresh = {one: value for one, value in before.items() if value.shape != given[one].shape}
    assert 1 <= len(fresh) <= 2
    assert_same(values(network), {**given, **fresh})
    same = classifier(name, shape, classes=7)
    same.load_pretrained(tmp_path / "first", 3)
    assert_same(values(same), given)


def test_a_checkpoint_of_another_model_is_refused_by_its_first_tensor(tmp_path: Path) -> None:
    classifier("LeNet").export(tmp_path / "first")
    arrays = mx.nd.load(str(tmp_path / "first-0000.params"))
    mx.nd.save(str(tmp_path / "more-0000.params"), {**arrays, "arg:odd": mx.nd.zeros(3)})
    small = (3, 28, 28)
    for network, file, message in (
        (classifier("ResNet18"), "first", "first-0000.params: the file has no tensor '"),
        (classifier("LeNet"), "more", "this --model has no tensor 'odd'; give a checkpoint"),
        (classifier("LeNet", small), "first", r"'.*' has shape \(.*\), this network's has"),
        (classifier("LeNet", small, classes=4), "first", "'.*' has shape"),
    ):
        with pytest.raises(DataError, match=message):
            network.load_pretrained(tmp_path / file, 0)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_trains_and_an_export_gives_the_same(name: str, tmp_path: Path) -> None:
    images, network = IMAGES[:2, :, :32, :32], classifier(name, seed=2)
    before, found = values(network), train(network, images, updates=1)
    assert np.isfinite(found["features"]).all()
    after = values(network)
    assert all(np.isfinite(value).all() for value in after.values())
    # A gamma of one swallows the smallest gradients, and BatchNorm takes those of biases away.
    unchanged = [key for key in after if np.array_equal(before[key], after[key])]
    assert not [key for key in unchanged if key.endswith("_weight")]
    logits = network.extract(images[:1])
    assert logits.shape == (1, 10) and logits.dtype == np.float32
    network.export(tmp_path / "model")
    files = f"{tmp_path}/model-symbol.json", ["data"], f"{tmp_path}/model-0000.params"
    block = mx.gluon.SymbolBlock.imports(*files)
    found = block(mx.nd.array(images[:1], dtype="float32")).asnumpy()
    # The plain graph of the file may run by other kernels than the form for processors.
    limit = 1e-5 * np.abs(found).max()
    np.testing.assert_allclose(found, logits, rtol=1e-5, atol=limit)


@pytest.mark.parametrize(("name", "count", "last"), [
    *(("MobileNetV2", 14, "conv3_bn"), ("RegNetX_200MF", 13, "conv3_bn")),
    *(("DLA", 14, "conv2_bn"), ("resnet18_v1", 8, "")),
])
def test_last_gammas_are_those_that_end_the_residuals(name: str, count: int, last: str) -> None:
    found = values(classifier(name, (3, 64, 64), last_gamma=True)).items()
    zeroed = [key for key, value in found if key.endswith("_gamma") and not value.any()]
    assert len(zeroed) == count and all(key.endswith(f"{last}_gamma") for key in zeroed)
    # Of Gluon's units the BatchNorm before the sum, not that of the projection, counted last.
    zoo = [f"zoo_stage{i // 2 + 1}_batchnorm{n}_gamma" for i, n in enumerate([1, 3] + [1, 4] * 3)]
    assert last or sorted(zeroed) == zoo


def test_the_deeper_addend_ends_the_residual_wherever_it_stands() -> None:
    short, long = norm(DATA, "short"), norm(conv(norm(DATA, "inner"), "conv"), "long")
    for addends in ((short, long), (long, short)):
        assert _last_gammas("", mx.sym.elemwise_add(*addends)) == ["long_gamma"]


def test_models_that_the_options_or_images_do_not_suit(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("LeNet", "resnet20"):
        with pytest.raises(ConfigError, match=f"--last-gamma.*{name}"):
            classifier(name, last_gamma=True)
    with pytest.raises(ConfigError, match=r"inceptionv3 cannot take images of 3 x 32 x 32"):
        classifier("inceptionv3")
    assert capsys.readouterr().out == "", "MXNet's lines would make it several"
