"""A graph in PyTorch computes what MXNet computes of it: outputs and gradients."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from backbones.classifiers.classifier import Classifier
from backbones.options import ClassifierOptions
from benchmarks import toolkit_classifier, worker
from runtime.mxnet import mx
from tests.support.launch import clean_environment

ROOT = Path(__file__).resolve().parents[2]
FOURTEEN = (
    *("VGG16", "ResNet18", "ResNet50", "ResNet101", "RegNetX_200MF", "RegNetY_400MF"),
    *("MobileNetV2", "ResNeXt29_32x4d", "ResNeXt29_2x64d", "SimpleDLA", "DenseNet121"),
    *("PreActResNet18", "DPN92", "DLA"),
)
# One of each operator and of each kind of attribute.
QUICK = ("VGG16", "RegNetY_400MF", "MobileNetV2", "resnet20", "inception-bn-28-small")

pytestmark = pytest.mark.skipif(
    worker.pytorch_python() is None, reason="PyTorch is not installed: PYTORCH=1 make bench"
)


@pytest.mark.parametrize(
    "model",
    [
        *QUICK,
        *(pytest.param(one, marks=pytest.mark.models) for one in FOURTEEN if one not in QUICK),
    ],
)
def test_pytorch_computes_what_mxnet_computes(model: str, tmp_path: Path) -> None:
    generator = np.random.default_rng(4)
    images = generator.integers(0, 256, (8, 3, 32, 32)).astype(np.float32)
    gradient = generator.normal(size=(8, 10)).astype(np.float32) / 8
    np.save(tmp_path / "images.npy", images)
    np.save(tmp_path / "gradient.npy", gradient)
    toolkit_classifier.write_graph(model, tmp_path)
    # A process of its own: the two libraries do not live in one.
    subprocess.run(
        [str(worker.pytorch_python()), "tests/benchmarks/pytorch_step.py", str(tmp_path)],
        cwd=ROOT,
        env={**clean_environment(), "PYTHONPATH": str(ROOT)},
        check=True,
    )
    classifier = Classifier.create(
        ClassifierOptions(model=model),
        classes=10,
        image_shape=(3, 32, 32),
        normalization=toolkit_classifier.NORMALIZATION,
    )
    inferred = classifier(mx.nd.array(images, dtype="uint8")).asnumpy()
    with mx.autograd.record():
        output = classifier(mx.nd.array(images, dtype="uint8"))
    classifier.backward(output, mx.nd.array(gradient))
    mx.nd.waitall()
    trained = [one for one in classifier.parameters.values() if one.grad_req != "null"]
    squares = sum(float((one.grad() ** 2).sum().asscalar()) for one in trained)
    with np.load(tmp_path / "answer.npz") as answer:
        _near(answer["output"], output.asnumpy(), 1e-3)
        _near(answer["inferred"], inferred, 1e-3)
        assert answer["gradients"].size == sum(one.data().size for one in trained)
        # Of all of them at once: a bend of ReLU may turn a few.
        assert float((answer["gradients"] ** 2).sum()) == pytest.approx(squares, rel=2e-2)


def _near(actual, expected, tolerance: float) -> None:
    assert np.abs(actual - expected).max() <= tolerance * np.abs(expected).max()
