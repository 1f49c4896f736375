"""A command line that names only a data set: the rates of the original.

tests/test_documents.py compares presets and recipes with the tables of docs/porting.md.

The first update counts as in the original's scheduler: from 1 in MXNet, from 0 in PyTorch.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from training.config.faces import parse as parse_faces
from training.config.images import parse as parse_images


def original_rate(name: str, update: int, per_epoch: int, world_size: int) -> float:
    epoch = update // per_epoch
    if name == "mnist":
        return 0.01 * world_size
    if name == "cifar10":
        return 0.1 * world_size * (1 + math.cos(math.pi * epoch / 200)) / 2
    if name == "grouping":
        return 0.1 * 0.94**epoch
    # Of ImageNet one update later than MXNet's after the warm-up, whose last update has a rate of
    # 0; of faces one update later than in PyTorch's recipe within the warm-up.
    is_imagenet = name == "imagenet"
    peak, warmup, epochs = (0.1 * world_size, 10, 90) if is_imagenet else (0.3, 1, 20)
    if update < warmup * per_epoch:
        return peak * (update + 1) / (warmup * per_epoch)
    share = (update - warmup * per_epoch) / ((epochs - warmup) * per_epoch)
    return peak * (1 - share) ** (2 if is_imagenet else 1)


@pytest.mark.parametrize("world_size", [1, 8])
@pytest.mark.parametrize(("name", "line", "images", "batch_size", "epochs"), [
    ("mnist", "--dataset mnist --data-dir d", 60_000, 64, 5),
    ("cifar10", "--dataset cifar10 --data-dir d", 50_000, 128, 200),
    ("imagenet", "--dataset imagenet --data-dir d", 1_281_167, 256, 90),
    ("grouping", "--dataset cifar10 --data-dir d --lr 0.1 --lr-factor 0.94 --no-lr-scaling",
     50_000, 45, 200),
    ("faces", "--rec . --lr 0.3 --lr-schedule poly --lr-power 1 --epochs 20 --warmup {per_epoch}",
     42_474_557, 256, 20),
])  # fmt: skip
def test_rates_are_those_of_the_original(name, line, images, batch_size, epochs, world_size):
    per_epoch = images // (batch_size * world_size)
    parse: Any = parse_faces if "--rec" in line else parse_images
    chosen = parse(line.format(per_epoch=per_epoch).split()).schedule
    schedule = chosen.build(world_size, per_epoch)
    total = epochs * per_epoch
    assert chosen.total_updates(per_epoch) == total
    spread = [round(share * (total - 1) / 19) for share in range(20)]
    for update in [*spread, per_epoch - 1, per_epoch, 10 * per_epoch - 1]:
        if name == "cifar10":
            # The tutorial's rate is that of the beginning of an epoch.
            update -= update % per_epoch
        expected = original_rate(name, update, per_epoch, world_size)
        assert schedule(update) == pytest.approx(expected, rel=1e-9)
