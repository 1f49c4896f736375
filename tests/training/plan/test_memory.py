"""The memory of a rank, by hand."""

from __future__ import annotations

import pytest

import backbones
from partial_fc.shard import Shard
from runtime import options
from runtime.errors import ConfigError
from training.config.faces import FaceConfig, parse
from training.plan import memory
from training.plan.calibration import NetworkCost
from training.plan.gpu_memory import gpu_memory
from training.plan.traffic import collective_bytes

SHARD = Shard(0, 1, 9000)


def small_config(line: str = "") -> FaceConfig:
    plain = "--rec . --num-classes 9000 --network tiny --embedding-size 8 --batch-size 4 --dry-run"
    return parse([*plain.split(), *line.split()])


def test_a_head_in_bfloat16() -> None:
    """Rows and logits of two bytes; a gradient and float32 sums for 2,048 of 9,000 rows."""
    found = memory.head_memory(small_config("--head-dtype bfloat16"), SHARD)
    assert found.rows == (9000 + 2048) * 8 * 2
    assert found.logits == 4 * (9000 * 2 + 2048 * 4)
    # Five blocks.
    assert found.features == 4 * 4 * 8 * 4 + 5 * 4 * 8 * 2
    assert found.centers == 9000 * 8 * 4


def test_the_measured_line_takes_the_place_of_constants() -> None:
    cost = NetworkCost("tiny", 5e8, 3e6, 0.0, 1.0)
    measured = memory.rank_memory(small_config("--accumulate 2"), SHARD, cost)
    items = {item.key: item for item in measured}
    # Two images at a time.
    assert items["activations"].num_bytes == 6_000_000
    assert items["libraries"].num_bytes + items["backbone"].num_bytes == 500_000_000
    assert items["activations"].basis == items["libraries"].basis == "measured"
    assert items["class_centers"].basis == "computed"


def test_frozen_parameters_are_held_and_not_trained() -> None:
    """The first convolution of tiny: its numbers have no gradient, momentum and message."""
    plain, fixed = small_config(), small_config("--freeze conv0_weight")
    every = 4 * backbones.parameter_count("tiny", 8)
    # 32 filters of 5 x 5 on three channels.
    kernel = 4 * 32 * 3 * 5 * 5
    assert memory.backbone_bytes(plain) == (every, every)
    assert memory.backbone_bytes(fixed) == (every, every - kernel)
    assert memory.backbone_memory(plain) == 3 * every
    assert memory.backbone_memory(fixed) == 3 * every - 2 * kernel
    # Adam keeps two states of what is trained.
    adam = options.replace(fixed, optimizer="adamw")
    assert memory.backbone_memory(adam) == every + 3 * (every - kernel)
    assert collective_bytes(fixed, 2)["allreduce of the backbone"] == every - kernel
    copies = [memory.checkpoint_bytes(config, SHARD) for config in (plain, fixed)]
    assert copies[0] - copies[1] == kernel
    with pytest.raises(ConfigError, match="^--freeze 'convolution_' fits no parameter"):
        memory.backbone_bytes(small_config("--freeze convolution_"))


def test_frozen_parameters_have_no_gradient_on_a_gpu() -> None:
    plain, fixed = (
        gpu_memory(small_config(line), SHARD, 9000) for line in ("", "--freeze conv*_weight")
    )
    assert plain["weights of the backbone"] == fixed["weights of the backbone"]
    assert plain["their gradients"] > fixed["their gradients"]
    assert plain["their optimizer"] > fixed["their optimizer"]
