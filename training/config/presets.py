"""The recipes of ``--dataset NAME``: ``PRESETS`` for ``train.py``, ``RECIPES`` for ``classify.py``.

A published result is a data set together with the schedule that was tuned for it, so one row holds
both. Its names are those of the programs' options; the command line overrides any value.

Learning rates are absolute and belong to the world size named beside them. They follow the habit
of the published InsightFace recipes, ``lr = 0.1 * global batch / 512``, which is the linear
scaling rule of Goyal et al. 2017 (arXiv:1706.02677); on another number of ranks multiply ``--lr``
alike. Updates (``max_update``, ``lr_steps``) count optimizer steps at that world size.
"""

from __future__ import annotations

from easydict import EasyDict

from runtime.errors import ConfigError, did_you_mean

_INSIGHTFACE = EasyDict(batch_size=64, lr=0.1, lr_schedule="step")
_VALIDATION = ("lfw", "cfp_fp", "agedb_30")
_COSFACE_R50 = EasyDict(
    _INSIGHTFACE, network="r50", loss="cosface", lr_steps=(20_000, 28_000), max_update=32_000
)

# Margin 0.4 is that of InsightFace's Partial FC recipes, where --loss cosface stands for the 0.35
# of the CosFace paper. A tenth of the centers loses nothing on this set (An et al. 2020,
# arXiv:2010.05222).
_GLINT360K = EasyDict(
    _INSIGHTFACE,
    rec=("./datasets/glint360k",),
    num_classes=360_232,
    num_images=17_091_657,
    network="r100",
    margins=(1.0, 0.0, 0.4),
    sample_ratio=0.1,
)

# For --rec DIR. The size of the set is unknown, so the length is given in epochs.
OWN_DATA = EasyDict(lr_schedule="poly", epochs=20)

PRESETS = EasyDict(
    # The first run of the README: two ranks on two cores, about four minutes. The length is in
    # epochs, so that the time on one machine does not depend on the number of ranks. A few hundred
    # identities need a smaller scale and margin than 100,000: those of the README's recipe for LFW.
    synthetic=EasyDict(
        rec=("./datasets/synthetic",),
        num_classes=400,
        num_images=12_000,
        val_targets=("unseen",),
        network="tiny",
        embedding_size=128,
        margins=(1.0, 0.0, 0.2),
        scale=32.0,
        sample_ratio=0.5,
        batch_size=64,
        lr=0.1,
        lr_schedule="poly",
        warmup=50,
        epochs=3,
        verbose=140,
        save_interval=0,
    ),
    # 8 ranks: global batch 512.
    webface=EasyDict(
        _COSFACE_R50,
        rec=("./datasets/webface",),
        num_classes=10_572,
        num_images=494_414,
        val_targets=_VALIDATION,
    ),
    # 8 ranks: global batch 512.
    emore=EasyDict(
        _INSIGHTFACE,
        rec=("./datasets/faces_emore",),
        num_classes=85_742,
        num_images=5_822_653,
        val_targets=_VALIDATION,
        network="r100",
        loss="arcface",
        lr_steps=(100_000, 160_000),
        max_update=180_000,
    ),
    # 8 ranks: global batch 512.
    glint360k_8GPU=EasyDict(
        _GLINT360K,
        val_targets=("lfw", "cfp_fp", "cfp_ff", "agedb_30", "calfw", "cplfw", "vgg2_fp"),
        lr_steps=(200_000, 400_000, 500_000, 550_000),
        max_update=600_000,
    ),
    # 16 ranks: global batch 1024.
    glint360k_16GPU=EasyDict(
        _GLINT360K,
        val_targets=_VALIDATION,
        lr=0.2,
        lr_steps=(200_000, 280_000, 360_000),
        max_update=400_000,
    ),
)
# Batches made in memory, to measure the head with more classes than there are images for. The
# published names count identities in wan (10,000): 100w is a million.
PRESETS.update(
    {
        f"{wan}w": EasyDict(_COSFACE_R50, debug=True, num_classes=wan * 10_000, sample_ratio=0.1)
        for wan in (100, 1_000, 2_000, 3_000, 10_000)
    }
)


# The MXNet and Horovod examples for MNIST and ImageNet, and the Horovod CIFAR-10 tutorial. The
# steps for ImageNet are those of Goyal et al. 2017, arXiv:1706.02677, section 5.1. The example for
# MNIST has --lr 0.01; in three epochs it ends at 0.989 where 0.05 ends at 0.992.
RECIPES = EasyDict(
    mnist=EasyDict(model="LeNet", batch_size=64, lr=0.05, wd=0.0, epochs=3, warmup_epochs=0.5),
    cifar10=EasyDict(model="ResNet18", batch_size=128, lr=0.1, wd=5e-4, epochs=200),
    imagenet=EasyDict(
        model="resnet50_v1",
        batch_size=128,
        lr=0.05,
        wd=1e-4,
        epochs=90,
        lr_schedule="step",
        lr_steps=(30, 60, 80),
        warmup_epochs=5.0,
        image_size=224,
    ),
    synthetic=EasyDict(
        model="LeNet",
        batch_size=64,
        lr=0.01,
        wd=1e-4,
        epochs=3,
        num_classes=10,
        num_images=10_000,
        image_size=32,
    ),
)


def find(name: str) -> EasyDict:
    """Return the preset of a data set; ``ConfigError`` if there is none of that name."""
    if name not in PRESETS:
        raise ConfigError(
            f"--dataset {name!r} is not a preset{did_you_mean(name, PRESETS)}; "
            f"choose from {', '.join(PRESETS)}, or give your own record set with --rec DIR"
        )
    return PRESETS[name]
