"""The presets with published names have the learning rates of their originals' formulas.

The formulas are written out from the originals' programs, and count an optimizer's first update as
the original's scheduler does: from 1 in MXNet, in whole epochs in the CIFAR-10 tutorial, from 0 in
PyTorch's recipes for faces.
"""

from __future__ import annotations

import math
from typing import Any, Callable

import pytest

from training.config import faces, images

WORLD_SIZES = (1, 8)


def spread(total: int) -> list[int]:
    """Twenty updates over a run, its first and last among them."""
    return [round(share * (total - 1) / 19) for share in range(20)]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize(
    ("preset", "steps", "total"),
    [
        ("webface", (20_000, 28_000), 32_000),
        ("glint360k_8GPU", (200_000, 400_000, 500_000, 550_000), 600_000),
        ("10000w", (20_000, 28_000), 32_000),
    ],
)
def test_faces_fall_as_in_partial_fc(
    preset: str, steps: tuple[int, ...], total: int, world_size: int
) -> None:
    config = faces.parse(["--dataset", preset, "--dry-run"])
    images_per_epoch = config.data.num_images or 10**6
    schedule = config.schedule.build(world_size, images_per_epoch // (64 * world_size))
    assert config.schedule.total_updates(1) == total
    near = [update for step in steps for update in (step - 1, step)]
    for update in [*spread(total), *near]:
        rate = 0.1 * 0.1 ** sum(update + 1 > step for step in steps)
        assert schedule(update) == pytest.approx(rate, rel=1e-12)
    # The centers have the rate of the backbone.
    assert config.center_lr_factor == 1


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


@pytest.mark.parametrize("world_size", WORLD_SIZES)
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
    for update in [*spread(total), per_epoch - 1, per_epoch, 10 * per_epoch - 1]:
        if rate is cifar10:
            # The tutorial's rate is that of the beginning of an epoch.
            update -= update % per_epoch
        expected = rate(update, per_epoch, world_size)
        assert schedule(update) == pytest.approx(expected, rel=1e-9)
