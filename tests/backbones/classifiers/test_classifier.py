from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backbones import classifiers
from backbones.classifiers import Normalization
from backbones.classifiers import classifier as classifier_module
from backbones.classifiers.classifier import Classifier
from backbones.options import ClassifierOptions
from runtime.errors import ConfigError, DataError
from runtime.mxnet import mx

CIFAR = [name for name in classifiers._ARCHITECTURES if name != "LeNet"]
# One of each kind of block; a step of the others takes too long for every run of the tests.
QUICK = {"RegNetY_400MF", "resnet20", "inception-bn-28-small", "SENet18", "MobileNet"}
STEPS = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.models) for name in CIFAR]
COLOR = Normalization((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))


def make(name: str, dtype: str = "float32", last_gamma: bool = False, **more: Any) -> Classifier:
    settings: Any = {"classes": 10, "image_shape": (3, 32, 32), "normalization": COLOR, **more}
    options = ClassifierOptions(dtype, model=name, last_gamma=last_gamma)
    return Classifier.create(options, **settings)


def random_images(count: int) -> Any:
    images = np.random.default_rng(3).integers(0, 256, (count, 3, 32, 32), np.uint8)
    return mx.nd.array(images, dtype="uint8")


def values(classifier: Classifier) -> dict[str, np.ndarray]:
    return {name: p.data().asnumpy() for name, p in classifier.parameters.items()}


def train(classifier: Classifier, images: Any) -> float:
    """Take a step of SGD on images whose labels are 0, 1, ...; return the loss."""
    optimizer = mx.optimizer.SGD(learning_rate=0.01)
    trainer = mx.gluon.Trainer(classifier.parameters, optimizer, kvstore=None)
    with mx.autograd.record():
        measure = mx.gluon.loss.SoftmaxCrossEntropyLoss()
        loss = measure(classifier(images), mx.nd.arange(len(images)))
    loss.backward()
    trainer.step(len(images))
    return float(loss.mean().asscalar())


@pytest.mark.parametrize("name", ["resnet20", "mobilenet0.25"])
def test_a_checkpoint_for_other_classes_gives_the_other_layers(name: str, tmp_path: Path) -> None:
    shape = (3, 32, 32)
    first = make(name, classes=7, image_shape=shape, seed=5)
    first.export(tmp_path / "first", 3)
    plain = values(make(name, image_shape=shape, seed=9))
    classifier = make(name, image_shape=shape, seed=9)
    fresh = classifier.load_pretrained(tmp_path / "first", 3)
    assert fresh and all(len(plain[one]) == 10 and len(values(first)[one]) == 7 for one in fresh)
    for tensor, array in values(classifier).items():
        expected = plain[tensor] if tensor in fresh else values(first)[tensor]
        np.testing.assert_array_equal(array, expected, err_msg=tensor)
    # With the same classes everything is taken.
    assert make(name, classes=7, image_shape=shape).load_pretrained(tmp_path / "first", 3) == []


@pytest.mark.parametrize(
    ("name", "size"), [("squeezenet1.1", 224), ("densenet121", 224), ("MobileNetV2", 32)]
)
def test_the_last_layer_is_that_of_the_logits(name: str, size: int) -> None:
    """Also where it is a convolution, with an activation and pooling behind it."""
    symbol = classifiers.build(name, classes=13, normalization=COLOR)
    arguments, _, _ = symbol.infer_shape(data=(1, 3, size, size))
    shapes = dict(zip(symbol.list_arguments(), arguments))
    names = classifier_module._last_layer(symbol)
    assert names and all(shapes[one][0] == 13 for one in names)


def test_a_checkpoint_of_another_model_is_refused_by_its_first_tensor(tmp_path: Path) -> None:
    make("LeNet").export(tmp_path / "first")
    arrays = mx.nd.load(str(tmp_path / "first-0000.params"))
    mx.nd.save(str(tmp_path / "more-0000.params"), {**arrays, "arg:odd": mx.nd.zeros(3)})
    small: dict[str, Any] = {"image_shape": (3, 28, 28)}
    for network, file, message in (
        (make("ResNet18"), "first", "first-0000.params: the file has no tensor '"),
        (make("LeNet"), "more", "this --model has no tensor 'odd'; give a checkpoint"),
        (make("LeNet", **small), "first", r"'.*' has shape \(.*\), this network's has"),
        (make("LeNet", **small, classes=4), "first", "'.*' has shape"),
    ):
        with pytest.raises(DataError, match=message):
            network.load_pretrained(tmp_path / file, 0)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_trains_and_an_export_gives_the_same(name: str, tmp_path: Path) -> None:
    classifier = make(name, seed=2)
    before = values(classifier)
    assert np.isfinite(train(classifier, random_images(2)))
    after = values(classifier)
    assert all(np.isfinite(value).all() for value in after.values())
    # A gamma of one swallows the smallest gradients, and BatchNorm takes those of biases away.
    unchanged = [key for key in after if np.array_equal(before[key], after[key])]
    assert not [key for key in unchanged if key.endswith("_weight")]
    single = random_images(1)
    logits = classifier(single)
    assert logits.shape == (1, 10) and logits.dtype == np.float32
    classifier.export(tmp_path / "model")
    files = f"{tmp_path}/model-symbol.json", ["data"], f"{tmp_path}/model-0000.params"
    found = mx.gluon.SymbolBlock.imports(*files)(single.astype("float32")).asnumpy()
    # The plain graph of the file may run by other kernels than the form for processors.
    limit = 1e-5 * np.abs(found).max()
    np.testing.assert_allclose(found, logits.asnumpy(), rtol=1e-5, atol=limit)


def zeroed(name: str, **more: Any) -> list[str]:
    found = values(make(name, last_gamma=True, **more))
    return [key for key, value in found.items() if key.endswith("_gamma") and not value.any()]


@pytest.mark.parametrize(
    ("name", "count", "last"),
    [("MobileNetV2", 14, "conv3"), ("RegNetX_200MF", 13, "conv3"), ("DLA", 14, "conv2")],
)
def test_last_gammas_are_those_that_end_the_residuals(name: str, count: int, last: str) -> None:
    found = zeroed(name)
    assert len(found) == count and all(key.endswith(f"_{last}_bn_gamma") for key in found)
    for other in ("LeNet", "resnet20"):
        with pytest.raises(ConfigError, match=f"--last-gamma.*{other}"):
            make(other, last_gamma=True)


def test_last_gammas_of_the_zoo() -> None:
    """Of each unit in a stage the BatchNorm before the sum, not that of the projection."""
    # The projection of the first unit is counted after the unit's own layers.
    places = [(stage, place) for stage in (1, 2, 3, 4) for place in (1, 3 if stage == 1 else 4)]
    found = zeroed("resnet18_v1", image_shape=(3, 64, 64))
    assert sorted(found) == [f"zoo_stage{stage}_batchnorm{place}_gamma" for stage, place in places]


def test_images_too_small_for_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"inceptionv3 cannot take images of 3 x 32 x 32"):
        make("inceptionv3")
    assert capsys.readouterr().out == "", "MXNet's lines would make it several"
