from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import backbones
from backbones.checkpoint import read_checkpoint
from backbones.graph.parameter_file import read_parameters
from backbones.model import Backbone
from runtime.errors import DataError
from runtime.mxnet import mx
from tests.backbones.passes import classifier, create


def test_the_graph_and_the_arrays_of_a_backbone(tmp_path: Path, images: np.ndarray) -> None:
    created = create("mbf")
    created.export(tmp_path / "model")
    found = read_checkpoint(tmp_path / "model", 0)
    assert found.output == "fc1_output" and found.image_shape == (3, 112, 112)
    file = read_parameters(tmp_path / "model-0000.params")
    assert {name.split(":")[1] for name in file} == found.weights.keys()
    assert found.parameter_count() == backbones.parameter_count("mbf", 16)
    shapes = found.shapes()
    assert shapes["data"] == (-1, 3, 112, 112) and shapes["fc1"] == (-1, 16)
    assert shapes["conv_1_conv2d_weight"] == (64, 3, 3, 3)
    features = found.network()(mx.nd.array(images)).asnumpy()
    expected = created.extract(images)
    np.testing.assert_allclose(features, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize(("model", "shape"), [("LeNet", (1, 28, 28)), ("resnet20", (3, 32, 32))])
def test_a_classifier_and_its_channels(tmp_path, model, shape) -> None:
    network = classifier(model, shape)
    network.export(tmp_path / "model")
    found = read_checkpoint(tmp_path / "model", 0, shape[1:])
    assert found.output == "output_output" and found.image_shape == shape
    images = mx.nd.array(np.random.default_rng(0).integers(0, 256, (2, *shape)))
    expected = network(images).asnumpy()
    np.testing.assert_allclose(found.network()(images).asnumpy(), expected, rtol=1e-4, atol=1e-5)
    if model != "LeNet":
        # LeNet has a layer with the name of an embedding, which is not what it gives.
        with pytest.raises(DataError, match="no path from 'data' to 'fc1_output'"):
            Backbone.load(tmp_path / "model")


def spoil(prefix: Path, name: str, value: float) -> None:
    """Give one number of a weight another value; it becomes float64."""
    arrays = mx.nd.load(f"{prefix}-0000.params")
    array = arrays[f"arg:{name}"].asnumpy().astype(np.float64)
    array.flat[-1] = value
    mx.nd.save(f"{prefix}-0000.params", {**arrays, f"arg:{name}": mx.nd.array(array, dtype="f8")})


# The last is a float64, and too large for the float32 that MXNet makes of it.
@pytest.mark.parametrize("value", [np.nan, -np.inf, 1e39])
def test_weights_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    """By whatever takes a network: on the way activations make numbers of them again."""
    created, side, shape = create(side=32), (32, 32), (1, 28, 28)
    created.export(tmp_path / "m")
    spoil(tmp_path / "m", "conv0_weight", value)
    classifier("LeNet", shape).export(tmp_path / "c")
    spoil(tmp_path / "c", "fc_output_weight", value)
    for take in (
        lambda: Backbone.load(tmp_path / "m", image_size=side),
        lambda: read_checkpoint(tmp_path / "m", 0, side),
        lambda: created.load_pretrained(tmp_path / "m", 0),
        lambda: classifier("LeNet", shape, pretrained=f"{tmp_path}/c,0"),
    ):
        with pytest.raises(DataError, match="-0000.params: '.*_weight' has values that are not"):
            take()
    # A layer that is not taken does not count.
    classifier("LeNet", shape, classes=5, pretrained=f"{tmp_path}/c,0")
