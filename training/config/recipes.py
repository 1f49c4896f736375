"""The recipes of ``classify.py --dataset NAME``; see ``presets``, which has those of faces."""

from __future__ import annotations

from easydict import EasyDict

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

# The learning rates are multiplied by the ranks and fall along a cosine, unless a row says
# otherwise. What stands before an underscore is the set of images.
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
