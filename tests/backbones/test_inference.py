from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest

from backbones.graph.onednn import form
from backbones.inference import HostInference, images_of_pass
from backbones.model import Backbone
from backbones.network import Network
from runtime import processors
from runtime.environment import Bfloat16Unit
from runtime.mxnet import mx
from tests.backbones.passes import classifier, create, values

ROOT = Path(__file__).parents[2]


def thorough(*names: str) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.thorough) for name in names]


def pictures(count: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(7).integers(0, 256, (count, *shape), dtype=np.uint8)


def train_a_little(network: Network) -> None:
    """Give all parameters values as after training, slopes of either sign and above 1.

    With larger factors the maps of RegNetY grow so much from layer to layer that its gates are all
    0 or 1, and rounding decides which.
    """
    generator = np.random.default_rng(5)
    for name, parameter in network.parameters.items():
        if not name.endswith(("weight", "bias")):
            low, high = (-0.5, 1.5) if "relu" in name else (0.4, 1.1)
            numbers = generator.uniform(low, high, parameter.shape)
            parameter.set_data(mx.nd.array(numbers).astype(parameter.dtype))


def check(network: Network, images: np.ndarray) -> None:
    train_a_little(network)
    plain = network.extract(images)
    found = network.inference()(images)
    assert found.shape == plain.shape and found.dtype == np.float32
    # Squeeze and excitation computes its factors outside of oneDNN, in another order.
    assert np.abs(found - plain).max() <= 1e-3 * np.abs(plain).max()
    assert np.ptp(plain, axis=0).max() > 0


@pytest.mark.parametrize(("name", "output"), [
    ("mbf", None), ("r18-se", "J"), *(("tiny", output) for output in ("E", "F", "GAP", "GDC")),
])
def test_backbones(name: str, output: Optional[str], images: np.ndarray) -> None:
    check(create(name, net_output=output), images[:3])


DEEPER = thorough("VGG16", "ResNeXt29_32x4d", "DenseNet121", "PreActResNet18", "DLA")


@pytest.mark.parametrize(
    "name", ["LeNet", "RegNetY_400MF", "DPN26", "resnet20", "inception-bn-28-small", *DEEPER]
)
def test_classifiers(name: str) -> None:
    shape = (1, 28, 28) if name == "LeNet" else (3, 32, 32)
    check(classifier(name, shape), pictures(3, *shape))


@pytest.fixture(scope="module")
def network() -> Backbone:
    """One for images of any size."""
    backbone = create(net_output="GAP", embedding_size=8)
    train_a_little(backbone)
    return backbone


@pytest.mark.parametrize(("count", "side"), [(8, 112), (19, 112), (3, 32)])
def test_any_number_of_images_by_turns(network: Backbone, count: int, side: int) -> None:
    passes = [images_of_pass(size, size) for size in (112, 32, 1024)]
    assert passes == [8, 98, 1] and images_of_pass(112, 112, lanes=2) == 4
    infer, images = network.inference(), pictures(count, 3, side, side)
    # A view of memory that is read backwards.
    for given in (images, np.zeros((2, 3, 48, 48), np.uint8), images[..., ::-1]):
        expected = network.extract(np.ascontiguousarray(given))
        np.testing.assert_allclose(infer(given), expected, rtol=1e-4, atol=1e-4)


_OF_LANES = """
import sys
import numpy as np
from runtime import environment
environment.prepare_lanes()
from backbones.model import Backbone
network = Backbone.load(sys.argv[1], 0)
# Of more batches than lanes, the last of another shape.
images = np.random.default_rng(1).integers(0, 256, (67, 3, 112, 112), dtype=np.uint8)
infer = network.inference()
assert environment.lanes() == 3
found = [infer(images) for _ in range(2)]
assert np.array_equal(found[0], found[1])
np.testing.assert_allclose(found[0], network.extract(images), rtol=1e-4, atol=1e-4)
"""


def test_lanes_compute_the_same(network: Backbone, tmp_path: Path) -> None:
    network.export(tmp_path / "model")
    command = [sys.executable, "-c", _OF_LANES, str(tmp_path / "model")]
    subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "3"}, cwd=ROOT, check=True)


def test_the_weights_are_those_of_its_moment(images: np.ndarray) -> None:
    backbone = create()
    infer = backbone.inference()
    before = infer(images)
    for name, change in (("fc1_beta", 3), ("fc1_moving_mean", -2)):
        value = backbone.parameters[name].data()
        value[:] = value + change
    np.testing.assert_array_equal(infer(images), before)
    later = backbone.inference()(images)
    np.testing.assert_allclose(later, backbone.extract(images), rtol=1e-4, atol=1e-4)
    assert np.abs(later - before).min() > 1
    # A device computes by the graph that trains.
    other = create(ctx=mx.cpu(1))
    assert other.inference() == other.extract


@pytest.mark.skipif(not processors.has_avx512(), reason="bfloat16 needs AVX-512")
@pytest.mark.parametrize("unit", [*Bfloat16Unit])
@pytest.mark.parametrize("name", ["tiny", *thorough("mbf", "r18-se")])
def test_bfloat16(name, unit, images, monkeypatch) -> None:
    """Where there is no such unit, oneDNN computes what it would by other instructions."""
    monkeypatch.setattr(form, "bfloat16_unit", lambda: unit)
    network = create(name, seed=2, dtype="bfloat16", embedding_size=32)
    train_a_little(network)
    wide = HostInference(network.graph, values(network))(images)
    for found in (network.inference()(images), network.extract(images)):
        assert 0 < np.abs(found - wide).max() < 0.1 * np.abs(wide).max()
        lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(wide, axis=1)
        assert ((found * wide).sum(axis=1) / lengths).min() > 0.995
