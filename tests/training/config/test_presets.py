"""A command line that names only a data set: its options, and the rates of the original.

The first update counts as in the original's scheduler: from 1 in MXNet, from 0 in PyTorch.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from runtime import options
from training.config.faces import FaceConfig
from training.config.faces import parse as parse_faces
from training.config.images import ImageConfig
from training.config.images import parse as parse_images
from training.config.presets import OWN_DATA, PRESETS, RECIPES

PARTIAL_FC = dict(
    network="r100", loss="cosface", margins=(1.0, 0.0, 0.4), sample_ratio=1.0, batch_size=64,
    lr=0.1, lr_schedule="step",
)  # fmt: skip
SHORT = dict(PARTIAL_FC, lr_steps=(20_000, 28_000), max_update=32_000)
WEBFACE = dict(
    SHORT, rec=("./datasets/webface",), num_classes=10_575, num_images=490_623,
    val_targets=("lfw", "cfp_fp", "agedb_30"),
)  # fmt: skip
EMORE = dict(
    PARTIAL_FC, rec=("./datasets/faces_emore",), num_classes=85_742, num_images=5_822_653,
    val_targets=("agedb_30", "cfp_fp", "lfw"), lr_steps=(100_000, 160_000), max_update=180_000,
)  # fmt: skip
GLINT360K = dict(
    PARTIAL_FC, rec=("./datasets/glint360k",), num_classes=360_232, num_images=17_091_657,
)  # fmt: skip
GLINT360K_8GPU = dict(
    GLINT360K, val_targets=("agedb_30", "calfw", "cfp_ff", "cfp_fp", "cplfw", "lfw", "vgg2_fp"),
    lr_steps=(200_000, 400_000, 500_000, 550_000), max_update=600_000,
)  # fmt: skip
GLINT360K_16GPU = dict(
    GLINT360K, val_targets=("agedb_30", "cfp_fp", "lfw"), lr_steps=(200_000, 280_000, 360_000),
    max_update=400_000,
)  # fmt: skip
EXPECTED = {
    "synthetic": dict(
        rec=("./datasets/synthetic",), num_classes=400, num_images=12_000, val_targets=("unseen",),
        network="tiny", embedding_size=128, margins=(1.0, 0.0, 0.2), scale=32.0, sample_ratio=0.5,
        batch_size=64, lr=0.1, lr_schedule="poly", warmup=50, epochs=3, verbose=140,
        save_interval=0,
    ),
    "webface": WEBFACE, "webface_r50": dict(WEBFACE, network="r50", margins=None),
    "emore": EMORE, "emore_arcface": dict(EMORE, loss="arcface", margins=None),
    "glint360k_8GPU": GLINT360K_8GPU,
    "glint360k_8GPU_pfc01": dict(GLINT360K_8GPU, sample_ratio=0.1),
    "glint360k_16GPU": GLINT360K_16GPU,
    "glint360k_16GPU_pfc01": dict(GLINT360K_16GPU, sample_ratio=0.1, lr=0.2),
}  # fmt: skip
for wan in (100, 1_000, 2_000, 3_000, 10_000):
    EXPECTED[f"{wan}w"] = dict(SHORT, debug=True, num_classes=wan * 10_000)

DEFAULTS = dict(
    dataset=None, num_classes=None, num_images=None, threads=0, pretrained=None,
    max_bad_records=100, dtype="float32", sync_bn=False, batch_size=64, epochs=None, lr=0.1,
    lr_schedule="poly", lr_steps=(), lr_factor=None, lr_power=2.0, momentum=0.9, wd=5e-4, keep=2,
    resume="auto", stall_timeout=600, frequent=20, seed=1,
)  # fmt: skip
FACE_DEFAULTS = dict(
    DEFAULTS, rec=(), val_targets=(), min_images=0, color_jitter=0.0, cutout=0.0,
    low_resolution=0.0, blur=0.0, gray=0.0, jpeg_compression=0.0, network="r50", embedding_size=512,
    net_output=None, recompute=False, accumulate=1, head_dtype="float32", loss="cosface",
    margins=None, scale=64.0, pretrained_centers=None, filter_threshold=1.0, sample_ratio=1.0,
    center_lr=None, optimizer="sgd", warmup=0, max_update=None, verbose=2000, save_interval=2000,
    on_nan="stop", debug=False, dry_run=False, world_size=None, gpu=False, memory=None, json=False,
    best=None, teacher=None, teacher_weight=1.0, class_balance=0.0,
)  # fmt: skip
CLASSIFY_DEFAULTS = dict(
    DEFAULTS, data_dir=None, rec_train=None, rec_val=None, image_size=None, model="",
    last_gamma=False, no_lr_scaling=False, warmup_epochs=0.0, label_smoothing=0.0, mixup=0.0,
    kv_store="horovod", staleness=None, data_allocator=0, rebalance=None, num_examples=None,
    fp16_allreduce=False, gradient_predivide_factor=1.0, eval_frequency=1, save_frequency=1,
)  # fmt: skip


def test_recipes_of_faces() -> None:
    assert {name: dict(recipe) for name, recipe in PRESETS.items()} == EXPECTED
    assert dict(OWN_DATA) == {"lr_schedule": "poly", "epochs": 20}
    config = parse_faces(["--rec", ".", "--rec", "tests"])
    assert config.data.rec == (".", "tests")
    assert (config.schedule.epochs, config.schedule.lr_schedule) == (20, "poly")


def test_recipes_of_classifiers() -> None:
    cifar = dict(model="ResNet18", batch_size=128, lr=0.1, wd=5e-4, epochs=200, image_size=32)
    steps = dict(lr=0.05, lr_schedule="step")
    grouping = dict(
        steps, model="inception-bn-28-small", batch_size=128, no_lr_scaling=True, lr_factor=1.0,
        wd=1e-5, epochs=20, image_size=28,
    )  # fmt: skip
    imagenet = dict(model="resnet50_v1", wd=1e-4, epochs=90, image_size=224)
    mnist = dict(model="LeNet", batch_size=64, wd=0.0)
    assert RECIPES == {
        "mnist": dict(mnist, lr=0.01, lr_schedule="step", lr_factor=1.0, epochs=5),
        "mnist_cosine": dict(mnist, lr=0.05, epochs=3, warmup_epochs=0.5),
        "cifar10": cifar, "cifar100": cifar,
        "cifar10_grouping": grouping, "cifar100_grouping": grouping,
        "cifar10_grouping_resnet": dict(
            steps, model="resnet20", batch_size=25, no_lr_scaling=True, lr_steps=(220, 260, 280),
            wd=1e-4, epochs=400, image_size=32,
        ),
        "imagenet": dict(imagenet, batch_size=256, lr=0.1, lr_schedule="poly", warmup_epochs=10.0),
        "imagenet_steps": dict(
            imagenet, **steps, batch_size=128, lr_steps=(30, 60, 80), warmup_epochs=5.0
        ),
        "synthetic": dict(
            mnist, lr=0.01, wd=1e-4, epochs=3, num_classes=10, num_images=10_000, image_size=32
        ),
    }  # fmt: skip


def test_defaults() -> None:
    for config, expected in ((FaceConfig, FACE_DEFAULTS), (ImageConfig, CLASSIFY_DEFAULTS)):
        found = options.values(options.compose(config, {}))
        assert {name: found[name] for name in expected} == expected


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
