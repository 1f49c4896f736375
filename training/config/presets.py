"""The presets of ``train.py --dataset NAME``, and the recipes of ``classify.py --dataset NAME``.

A published result is a data set together with the schedule that was tuned for it, so one row holds
both. Its names are those of the program's options; the command line overrides any value. A row with
the name of a published one does what that one does; what we changed has another name.
docs/porting.md has the differences that remain.

The learning rates of presets are absolute, and updates (``max_update``, ``lr_steps``) count
optimizer steps; both belong to the world size named next to them. On another number of ranks scale
``--lr`` with the global batch (Goyal et al. 2017, arXiv:1706.02677). Those of recipes are
multiplied by the ranks and fall along a cosine, unless a row says otherwise.
"""

from __future__ import annotations

from easydict import EasyDict

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
    _PARTIAL_FC, rec=("./datasets/glint360k",), num_classes=360_232, num_images=17_091_657
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
    glint360k_8GPU=EasyDict(
        _GLINT360K,
        val_targets=("agedb_30", "calfw", "cfp_ff", "cfp_fp", "cplfw", "lfw", "vgg2_fp"),
        lr_steps=(200_000, 400_000, 500_000, 550_000),
        max_update=600_000,
    ),
    # As published, for 16 ranks: a global batch of 1024.
    glint360k_16GPU=EasyDict(
        _GLINT360K,
        val_targets=_VALIDATION,
        lr_steps=(200_000, 280_000, 360_000),
        max_update=400_000,
    ),
    # Ours. 8 ranks: a smaller network for a small set, with the margin of the CosFace paper.
    webface_r50=EasyDict(_WEBFACE, network="r50", margins=None),
    # 8 ranks: the loss that InsightFace published for this set first.
    emore_arcface=EasyDict(_EMORE, loss="arcface", margins=None),
)
# Ours, for 8 ranks: a tenth of the centers loses nothing on this set (An et al. 2020,
# arXiv:2010.05222). 16 ranks: the same, and the learning rate scaled with the global batch.
PRESETS.glint360k_8GPU_pfc01 = EasyDict(PRESETS.glint360k_8GPU, sample_ratio=0.1)
PRESETS.glint360k_16GPU_pfc01 = EasyDict(PRESETS.glint360k_16GPU, sample_ratio=0.1, lr=0.2)
# Batches made in memory, to measure the head with more classes than there are images for. The
# published names count identities in wan (10,000): 100w is a million.
_MEMORY = EasyDict(_PARTIAL_FC, debug=True, lr_steps=(20_000, 28_000), max_update=32_000)
for _wan in (100, 1_000, 2_000, 3_000, 10_000):
    PRESETS[f"{_wan}w"] = EasyDict(_MEMORY, num_classes=_wan * 10_000)

_MNIST = EasyDict(model="LeNet", batch_size=64, wd=0.0)
_CIFAR = EasyDict(model="ResNet18", batch_size=128, lr=0.1, wd=5e-4, epochs=200, image_size=32)
# The scripts and programs of Grouping-SGD for CIFAR. --lr belongs to an update, as there.
_GROUPING = EasyDict(
    model="inception-bn-28-small",
    batch_size=128,
    lr=0.05,
    no_lr_scaling=True,
    lr_schedule="step",
    lr_factor=1.0,
    wd=1e-5,
    epochs=20,
    image_size=28,
)
_IMAGENET = EasyDict(model="resnet50_v1", wd=1e-4, epochs=90, image_size=224)

# The part before an underscore names the set of images.
RECIPES = EasyDict(
    # Horovod's example for MXNet: a constant rate.
    mnist=EasyDict(_MNIST, lr=0.01, lr_schedule="step", lr_factor=1.0, epochs=5),
    # Ours: in three epochs it ends at 0.992 where a rate of 0.01 ends at 0.989.
    mnist_cosine=EasyDict(_MNIST, lr=0.05, epochs=3, warmup_epochs=0.5),
    # The Horovod CIFAR-10 tutorial.
    cifar10=_CIFAR,
    # Ours: the same for a hundred classes.
    cifar100=_CIFAR,
    # train_cifar10.py and train_cifar100.py of Grouping-SGD; its scripts add --lr-factor 0.94.
    cifar10_grouping=_GROUPING,
    cifar100_grouping=_GROUPING,
    # Its train_resnet.py, with batch and rate of its scripts for 20 layers.
    cifar10_grouping_resnet=EasyDict(
        _CIFAR,
        model="resnet20",
        batch_size=25,
        lr=0.05,
        no_lr_scaling=True,
        lr_schedule="step",
        lr_steps=(220, 260, 280),
        wd=1e-4,
        epochs=400,
    ),
    # Horovod's example for MXNet, with the batch and rate of the published 75.7 %.
    imagenet=EasyDict(_IMAGENET, batch_size=256, lr=0.1, lr_schedule="poly", warmup_epochs=10.0),
    # Half the memory, and the steps of Goyal et al. 2017, arXiv:1706.02677, section 5.1.
    imagenet_steps=EasyDict(
        _IMAGENET,
        batch_size=128,
        lr=0.05,
        lr_schedule="step",
        lr_steps=(30, 60, 80),
        warmup_epochs=5.0,
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
