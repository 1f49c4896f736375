"""Parameters that are not trained: which are found, and what a training pass does with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backbones
from backbones.classifiers import Normalization
from backbones.classifiers.classifier import Classifier
from backbones.graph import frozen
from backbones.network import Network
from backbones.options import ClassifierOptions
from runtime.errors import ConfigError
from runtime.mxnet import mx
from tests.backbones.passes import assert_same, create, train

FIRST = ("conv0_*", "bn0_*", "stage1_*", "stage2_*")


@pytest.fixture(scope="module")
def tiny() -> Any:
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
def test_patterns_are_those_of_file_names(tiny: Any, patterns: Any, expected: Any) -> None:
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
def test_other_patterns_are_refused_in_one_line(tiny: Any, patterns: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        frozen.find(patterns, tiny)
    assert "\n" not in str(caught.value)


def values(network: Network) -> dict[str, np.ndarray]:
    return {name: value.data().asnumpy() for name, value in network.parameters.items()}


def test_frozen_tensors_keep_their_bytes(tiny: Any, images: np.ndarray) -> None:
    names, passes = frozen.find(FIRST, tiny), []
    choices: list[dict[str, Any]] = [{}, {"recompute": True}, {"accumulate": 2}]
    for options in choices:
        backbone = create(freeze=FIRST, **options)
        # As after some training: no statistic is that of the beginning.
        generator = np.random.default_rng(1)
        for name, parameter in backbone.parameters.items():
            if "_moving_" in name:
                low, high = (0.5, 2) if name.endswith("var") else (-0.5, 0.5)
                parameter.set_data(mx.nd.array(generator.uniform(low, high, parameter.shape)))
        before = values(backbone)
        # A BatchNorm of one embedding has no gradient.
        passes.append(train(backbone, images[: 2 * options.get("accumulate", 1)]))
        after = values(backbone)
        for name in names:
            np.testing.assert_array_equal(after[name], before[name], err_msg=name)
            assert backbone.parameters[name].grad_req == "null"
        moved = [name for name in before.keys() - names if (after[name] != before[name]).any()]
        # All but a bias before a BatchNorm, and gammas that are held at one.
        assert len(names) > 8 and len(moved) > 0.9 * len(before.keys() - names) - 2
    # Recomputation stops at the first part that is trained.
    assert_same(passes[1], passes[0])


def test_classifiers_have_it_too(images: np.ndarray) -> None:
    classifier = Classifier.create(
        ClassifierOptions(model="resnet20", freeze=("conv0_*", "stage1_*")),
        classes=10,
        image_shape=(3, 32, 32),
        normalization=Normalization((0.5,) * 3, (0.2,) * 3),
    )
    frozen = [name for name, one in classifier.parameters.items() if one.grad_req == "null"]
    before = values(classifier)
    assert {"conv0_weight", "stage1_unit1_bn1_beta", "stage1_unit1_bn1_moving_var"} <= {*frozen}
    train(classifier, images[:2, :, :32, :32])
    after = values(classifier)
    for name in frozen:
        is_kept = name.startswith(("conv0_", "stage1_")) or name.endswith("_gamma")
        assert np.array_equal(after[name], before[name]) == is_kept, name
