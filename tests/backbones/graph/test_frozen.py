"""Parameters that are not trained: which are found, and what a training pass does with them."""

from __future__ import annotations

import numpy as np
import pytest

import backbones
from backbones.classifiers import Normalization
from backbones.classifiers.classifier import Classifier
from backbones.graph import frozen
from backbones.graph.nodes import to_json
from backbones.model import Backbone
from backbones.options import BackboneOptions, ClassifierOptions
from runtime.errors import ConfigError
from runtime.mxnet import mx

FIRST = ("conv0_*", "bn0_*", "stage1_*", "stage2_*")


@pytest.fixture(scope="module")
def tiny():
    return backbones.build("tiny", embedding_size=16)


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ([], set()),
        (["conv0_weight"], {"conv0_weight"}),
        (["bn0_gamma", "bn0_beta"], {"bn0_gamma", "bn0_beta"}),
        (["bn0_*"], {"bn0_gamma", "bn0_beta", "bn0_moving_mean", "bn0_moving_var"}),
        # One of the two statistics would contradict the other.
        (["bn0_moving_m*"], {"bn0_moving_mean", "bn0_moving_var"}),
        (["fc1_gamm?", "pre_fc1_[bw]*"], {"fc1_gamma", "pre_fc1_bias", "pre_fc1_weight"}),
    ],
)
def test_patterns_are_those_of_file_names(tiny, patterns, expected) -> None:
    assert frozen.find(patterns, tiny) == expected


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["conv0_*", "stage9_*"], r"--freeze 'stage9_\*' fits no parameter .* \(did you mean 'sta"),
        (["conv0_wieght"], r"fits no parameter .* \(did you mean 'conv0_weight'\?\)"),
        (["CONV0*"], "fits no parameter .*; its first are conv0_weight"),
        (["data"], "fits no parameter"),
        (["*"], r"--freeze \* leaves no parameter"),
        (["*_weight", "*_bias", "*_gamma", "*_beta"], "leaves no parameter .*narrower"),
    ],
)
def test_other_patterns_are_refused_in_one_line(tiny, patterns, message) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        frozen.find(patterns, tiny)
    assert "\n" not in str(caught.value)


def test_frozen_statistics_are_used_in_training(tiny) -> None:
    symbol = frozen.keep_statistics(tiny, frozen.find(["bn0_*", "stage1_unit1_bn1_beta"], tiny))
    fixed = [
        node["name"]
        for node in to_json(symbol)["nodes"]
        if node.get("attrs", {}).get("use_global_stats") == "True"
    ]
    assert fixed == ["bn0"]
    assert symbol.list_arguments() == tiny.list_arguments()
    assert symbol.list_auxiliary_states() == tiny.list_auxiliary_states()


def make(freeze=FIRST, network="tiny", **options) -> Backbone:
    backbone = Backbone.create(
        BackboneOptions(network=network, embedding_size=16, freeze=freeze, **options), seed=3
    )
    # As after some training: no statistic is that of the beginning.
    generator = np.random.default_rng(1)
    for name, parameter in backbone.parameters.items():
        if name.endswith("_moving_var"):
            parameter.set_data(mx.nd.array(generator.uniform(0.5, 2, parameter.shape)))
        if name.endswith("_moving_mean"):
            parameter.set_data(mx.nd.array(generator.normal(0, 0.3, parameter.shape)))
    backbone.hybridize()
    return backbone


def values(backbone) -> dict[str, np.ndarray]:
    return {name: value.data().asnumpy() for name, value in backbone.parameters.items()}


def train(backbone, images, updates=2) -> dict[str, np.ndarray]:
    """Train; returns the last gradients."""
    trainer = mx.gluon.Trainer(backbone.parameters, "sgd", {"learning_rate": 0.1}, kvstore=None)
    gradient = mx.nd.array(np.random.default_rng(5).normal(size=(len(images), 16)) / 64)
    for _ in range(updates):
        with mx.autograd.record():
            features = backbone(mx.nd.array(images))
        backbone.backward(features, gradient)
        trainer.update(1)
    return {
        name: parameter.grad().asnumpy()
        for name, parameter in backbone.parameters.items()
        if parameter.grad_req != "null"
    }


