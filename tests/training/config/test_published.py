"""The presets with published names have the learning rates of their originals' formulas.

The formulas are written out from the originals' programs, and count an optimizer's first update as
the original's scheduler does: from 1 in MXNet, in whole epochs in the CIFAR-10 tutorial, from 0 in
PyTorch's recipes for faces.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Callable

import pytest

from runtime import options
from training.config import faces, images
from training.config.presets import PRESETS

WORLD_SIZES = (1, 8, 16)

PARTIAL_FC = {
    "webface": ((20_000, 28_000), 32_000),
    "emore": ((100_000, 160_000), 180_000),
    "glint360k_8GPU": ((200_000, 400_000, 500_000, 550_000), 600_000),
    "glint360k_16GPU": ((200_000, 280_000, 360_000), 400_000),
    **{f"{wan}w": ((20_000, 28_000), 32_000) for wan in (100, 1_000, 2_000, 3_000, 10_000)},
}


def spread(total: int) -> list[int]:
    """Twenty updates over a run, its first and last among them."""
    return [round(share * (total - 1) / 19) for share in range(20)]


def multi_factor(base: float, steps: tuple[int, ...], number: int) -> float:
    """MXNet's rate of the update with this number: a tenth behind each step."""
    return base * 0.1 ** sum(number > step for step in steps)


