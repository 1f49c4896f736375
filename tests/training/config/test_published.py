"""The presets with published names have the learning rates of their originals' formulas.

The formulas are written out from the originals' programs, and count an optimizer's first update as
the original's scheduler does: from 1 in MXNet, in whole epochs in the CIFAR-10 tutorial, from 0 in
PyTorch's recipes for faces. The falling steps of Partial FC's presets are in test_presets.
"""

from __future__ import annotations

import math
from typing import Any, Callable

import pytest

from training.config import faces, images


def mnist(update: int, per_epoch: int, world_size: int) -> float:
    return 0.01 * world_size


def cifar10(update: int, per_epoch: int, world_size: int) -> float:
    epoch = update // per_epoch
    return 0.1 * world_size * (1 + math.cos(math.pi * epoch / 200)) / 2


def imagenet(update: int, per_epoch: int, world_size: int) -> float:
    """After the warm-up, one update later than MXNet's, whose last update has a rate of 0."""
    total, warmup = 90 * per_epoch, 10 * per_epoch
    if update < warmup:
        return 0.1 * world_size * (update + 1) / warmup
    return 0.1 * world_size * (1 - (update - warmup) / (total - warmup)) ** 2


def grouping_sgd(update: int, per_epoch: int, world_size: int) -> float:
    return 0.1 * 0.94 ** (update // per_epoch)


def arcface_torch(update: int, per_epoch: int, world_size: int) -> float:
    """In its warm-up, the rate is the one that PyTorch's recipe has one update later."""
    if update < per_epoch:
        return 0.3 * (update + 1) / per_epoch
    return 0.3 * (1 - (update - per_epoch) / (19 * per_epoch))


@pytest.mark.parametrize("world_size", [1, 8])
@pytest.mark.parametrize(
    ("line", "rate", "images_per_epoch", "batch_size", "epochs"),
    [
        ("--dataset mnist --data-dir d", mnist, 60_000, 64, 5),
        ("--dataset cifar10 --data-dir d", cifar10, 50_000, 128, 200),
        ("--dataset imagenet --data-dir d", imagenet, 1_281_167, 256, 90),
        (
            "--dataset cifar10 --data-dir d --lr 0.1 --lr-factor 0.94 --no-lr-scaling",
            grouping_sgd, 50_000, 45, 200,
        ),
        (
            "--rec . --lr 0.3 --lr-schedule poly --lr-power 1 --epochs 20 --warmup {per_epoch}",
            arcface_torch, 42_474_557, 256, 20,
        ),
    ],
)  # fmt: skip
def test_rates_are_those_of_the_original(
    line: str,
    rate: Callable[[int, int, int], float],
    images_per_epoch: int,
    batch_size: int,
    epochs: int,
    world_size: int,
) -> None:
    per_epoch = images_per_epoch // (batch_size * world_size)
    program: Any = faces if "--rec" in line else images
    chosen = program.parse(line.format(per_epoch=per_epoch).split()).schedule
    schedule = chosen.build(world_size, per_epoch)
    total = epochs * per_epoch
    assert chosen.total_updates(per_epoch) == total
    spread = [round(share * (total - 1) / 19) for share in range(20)]
    for update in [*spread, per_epoch - 1, per_epoch, 10 * per_epoch - 1]:
        if rate is cifar10:
            # The tutorial's rate is that of the beginning of an epoch.
            update -= update % per_epoch
        expected = rate(update, per_epoch, world_size)
        assert schedule(update) == pytest.approx(expected, rel=1e-9)
