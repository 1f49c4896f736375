from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from backbones import classifiers
from backbones.classifiers.classifier import _last_gammas
from backbones.network import Network
from runtime.errors import ConfigError, DataError
from runtime.mxnet import mx
from tests.backbones.passes import DATA, assert_same, classifier, conv, norm, values

CIFAR = [name for name in classifiers._ARCHITECTURES if name != "LeNet"]
# One of each kind of block; a step of the others takes too long for every run of the tests.
QUICK = {"RegNetY_400MF", "resnet20", "inception-bn-28-small", "SENet18", "MobileNet"}
STEPS = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.models) for name in CIFAR]


# The last layer may be a convolution, with an activation and pooling behind it.
@pytest.mark.parametrize(("name", "side"), [
    ("resnet20", 32), ("mobilenet0.25", 32), ("squeezenet1.1", 224),
])
def test_a_checkpoint_for_other_classes_gives_the_other_layers(name, side, tmp_path) -> None:
    shape = (3, side, side)
    first, network = classifier(name, shape, classes=7, seed=5), classifier(name, shape, seed=9)
    first.export(tmp_path / "first", 3)
    before, given = values(network), values(first)
    fresh = network.load_pretrained(tmp_path / "first", 3)
    assert fresh and all(len(before[one]) == 10 and len(given[one]) == 7 for one in fresh)
    assert_same(values(network), {**given, **{one: before[one] for one in fresh}})
    # With the same classes everything is taken.
    assert classifier(name, shape, classes=7).load_pretrained(tmp_path / "first", 3) == []


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


def train(network: Network, images: np.ndarray) -> float:
    """Take a step of SGD on images whose labels are 0, 1, ...; return the loss."""
    optimizer = mx.optimizer.SGD(learning_rate=0.01)
    trainer = mx.gluon.Trainer(network.parameters, optimizer, kvstore=None)
    with mx.autograd.record():
        measure = mx.gluon.loss.SoftmaxCrossEntropyLoss()
        loss = measure(network(mx.nd.array(images)), mx.nd.arange(len(images)))
    loss.backward()
    trainer.step(len(images))
    return float(loss.mean().asscalar())


@pytest.mark.parametrize("name", STEPS)
def test_a_step_trains_and_an_export_gives_the_same(name: str, tmp_path: Path) -> None:
    images = np.random.default_rng(3).integers(0, 256, (2, 3, 32, 32), np.uint8)
    network = classifier(name, seed=2)
    before = values(network)
    assert np.isfinite(train(network, images))
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


# Of Gluon's units the BatchNorm before the sum, not that of the projection, which is counted last.
ZOO = {"zoo_stage1_batchnorm1", "zoo_stage1_batchnorm3"} | {
    f"zoo_stage{stage}_batchnorm{place}" for stage in (2, 3, 4) for place in (1, 4)
}


@pytest.mark.parametrize(("name", "count", "last"), [
    *(("MobileNetV2", 14, "conv3_bn"), ("RegNetX_200MF", 13, "conv3_bn")),
    *(("DLA", 14, "conv2_bn"), ("resnet18_v1", 8, "")),
])
def test_last_gammas_are_those_that_end_the_residuals(name: str, count: int, last: str) -> None:
    found = values(classifier(name, (3, 64, 64), last_gamma=True)).items()
    zeroed = [key for key, value in found if key.endswith("_gamma") and not value.any()]
    assert len(zeroed) == count and all(key.endswith(f"{last}_gamma") for key in zeroed)
    assert last or {key[: -len("_gamma")] for key in zeroed} == ZOO


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