def mxnet_poly(base: float, total: int, warmup: int, number: int) -> float:
    """MXNet's polynomial of power 2, after a linear warm-up from 0."""
    if number < warmup:
        return base * number / warmup
    return base * (1 - (number - warmup) / (total - warmup)) ** 2


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("preset", PARTIAL_FC)
def test_faces_fall_as_in_partial_fc(preset: str, world_size: int) -> None:
    steps, total = PARTIAL_FC[preset]
    config = faces.parse(["--dataset", preset, "--dry-run"])
    images_per_epoch = config.data.num_images or 10**6
    schedule = config.schedule.build(world_size, images_per_epoch // (64 * world_size))
    assert config.schedule.total_updates(1) == total
    near = [update for step in steps for update in (step - 1, step)]
    for update in [*spread(total), *near]:
        found = schedule.lr_at(update)
        assert found == pytest.approx(multi_factor(0.1, steps, update + 1), rel=1e-12)
        # The centers have the rate of the backbone.
        assert found * config.center_lr_factor == found


def test_the_rest_of_a_published_preset() -> None:
    for preset in PARTIAL_FC:
        config = faces.parse(["--dataset", preset, "--dry-run"])
        assert config.backbone.network == "r100" and config.backbone.embedding_size == 512
        assert config.head.applied_margins == (1.0, 0.0, 0.4) and config.head.scale == 64
        assert config.head.sample_ratio == 1.0 and config.data.batch_size == 64
        assert (config.optimizer.momentum, config.optimizer.wd) == (0.9, 5e-4)
        assert (config.run.frequent, config.run.verbose) == (20, 2000)
        assert config.schedule.warmup == 0
        # Its command lines name the loss as well.
        named = faces.parse(["--dataset", preset, "--dry-run", "--loss", "cosface"])
        assert named == config
    emore = faces.parse("--dataset emore --dry-run --loss arcface".split())
    assert emore.head.applied_margins == (1.0, 0.5, 0.0)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_mnist_has_a_constant_rate(world_size: int) -> None:
    schedule_of = images.parse("--dataset mnist --data-dir d".split()).schedule
    updates_per_epoch = 60_000 // (64 * world_size)
    schedule = schedule_of.build(world_size, updates_per_epoch)
    total = 5 * updates_per_epoch
    assert schedule_of.total_updates(updates_per_epoch) == total
    assert [schedule.lr_at(update) for update in spread(total)] == [0.01 * world_size] * 20


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_cifar10_falls_along_the_cosine_of_the_tutorial(world_size: int) -> None:
    """The tutorial's rate is that of the beginning of an epoch."""
    schedule_of = images.parse("--dataset cifar10 --data-dir d".split()).schedule
    updates_per_epoch = 50_000 // (128 * world_size)
    schedule = schedule_of.build(world_size, updates_per_epoch)
    assert schedule_of.total_updates(1) == 200
    for epoch in spread(200):
        rate = 0.1 * world_size * (1 + math.cos(math.pi * epoch / 200)) / 2
        assert schedule.lr_at(epoch * updates_per_epoch) == pytest.approx(rate, rel=1e-9)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_imagenet_falls_as_in_the_example(world_size: int) -> None:
    """After the warm-up, one update later than MXNet's, whose last update has a rate of 0."""
    schedule_of = images.parse("--dataset imagenet --data-dir d".split()).schedule
    updates_per_epoch = 1_281_167 // (256 * world_size)
    schedule = schedule_of.build(world_size, updates_per_epoch)
    total, warmup = 90 * updates_per_epoch, 10 * updates_per_epoch
    for update in [*spread(total), warmup - 1, warmup]:
        number = update + 1 if update < warmup else update
        rate = mxnet_poly(0.1 * world_size, total, warmup, number)
        assert schedule.lr_at(update) == pytest.approx(rate, rel=1e-9)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_grouping_sgd_falls_after_every_epoch(world_size: int) -> None:
    line = "--dataset cifar10 --data-dir d --lr 0.1 --lr-factor 0.94 --epochs 200 --no-lr-scaling"
    schedule_of = images.parse(line.split()).schedule
    updates_per_epoch = 50_000 // (45 * world_size)
    schedule = schedule_of.build(world_size, updates_per_epoch)
    for update in spread(200 * updates_per_epoch):
        rate = 0.1 * 0.94 ** (update // updates_per_epoch)
        assert schedule.lr_at(update) == pytest.approx(rate, rel=1e-9)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_arcface_torch_falls_in_a_straight_line(world_size: int) -> None:
    """In its warm-up, the rate is the one that PyTorch's recipe has one update later."""
    updates_per_epoch = 42_474_557 // (256 * world_size)
    total, warmup = 20 * updates_per_epoch, updates_per_epoch
    line = f"--rec . --lr 0.3 --lr-schedule poly --lr-power 1 --epochs 20 --warmup {warmup}"
    schedule = faces.parse(line.split()).schedule.build(world_size, updates_per_epoch)
    for update in [*spread(total), warmup - 1, warmup]:
        if update < warmup:
            rate = 0.3 * (update + 1) / warmup
        else:
            rate = 0.3 * (1 - (update - warmup) / (total - warmup))
        assert schedule.lr_at(update) == pytest.approx(rate, rel=1e-9)


# What config.json held before the presets were the published ones, as far as it differs from the
# defaults.
STEP = {"batch_size": 64, "lr": 0.1, "center_lr": 0.1, "lr_schedule": "step"}
EARLIER_FACES: dict[str, dict[str, Any]] = {
    "webface": {
        **STEP, "num_classes": 10_572, "network": "r50", "loss": "cosface",
        "margins": [1.0, 0.0, 0.35], "val_targets": ["lfw", "cfp_fp", "agedb_30"],
        "lr_steps": [20_000, 28_000], "max_update": 32_000,
    },
    "emore": {
        **STEP, "num_classes": 85_742, "network": "r100", "loss": "arcface",
        "margins": [1.0, 0.5, 0.0], "val_targets": ["lfw", "cfp_fp", "agedb_30"],
        "lr_steps": [100_000, 160_000], "max_update": 180_000,
    },
    "glint360k_16GPU": {
        **STEP, "num_classes": 360_232, "network": "r100", "loss": "combined",
        "margins": [1.0, 0.0, 0.4], "val_targets": ["lfw", "cfp_fp", "agedb_30"],
        "sample_ratio": 0.1, "lr": 0.2, "center_lr": 0.2,
        "lr_steps": [200_000, 280_000, 360_000], "max_update": 400_000,
    },
    "100w": {
        **STEP, "num_classes": 10**6, "network": "r50", "loss": "cosface",
        "margins": [1.0, 0.0, 0.35], "sample_ratio": 0.1, "debug": True,
        "lr_steps": [20_000, 28_000], "max_update": 32_000,
    },
}  # fmt: skip
EARLIER_IMAGES: dict[str, dict[str, Any]] = {
    "mnist": {
        "model": "LeNet", "batch_size": 64, "lr": 0.05, "wd": 0.0, "epochs": 3,
        "lr_schedule": "cosine", "lr_steps": [], "warmup_epochs": 0.5,
    },
    "imagenet": {
        "model": "resnet50_v1", "batch_size": 128, "lr": 0.05, "wd": 1e-4, "epochs": 90,
        "lr_schedule": "step", "lr_steps": [30, 60, 80], "warmup_epochs": 5.0, "image_size": 224,
    },
}  # fmt: skip


def test_earlier_runs_resume_with_their_configuration(tmp_path: Path) -> None:
    """All values are those of the run; the new options are as if they had not been given."""
    programs: tuple[tuple[Any, dict[str, dict[str, Any]], Callable[..., Any], list[str]], ...] = (
        (faces, EARLIER_FACES, faces.resolve, ["--rec", "."]),
        (images, EARLIER_IMAGES, images.resolve, ["--data-dir", "."]),
    )
    for program, earlier, resolve, data in programs:
        defaults = options.as_json(options.values(resolve({"dataset": "synthetic"})))
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


def test_our_own_presets_have_names_of_their_own() -> None:
    ours = set(PRESETS) - set(PARTIAL_FC)
    assert ours == {
        *("synthetic", "webface_r50", "emore_arcface"),
        *("glint360k_8GPU_pfc01", "glint360k_16GPU_pfc01"),
    }
