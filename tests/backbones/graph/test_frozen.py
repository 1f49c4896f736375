from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backbones
from backbones.graph import frozen
from runtime.errors import ConfigError
from runtime.mxnet import mx
from tests.backbones.passes import assert_same, classifier, create, train, values

FIRST = ("conv0_*", "bn0_*", "stage1_*", "stage2_*")
TINY = backbones.build("tiny", embedding_size=16)


@pytest.mark.parametrize(("patterns", "expected"), [
    ("", ""),
    ("conv0_weight", "conv0_weight"),
    ("bn0_gamma bn0_beta", "bn0_gamma bn0_beta"),
    ("bn0_*", "bn0_gamma bn0_beta bn0_moving_mean bn0_moving_var"),
    # One of the two statistics would contradict the other.
    ("bn0_moving_m*", "bn0_moving_mean bn0_moving_var"),
    ("fc1_gamm? pre_fc1_[bw]*", "fc1_gamma pre_fc1_bias pre_fc1_weight"),
])
def test_patterns_are_those_of_file_names(patterns: str, expected: str) -> None:
    assert frozen.find(patterns.split(), TINY) == {*expected.split()}


@pytest.mark.parametrize(("patterns", "message"), [
    ("conv0_* stage9_*", r"--freeze 'stage9_\*' fits no parameter .* \(did you mean 'sta"),
    ("conv0_wieght", r"fits no parameter .* \(did you mean 'conv0_weight'\?\)"),
    ("CONV0*", "fits no parameter .*; its first are conv0_weight"),
    ("data", "fits no parameter"),
    ("*", r"--freeze \* leaves no parameter"),
    ("*_weight *_bias *_gamma *_beta", "leaves no parameter .*narrower"),
])
def test_other_patterns_are_refused_in_one_line(patterns: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        frozen.find(patterns.split(), TINY)
    assert "\n" not in str(caught.value)


def test_frozen_tensors_keep_their_bytes(images: np.ndarray) -> None:
    names, passes = frozen.find(FIRST, TINY), []
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
        assert_same({name: after[name] for name in names}, {name: before[name] for name in names})
        assert {backbone.parameters[name].grad_req for name in names} == {"null"}
        moved = [name for name in before.keys() - names if (after[name] != before[name]).any()]
        # All but a bias before a BatchNorm, and gammas that are held at one.
        assert len(names) > 8 and len(moved) > 0.9 * len(before.keys() - names) - 2
    # Recomputation stops at the first part that is trained.
    assert_same(passes[1], passes[0])


def test_classifiers_have_it_too(images: np.ndarray) -> None:
    network = classifier("resnet20", freeze=("conv0_*", "stage1_*"))
    frozen = [name for name, one in network.parameters.items() if one.grad_req == "null"]
    before = values(network)
    assert {"conv0_weight", "stage1_unit1_bn1_beta", "stage1_unit1_bn1_moving_var"} <= {*frozen}
    train(network, images[:2, :, :32, :32])
    after = values(network)
    for name in frozen:
        is_kept = name.startswith(("conv0_", "stage1_")) or name.endswith("_gamma")
        assert np.array_equal(after[name], before[name]) == is_kept, name
