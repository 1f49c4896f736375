"""The presets of ``train.py --dataset NAME``; those of ``classify.py`` are in ``recipes``.

A published result is a data set together with the schedule that was tuned for it, so one row holds
both. Its names are those of the program's options; the command line overrides any value. A row with
the name of a published one does what that one does; what we changed has another name.
docs/porting.md has the differences that remain.

Learning rates are absolute, and updates (``max_update``, ``lr_steps``) count optimizer steps; both
belong to the world size named next to them. On another number of ranks scale
``--lr`` with the global batch (Goyal et al. 2017, arXiv:1706.02677).
"""

from __future__ import annotations

from easydict import EasyDict

from runtime.errors import ConfigError, did_you_mean

_VALIDATION = ("agedb_30", "cfp_fp", "lfw")

# What InsightFace's Partial FC on MXNet does where nobody chooses: the defaults of its options and
# of its configuration. --loss cosface of these presets is its cosface, with a margin of 0.4;
# elsewhere it is that of the CosFace paper, 0.35.
_PARTIAL_FC = EasyDict(
    network="r100",
    loss="cosface",
    margins=(1.0, 0.0, 0.4),
    sample_ratio=1.0,
    batch_size=64,
    lr=0.1,
    lr_schedule="step",
)
_WEBFACE = EasyDict(
    _PARTIAL_FC,
    rec=("./datasets/webface",),
    num_classes=10_575,
    num_images=490_623,
    val_targets=("lfw", "cfp_fp", "agedb_30"),
    lr_steps=(20_000, 28_000),
    max_update=32_000,
)
_EMORE = EasyDict(
    _PARTIAL_FC,
    rec=("./datasets/faces_emore",),
    num_classes=85_742,
    num_images=5_822_653,
    val_targets=_VALIDATION,
    lr_steps=(100_000, 160_000),
    max_update=180_000,
)
_GLINT360K = EasyDict(
    _PARTIAL_FC,
    rec=("./datasets/glint360k",),
    num_classes=360_232,
    num_images=17_091_657,
)
_GLINT360K_8GPU = EasyDict(
    _GLINT360K,
    val_targets=("agedb_30", "calfw", "cfp_ff", "cfp_fp", "cplfw", "lfw", "vgg2_fp"),
    lr_steps=(200_000, 400_000, 500_000, 550_000),
    max_update=600_000,
)
_GLINT360K_16GPU = EasyDict(
    _GLINT360K,
    val_targets=_VALIDATION,
    lr_steps=(200_000, 280_000, 360_000),
    max_update=400_000,
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
    # As published, for 8 ranks: a global batch of 512.
    webface=_WEBFACE,
    emore=_EMORE,
    glint360k_8GPU=_GLINT360K_8GPU,
    # As published, for 16 ranks: a global batch of 1024.
    glint360k_16GPU=_GLINT360K_16GPU,
    # Ours. 8 ranks: a smaller network for a small set, with the margin of the CosFace paper.
    webface_r50=EasyDict(_WEBFACE, network="r50", margins=None),
    # 8 ranks: the loss that InsightFace published for this set first.
    emore_arcface=EasyDict(_EMORE, loss="arcface", margins=None),
    # 8 ranks: a tenth of the centers loses nothing on this set (An et al. 2020, arXiv:2010.05222).
    glint360k_8GPU_pfc01=EasyDict(_GLINT360K_8GPU, sample_ratio=0.1),
    # 16 ranks: the same, and the learning rate of 8 ranks scaled with the global batch.
    glint360k_16GPU_pfc01=EasyDict(_GLINT360K_16GPU, sample_ratio=0.1, lr=0.2),
)
# Batches made in memory, to measure the head with more classes than there are images for. The
# published names count identities in wan (10,000): 100w is a million.
PRESETS.update(
    {
        f"{wan}w": EasyDict(
            _PARTIAL_FC,
            debug=True,
            num_classes=wan * 10_000,
            lr_steps=(20_000, 28_000),
            max_update=32_000,
        )
        for wan in (100, 1_000, 2_000, 3_000, 10_000)
    }
)


def find(name: str) -> EasyDict:
    """Return the preset of a data set; ``ConfigError`` if there is none of that name."""
    if name not in PRESETS:
        raise ConfigError(
            f"--dataset {name!r} is not a preset{did_you_mean(name, PRESETS)}; "
            f"choose from {', '.join(PRESETS)}, or give your own record set with --rec DIR"
        )
    return PRESETS[name]
