from __future__ import annotations

from typing import Any

import pytest

import backbones
from backbones import classifiers
from runtime import options
from runtime.command_line import hint_for
from runtime.errors import ConfigError
from tests.support import mxnet_g
from training.config import faces, images, originals


def refusal(program: Any, line: str) -> str:
    with pytest.raises(ConfigError) as caught:
        program.parse(f"--dataset synthetic {line}".split())
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("program", "line", "answer"),
    [
        (faces, "--backbone-lr=0.1", "--lr,"),
        (faces, "configs/ms1mv3_r50", "--rec DIR"),
        (faces, "--num_workers 4", "give --threads"),
        (images, "--model resnet101_v1d", "here: of GluonCV, not ported; give resnet50_v1"),
    ],
)
def test_words_of_the_originals_are_answered_and_no_similar_one_is_suggested(program, line, answer):
    message = refusal(program, line)
    assert answer in message and "did you mean" not in message


def test_all_foreign_options_of_a_line_are_named_at_once() -> None:
    message = refusal(images, "--log-dir d --gpus 0,1 --depth 20")
    assert [part.split()[0] for part in message.split("; ")] == ["--log-dir", "--gpus", "--depth"]


def test_options_of_grouping_sgd_that_mean_the_same_are_taken() -> None:
    line = "--dataset synthetic --network resnet20 --mom 0.5"
    for epochs in ("--num-epoch 7", "--num-epochs=7"):
        found = images.parse(f"{line} {epochs}".split()).values()
        assert (found["model"], found["momentum"], found["epochs"]) == ("resnet20", 0.5, 7)
    known = {options.option(name) for name in found}
    assert set(originals.SYNONYMS.values()) <= known
    assert not set(originals.SYNONYMS) & known
    assert not [name for name in originals.SYNONYMS if hint_for(name, originals.CLASSIFY)]


@pytest.mark.parametrize(
    ("program", "option", "hints", "known"),
    [
        (images, "--model", originals.MODELS, classifiers.names()),
        (faces, "--network", originals.NETWORKS, backbones.names()),
    ],
)
def test_networks_of_the_originals(program: Any, option: str, hints: Any, known: Any) -> None:
    for name, hint in hints.items():
        message = f"{option} {name!r} does not exist here: {hint}"
        assert message in refusal(program, f"--network {name}")
    assert not [name for name in known if hint_for(name, hints)]


@mxnet_g.NEEDED
def test_all_networks_that_mxnet_g_lets_one_choose_are_known_or_answered() -> None:
    found = mxnet_g.choices_of_networks()
    assert {"lenet-stn", "mlp", "inception-v3"} <= set(found)
    for name in found:
        assert name in classifiers.names() or hint_for(name, originals.MODELS) is not None, name


@pytest.mark.parametrize(
    ("program", "table"), [(faces, originals.TRAIN), (images, originals.CLASSIFY)]
)
def test_every_row_is_an_answer_to_an_option_that_does_not_exist(program, table) -> None:
    for pattern, hint in table.items():
        word = pattern.replace("[_-]", "-").replace("[123]", "1").replace("[0-9]", "1")
        word = word.replace("*", "x")
        message = refusal(program, f"{word} 1")
        assert f"{word} is not an option here: {hint}" in message and "did you mean" not in message
    for name in options.values(program.resolve({"dataset": "synthetic"})):
        assert hint_for(options.option(name), table) is None, name
