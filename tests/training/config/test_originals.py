"""What the options of the originals are answered with."""

from __future__ import annotations

from typing import Any

import pytest

import backbones
from runtime import options
from runtime.command_line import hint_for
from runtime.errors import ConfigError
from training.config import faces, images, originals

PROGRAMS = pytest.mark.parametrize(
    ("program", "table"),
    [(faces, originals.TRAIN), (images, originals.CLASSIFY)],
    ids=["train", "classify"],
)


def refusal(program: Any, line: str) -> str:
    with pytest.raises(ConfigError) as caught:
        program.parse(f"--dataset synthetic {line}".split())
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("--memory-bank-lr 0.1", "--center-lr"),
        ("--backbone-lr=0.1", "--lr,"),
        ("--fp16", "--dtype float16"),
        ("--memonger", "--recompute"),
        ("--images-filter 3", "--min-images"),
        ("--num-epoch 20", "--epochs"),
        ("--gpus 0,1", "horovodrun -np 2"),
        ("--kv-store dist_sync", "classify.py has --kv-store"),
        ("--network r122", "r124"),
        ("--network rx101", "r100"),
        ("--network vit_b", "no vision transformers"),
        ("configs/ms1mv3_r50", "--rec DIR"),
    ],
)
def test_words_of_the_originals_for_faces(line: str, answer: str) -> None:
    message = refusal(faces, line)
    assert answer in message and "did you mean" not in message


def test_all_foreign_options_of_a_line_are_named_at_once() -> None:
    message = refusal(images, "--num-epoch 1 --gpus 0,1 --depth 20")
    assert [part.split()[0] for part in message.split("; ")] == ["--num-epoch", "--gpus", "--depth"]


@PROGRAMS
def test_every_row_is_an_answer(program: Any, table: dict[str, str]) -> None:
    for pattern, hint in table.items():
        word = pattern.replace("[_-]", "-").replace("[123]", "1").replace("[0-9]", "1")
        word = word.replace("*", "x")
        assert f"{word} is not an option here: {hint}" in refusal(program, f"{word} 1")


@PROGRAMS
def test_no_row_has_an_option_that_exists(program: Any, table: dict[str, str]) -> None:
    for name in options.values(program.resolve({"dataset": "synthetic"})):
        assert hint_for(options.option(name), table) is None, name


def test_no_row_has_a_network_that_exists() -> None:
    for name in backbones.names():
        assert hint_for(name, originals.NETWORKS) is None, name
