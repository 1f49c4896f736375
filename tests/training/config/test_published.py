"""The presets with published names have the learning rates of their originals' formulas.

The formulas are written out from the originals' programs, and count an optimizer's first update as
the original's scheduler does: from 1 in MXNet, in whole epochs in the CIFAR-10 tutorial, from 0 in
PyTorch's recipes for faces. The numbers in them are those of test_presets.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Callable

import pytest

from runtime import options
from training.config import faces, images

WORLD_SIZES = (1, 8, 16)


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
        assert schedule.lr_at(update) == pytest.approx(rate, rel=1e-12)
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
        assert schedule.lr_at(update) == pytest.approx(expected, rel=1e-9)


# What config.json held before the presets were the published ones, as far as it differs from the
# defaults.
EARLIER_FACES: dict[str, dict[str, Any]] = {
    "glint360k_16GPU": {
        "num_classes": 360_232, "network": "r100", "loss": "combined",
        "margins": [1.0, 0.0, 0.4], "val_targets": ["lfw", "cfp_fp", "agedb_30"],
        "sample_ratio": 0.1, "batch_size": 64, "lr": 0.2, "center_lr": 0.2, "lr_schedule": "step",
        "lr_steps": [200_000, 280_000, 360_000], "max_update": 400_000,
    },
    "100w": {
        "num_classes": 10**6, "network": "r50", "loss": "cosface", "margins": [1.0, 0.0, 0.35],
        "sample_ratio": 0.1, "debug": True, "batch_size": 64, "lr": 0.1, "center_lr": 0.1,
        "lr_schedule": "step", "lr_steps": [20_000, 28_000], "max_update": 32_000,
    },
}  # fmt: skip
EARLIER_IMAGES: dict[str, dict[str, Any]] = {
    "imagenet": {
        "model": "resnet50_v1", "batch_size": 128, "lr": 0.05, "wd": 1e-4, "epochs": 90,
        "lr_schedule": "step", "lr_steps": [30, 60, 80], "warmup_epochs": 5.0, "image_size": 224,
    },
}  # fmt: skip


def test_earlier_runs_resume_with_their_configuration(tmp_path: Path) -> None:
    """All values are those of the run; the new options are as if they had not been given."""
    programs: tuple[tuple[Any, dict[str, dict[str, Any]], list[str]], ...] = (
        (faces, EARLIER_FACES, ["--rec", "."]),
        (images, EARLIER_IMAGES, ["--data-dir", "."]),
    )
    for program, earlier, data in programs:
        defaults = options.as_json(options.values(program.resolve({"dataset": "synthetic"})))
        for name, recipe in earlier.items():
            plain = {field: None for field in ("num_images", "num_classes", "image_size", "epochs")}
            saved = {**defaults, **plain, "warmup": 0, "dataset": name, **recipe}
            saved = {key: saved[key] for key in defaults if key not in ("lr_factor", "lr_power")}
            file = tmp_path / "config.json"
            file.write_text(json.dumps(saved))
            words = [] if recipe.get("debug") else data
            found = program.parse(["--config", str(file), *words]).values()
            assert {field: found[field] for field in recipe} == recipe, name
            assert (found["lr_factor"], found["lr_power"]) == (None, 2.0)