@pytest.mark.parametrize("network", ["tiny", "mbf"])
@pytest.mark.parametrize(
    "options", [{}, {"recompute": True}, {"accumulate": 2}, {"recompute": True, "accumulate": 2}]
)
def test_frozen_tensors_keep_their_bytes(network, options, images) -> None:
    patterns = FIRST if network == "tiny" else ("conv_1_*", "conv_2_*", "dconv_23_*")
    backbone = make(patterns, network, **options)
    names = frozen.find(patterns, backbones.build(network, embedding_size=16))
    before = values(backbone)
    gradients = train(backbone, images[:4])
    after = values(backbone)
    assert not names & gradients.keys() and len(names) > 8
    for name in names:
        np.testing.assert_array_equal(after[name], before[name], err_msg=name)
    moved = [name for name in before.keys() - names if (after[name] != before[name]).any()]
    # All but a bias before a BatchNorm, and gammas that are held at one.
    assert len(moved) > 0.9 * len(before.keys() - names) - 2


@pytest.mark.parametrize("network", ["tiny", "mbf"])
def test_recomputation_stops_at_the_first_trained_part(network, images) -> None:
    patterns = FIRST if network == "tiny" else ("conv_1_*", "conv_2_*", "dconv_23_*")
    expected = train(make(patterns, network), images[:2])
    found = train(make(patterns, network, recompute=True), images[:2])
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        np.testing.assert_array_equal(found[name], gradient, err_msg=name)


def test_a_frozen_layer_computes_in_training_what_it_computes_later(images) -> None:
    """All BatchNorms are frozen, so features do not depend on who else is in the batch."""
    backbone = make(("*_gamma", "*_beta", "*_moving_mean"))
    extracted = backbone.extract(images[:3])
    for count in (3, 1):
        with mx.autograd.record():
            features = backbone(mx.nd.array(images[:count]))
        error = np.abs(features.asnumpy() - extracted[:count]).max()
        assert error < 1e-5 * np.abs(extracted).max()
    plain = make(None)
    with mx.autograd.record():
        features = plain(mx.nd.array(images[:3]))
    assert np.abs(features.asnumpy() - extracted).max() > 0.1 * np.abs(extracted).max()


def test_gradients_through_frozen_layers_are_slopes(images) -> None:
    """Of a convolution before frozen BatchNorms, against a difference of the features."""
    backbone = make(("*_gamma", "*_beta", "*_moving_*"))
    batch = mx.nd.array(images[:2])
    direction = np.random.default_rng(2).normal(size=(2, 16))
    with mx.autograd.record():
        features = backbone(batch)
    backbone.backward(features, mx.nd.array(direction))
    for name in ("stage4_conv0_weight", "pre_fc1_weight"):
        weight, gradient = backbone.parameters[name].data(), backbone.parameters[name].grad()
        slope = gradient.asnumpy().astype(float)
        way = slope / np.linalg.norm(slope)
        kept, ends = weight.asnumpy(), []
        for step in (1e-2, -1e-2):
            weight[:] = mx.nd.array(kept + step * way)
            ends.append(float((backbone.extract(images[:2]) * direction).sum()))
        weight[:] = mx.nd.array(kept)
        assert (ends[0] - ends[1]) / 2e-2 == pytest.approx(np.linalg.norm(slope), rel=0.02)


def test_without_patterns_the_graph_is_as_before(tiny) -> None:
    assert make(None)._trained.tojson() == make(())._trained.tojson()
    assert "use_global_stats" not in make(None)._trained.tojson()


def test_classifiers_have_it_too(images) -> None:
    classifier = Classifier.create(
        ClassifierOptions(model="resnet20", freeze=("conv0_*", "stage1_*")),
        classes=10,
        image_shape=(3, 32, 32),
        normalization=Normalization((0.5,) * 3, (0.2,) * 3),
    )
    names = [name for name, one in classifier.parameters.items() if one.grad_req == "null"]
    frozen_names = [name for name in names if name.endswith(("_weight", "_gamma", "_beta"))]
    assert frozen_names
    before = {name: classifier.parameters[name].data().asnumpy() for name in frozen_names}
    trainer = mx.gluon.Trainer(classifier.parameters, "sgd", {"learning_rate": 0.1}, kvstore=None)
    with mx.autograd.record():
        outputs = classifier(mx.nd.array(images[:2, :, :32, :32]))
    classifier.backward(outputs, mx.nd.ones((2, 10)))
    trainer.update(1)
    for name, value in before.items():
        np.testing.assert_array_equal(classifier.parameters[name].data().asnumpy(), value)
