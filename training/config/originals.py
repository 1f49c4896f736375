"""What the programs that this toolkit follows call their options, and what to type here instead.

Somebody who comes from InsightFace's Partial FC on MXNet or its arcface_torch, from Horovod's
examples, the Horovod tutorial for CIFAR-10 or Grouping-SGD types the names of that program. A
similar name of ours would be a wrong answer to most of them. A row has names, or patterns of names,
and the answer to each of them. docs/porting.md has the same tables with the reasons.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from runtime.command_line import hint_for
from runtime.errors import ConfigError

_LENGTH = "give --epochs, the length of the run"
_DEVICES = "choose GPUs by CUDA_VISIBLE_DEVICES=0,1 and start as many ranks, as in horovodrun -np 2"
_MODEL_LAYERS = "name the model with its layers, as in --model resnet20 or --model resnet50_v2"

_SHARED = {
    "--end-epoch": _LENGTH,
    "--gpus --ctx": _DEVICES,
    "--fp16": "give --dtype float16",
    "--weight-decay": "give --wd",
    "--bn-mom": "leave it out: the momentum of BatchNorm is 0.9, as there",
    "--workspace": "leave it out: no result depends on it",
    "--syncbn": "give --sync-bn",
    "--num-image": "give --num-images",
    "--num-workers": "give --threads, which decode images",
    "--dali-aug": "give --low-resolution 0.2, --blur 0.1 and --gray 0.05, which are of the same "
    "kinds",
    "--dali*": "leave it out: images are decoded on the processors; see --threads",
    "--local-rank --nnodes --node-rank --nproc-per-node --master-*": "torchrun's; start ranks with "
    "horovodrun -np 8 -H localhost:8",
    "--output --ckpt-dir --prefix": "give --models-root, the folder of model, checkpoints, logs",
    "--log-file --log-dir": "leave it out: each rank writes logs/rank-0000.log in --models-root",
    "--clip-gradient": "not ported, as it cuts each number by itself; --clip-norm X shortens the "
    "whole gradient",
    "--wandb-* --using-wandb --suffix-run-name --save-artifacts --monitor": "leave it out: "
    "metrics.jsonl and scalars/ in --models-root have the numbers",
}

_TRAIN = {
    "--mom": "give --momentum",
    "--num-epoch --num-epochs": _LENGTH,
    "--backbone-lr": "give --lr, the learning rate of the backbone",
    "--memory-bank-lr": "give --center-lr, the learning rate of the class centers",
    "--memonger": "give --recompute, which computes feature maps twice and keeps few of them",
    "--images-filter": "give --min-images, of an identity that is kept",
    "--kv-store --kvstore": "train.py sends gradients by Horovod; classify.py has --kv-store",
    "--loss-s": "give --scale",
    "--loss-m[123] --margin-list": "give the three margins as --margins m1,m2,m3",
    "--num-layers --net-name": "name the network with its layers, as in --network r100",
    "--net-se": "name the network with -se, as in --network r100-se",
    "--net-act --net-unit --net-input": "leave it out: PReLU, version 3, version 1, as there",
    "--image-size": "leave it out: the record set's file property has the size of its images",
    "--cutoff": "give --cutout, the side of the square as a share of the image",
    "--color-jittering": "give --color-jitter, from 0 to 1",
    "--rand-mirror": "leave it out: half of the images are mirrored, as there",
    "--sample-rate": "give --sample-ratio",
    "--interclass-filtering-threshold": "give --filter-threshold, where 1 is off",
    "--warmup-epoch": "give --warmup, in updates",
    "--gradient-acc": "give --accumulate, and the whole batch of an update as --batch-size",
    "--save-all-states --ckpt": "leave it out: checkpoints hold all; see --save-interval, --keep",
    "--per-batch-size": "give --batch-size, which is that of a rank",
    "--pretrained-epoch": "give --pretrained PREFIX,EPOCH",
    "configs/*": "a Python file is not read; give --rec DIR with options, or --config config.json",
}

_CLASSIFY = {
    "--gpu": _DEVICES,
    "--memonger": "not ported to classifiers; lower --batch-size",
    "--data-type": "give --dataset cifar10_grouping_resnet, the recipe of train_resnet.py",
    "--depth --num-layers": _MODEL_LAYERS,
    "--lr-mode": "give --lr-schedule",
    "--lr-decay": "give --lr-factor",
    "--lr-decay-epoch --lr-step-epochs": "give --lr-steps, in epochs",
    "--lr-factor-epoch": "leave it out: --lr-factor counts after every epoch, or at --lr-steps",
    "--warmup-lr --warmup-strategy": "leave it out: --warmup-epochs rise from 0 in equal steps",
    "--mode": "leave it out: there is one mode, that of Gluon",
    "--use-rec --rec-train-idx --rec-val-idx": "leave it out: --rec-train and --rec-val are enough",
    "--train-dataset --val-dataset": "give the whole paths as --rec-train and --rec-val",
    "--data-nthreads": "give --threads",
    "--data-shape --image-shape": "give --image-size",
    "--use-pretrained": "not ported: networks start with random weights",
    "--no-cuda": "set CUDA_VISIBLE_DEVICES= before the command",
    "--eval-epoch": "leave it out: --eval-frequency 1 is the default",
    "--log-interval --disp-batches": "give --frequent",
    "--num-proc --hosts": "start ranks with horovodrun -np 16 -H host1:8,host2:8",
    "--communication": "give horovodrun --gloo or --mpi",
    "--savemodel --save-model-prefix --model-prefix": "leave it out: it is saved in --models-root",
    "--retrain --model-load-epoch --load-epoch": "give --resume PATH, or nothing: a run goes on "
    "from its newest checkpoint",
    "--hostname": "give python -m parallel.launch its -H FILE",
    "--cluster[0-9]-* --data-proportion": "give python -m parallel.launch its --data-sharding FILE,"
    " and --data-allocator 1 here",
    "--aug-level --pad-size --rgb-* --random-* --max-random-*": "leave it out: the recipe of the "
    "set has its random changes",
    "--list-dir": "leave it out: nothing there reads it",
    "--data-train* --data-val*": "give --rec-train and --rec-val, whose .idx files are found",
    "--save-period": "give --save-frequency",
    "--optimizer --loss": "leave it out: they are SGD, with --momentum, and the cross-entropy",
    "--gc-*": "not ported; --fp16-allreduce halves what Horovod sends",
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

_MODELS = {
    "resnet": _MODEL_LAYERS,
    "resnet-28-small": "give resnet20, which is pre-activated, for images of 28 or 32 pixels",
    "inception-bn inception-bn-full inception-v3": "give inceptionv3",
    "googlenet": "not ported; give inceptionv3",
    "vgg": "name it with its layers, as in vgg16_bn, or VGG16 for CIFAR",
    "lenet": "give LeNet",
    "lenet-stn mlp": "not ported; give LeNet",
    "small": "it is in no file of the original; give inception-bn-28-small",
    "3conv cross": "not ported; give resnet20 or inception-bn-28-small",
    "unet": "not ported: it does not classify",
    "resnet*_v1?*": "of GluonCV, not ported; give resnet50_v1 or another of Gluon's model zoo",
    "VGG(*": "give the name in the parentheses, as in VGG19",
    "ShuffleNet* EfficientNet*": "not ported; give MobileNetV2",
    "GoogLeNet* PNASNet*": "not ported; give DenseNet121",
    "*()": "leave the parentheses out",
}

_NETWORKS = {
    "r122": "the original has no units for 122 layers and stops; give r124 or r100",
    "rx50 rx101": "of a module, fresnext, that the original lacks; give r50 or r100",
    "r2060": "not ported; the deepest here is r200",
    "iresnet* resnet*": "give r with the number of layers, as in r50",
    "mobilefacenet*": "give mbf",
    "mbf_large": "not ported; give mbf",
    "y1": "give mbf, with --embedding-size 128 as there",
    "vit_*": "there are no vision transformers here; give r50 or r100",
}


def _each(rows: Mapping[str, str]) -> Mapping[str, str]:
    """Return the answers by single names."""
    return {name: answer for names, answer in rows.items() for name in names.split()}


TRAIN, CLASSIFY = _each({**_SHARED, **_TRAIN}), _each({**_SHARED, **_CLASSIFY})
MODELS = _each(_MODELS)
"""Models of Grouping-SGD, of MXNet's examples, of GluonCV and of the CIFAR-10 tutorial that have
another name here, or none."""
NETWORKS = _each(_NETWORKS)
"""Backbones of the originals that do not exist here; others have their original's name."""


def check_name(option: str, name: str, known: Collection[str], hints: Mapping[str, str]) -> None:
    """Raise ``ConfigError`` for an original's network that is not ``known`` here."""
    hint = None if name in known else hint_for(name, hints)
    if hint is not None:
        raise ConfigError(f"{option} {name!r} does not exist here: {hint}")
