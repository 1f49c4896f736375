"""What the programs that this toolkit follows call their options, and what to type here instead.

Somebody who comes from InsightFace's Partial FC on MXNet or its arcface_torch, from Horovod's
examples, the Horovod tutorial for CIFAR-10 or Grouping-SGD types the names of that program. A
similar name of ours would be a wrong answer to most of them.
docs/porting.md has the same tables with the reasons.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from runtime.command_line import hint_for
from runtime.errors import ConfigError

_LENGTH = "give --epochs, the length of the run"
_DEVICES = "choose GPUs by CUDA_VISIBLE_DEVICES=0,1 and start as many ranks, as in horovodrun -np 2"
_MOMENTUM = "leave it out: the momentum of BatchNorm is 0.9, as there"
_WORKSPACE = "leave it out: no result depends on it"
_RECOMPUTE = "give --recompute, which computes feature maps twice and keeps few of them"
_FLOAT16 = "give --dtype float16"
_FOLDER = "give --models-root, the folder for the model, checkpoints and logs"
_RESUME = "give --resume PATH, or nothing: a run goes on from its newest checkpoint"
_LOGS = "leave it out: each rank writes logs/rank-0000.log in --models-root"
_SAVED = "leave it out: the model is always saved, into --models-root"
_TORCHRUN = "torchrun's; start ranks with horovodrun -np 8 -H localhost:8"
_WANDB = "leave it out: metrics.jsonl and scalars/ in --models-root have the numbers"
_SHARE = "give python -m parallel.launch its --data-sharding FILE, and --data-allocator 1 here"
_RECIPE = "leave it out: the set of images has the random changes of its recipe"
_MODEL_LAYERS = "name the model with its layers, as in --model resnet20 or --model resnet50_v2"
_LAYERS = "name the network with its layers, as in --network r100"

_SHARED = {
    "--end-epoch": _LENGTH,
    "--gpus": _DEVICES,
    "--ctx": _DEVICES,
    "--fp16": _FLOAT16,
    "--weight-decay": "give --wd",
    "--bn-mom": _MOMENTUM,
    "--workspace": _WORKSPACE,
    "--syncbn": "give --sync-bn",
    "--num-image": "give --num-images",
    "--num-workers": "give --threads, which decode images",
    "--dali-aug": "give --low-resolution 0.2, --blur 0.1 and --gray 0.05, which are of the same "
    "kinds",
    "--dali*": "leave it out: images are decoded on the processors; see --threads",
    **dict.fromkeys(
        "--local-rank --nnodes --node-rank --nproc-per-node --master-*".split(), _TORCHRUN
    ),
    "--output": _FOLDER,
    "--ckpt-dir": _FOLDER,
    "--log-file": _LOGS,
    "--log-dir": _LOGS,
    "--clip-gradient": "not ported, as it cuts each number by itself; --clip-norm X shortens the "
    "whole gradient",
}

TRAIN: Mapping[str, str] = {
    **_SHARED,
    "--mom": "give --momentum",
    "--num-epoch": _LENGTH,
    "--num-epochs": _LENGTH,
    "--backbone-lr": "give --lr, the learning rate of the backbone",
    "--memory-bank-lr": "give --center-lr, the learning rate of the class centers",
    "--memonger": _RECOMPUTE,
    "--images-filter": "give --min-images, of an identity that is kept",
    "--kv-store": "train.py sends gradients by Horovod alone; classify.py has --kv-store",
    "--kvstore": "train.py sends gradients by Horovod alone; classify.py has --kv-store",
    "--loss-s": "give --scale",
    "--loss-m[123]": "give the three margins as --margins m1,m2,m3",
    "--margin-list": "give the three margins as --margins m1,m2,m3",
    "--num-layers": _LAYERS,
    "--net-name": _LAYERS,
    "--net-se": "name the network with -se, as in --network r100-se",
    "--net-act": "leave it out: the activation is PReLU, as there",
    "--net-unit": "leave it out: the unit is version 3, as there",
    "--net-input": "leave it out: the input is version 1, as there",
    "--image-size": "leave it out: the record set's file property has the size of its images",
    "--cutoff": "give --cutout, the side of the square as a share of the image",
    "--color-jittering": "give --color-jitter, from 0 to 1",
    "--rand-mirror": "leave it out: half of the images are mirrored, as there",
    "--sample-rate": "give --sample-ratio",
    "--interclass-filtering-threshold": "give --filter-threshold, where 1 is off",
    "--warmup-epoch": "give --warmup, in updates",
    "--gradient-acc": "give --accumulate, and the whole batch of an update as --batch-size",
    "--save-all-states": "leave it out: checkpoints hold everything; see --keep",
    **dict.fromkeys("--wandb-* --using-wandb --suffix-run-name --save-artifacts".split(), _WANDB),
    "--per-batch-size": "give --batch-size, which is that of a rank",
    "--pretrained-epoch": "give --pretrained PREFIX,EPOCH",
    "--ckpt": "leave it out: see --save-interval and --keep",
    "--prefix": _FOLDER,
    "configs/*": "a Python file is not read; give --rec DIR with options, or --config config.json",
}

CLASSIFY: Mapping[str, str] = {
    **_SHARED,
    "--gpu": _DEVICES,
    "--memonger": "not ported to classifiers; lower --batch-size",
    "--data-type": "give --dataset cifar10_grouping_resnet, the recipe of train_resnet.py",
    "--depth": _MODEL_LAYERS,
    "--num-layers": _MODEL_LAYERS,
    "--lr-mode": "give --lr-schedule",
    "--lr-decay": "give --lr-factor",
    "--lr-decay-epoch": "give --lr-steps, in epochs",
    "--lr-factor-epoch": "leave it out: --lr-factor counts after every epoch, or at --lr-steps",
    "--warmup-lr": "leave it out: --warmup-epochs rise from 0",
    "--mode": "leave it out: there is one mode, that of Gluon",
    "--use-rec": "leave it out: --rec-train and --rec-val say it",
    "--rec-train-idx": "leave it out: the .idx file beside the .rec file is found",
    "--rec-val-idx": "leave it out: the .idx file beside the .rec file is found",
    "--train-dataset": "give the whole path as --rec-train",
    "--val-dataset": "give the whole path as --rec-val",
    "--data-nthreads": "give --threads",
    "--data-shape": "give --image-size",
    "--use-pretrained": "not ported: networks start with random weights",
    "--no-cuda": "set CUDA_VISIBLE_DEVICES= before the command",
    "--eval-epoch": "leave it out: --eval-frequency 1 is the default",
    "--log-interval": "give --frequent",
    "--num-proc": "start ranks with horovodrun -np N",
    "--hosts": "start ranks with horovodrun -H host1:8,host2:8",
    "--communication": "give horovodrun --gloo or --mpi",
    **dict.fromkeys("--savemodel --save-model-prefix --model-prefix".split(), _SAVED),
    **dict.fromkeys("--retrain --model-load-epoch --load-epoch".split(), _RESUME),
    "--hostname": "give python -m parallel.launch its -H FILE",
    "--cluster[0-9]-*": _SHARE,
    "--data-proportion": _SHARE,
    **dict.fromkeys("--aug-level --pad-size --rgb-* --random-* --max-random-*".split(), _RECIPE),
    "--list-dir": "leave it out: nothing there reads it",
    "--data-train*": "give --rec-train, whose .idx file is found",
    "--data-val*": "give --rec-val, whose .idx file is found",
    "--image-shape": "give --image-size",
    "--lr-step-epochs": "give --lr-steps, in epochs",
    "--save-period": "give --save-frequency",
    "--disp-batches": "give --frequent",
    "--optimizer": "leave it out: it is SGD, with --momentum",
    "--loss": "leave it out: it is the cross-entropy",
    "--warmup-strategy": "leave it out: the learning rate rises from 0 in equal steps",
    "--gc-*": "not ported; --fp16-allreduce halves what Horovod sends",
    "--monitor": "leave it out: metrics.jsonl in --models-root has the numbers of the run",
}

SYNONYMS: Mapping[str, str] = {
    "--num-epoch": "--epochs",
    "--num-epochs": "--epochs",
    "--network": "--model",
    "--mom": "--momentum",
    "-r": "--resume",
}
"""Options of the tutorial, of Grouping-SGD and of MXNet's examples that ``classify.py`` takes under
both names."""

MODELS: Mapping[str, str] = {
    "resnet": _MODEL_LAYERS,
    "resnet-28-small": "give resnet20, which is pre-activated, for images of 28 or 32 pixels",
    "inception-bn": "give inceptionv3",
    "inception-bn-full": "give inceptionv3",
    "inception-v3": "give inceptionv3",
    "googlenet": "not ported; give inceptionv3",
    "vgg": "name it with its layers, as in vgg16_bn, or VGG16 for CIFAR",
    "lenet": "give LeNet",
    "lenet-stn": "not ported; give LeNet",
    "mlp": "not ported; give LeNet",
    "3conv": "not ported; give LeNet or resnet20",
    "small": "it is in no file of the original; give inception-bn-28-small",
    "cross": "not ported; give resnet20 or inception-bn-28-small",
    "unet": "not ported: it does not classify",
    "resnet*_v1?*": "of GluonCV, not ported; give resnet50_v1 or another of Gluon's model zoo",
    "VGG(*": "give the name in the parentheses, as in VGG19",
    "ShuffleNet*": "not ported; give MobileNetV2",
    "EfficientNet*": "not ported; give MobileNetV2",
    "GoogLeNet*": "not ported; give DenseNet121",
    "PNASNet*": "not ported; give DenseNet121",
    "*()": "leave the parentheses out",
}
"""Models of Grouping-SGD, of MXNet's examples, of GluonCV and of the CIFAR-10 tutorial that have
another name here, or none."""

NETWORKS: Mapping[str, str] = {
    "r122": "the original has no units for 122 layers and stops; give r124 or r100",
    "rx50": "it is of a module, fresnext, that the original lacks; give r50",
    "rx101": "it is of a module, fresnext, that the original lacks; give r100",
    "r2060": "not ported; the deepest here is r200",
    "iresnet*": "give r with the number of layers, as in r50",
    "resnet*": "give r with the number of layers, as in r50",
    "mobilefacenet*": "give mbf",
    "mbf_large": "not ported; give mbf",
    "y1": "give mbf, with --embedding-size 128 as there",
    "vit_*": "there are no vision transformers here; give r50 or r100",
}
"""Backbones of the originals that do not exist here; others have their original's name."""


def check_name(option: str, name: str, known: Collection[str], hints: Mapping[str, str]) -> None:
    """Raise ``ConfigError`` for an original's network that is not ``known`` here."""
    hint = None if name in known else hint_for(name, hints)
    if hint is not None:
        raise ConfigError(f"{option} {name!r} does not exist here: {hint}")
