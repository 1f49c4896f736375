"""One classification run, described in one place.

As ``training.config.faces`` does for faces: everything a run can be told stands in
``ClassifyConfig``. Values resolve in one order: field default, then the recipe of ``--dataset``,
then the command line.

This module imports neither MXNet nor Horovod nor OpenCV: ``--help`` and a wrong option answer at
once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Optional

from backbones import classifiers
from parallel.parameter_server import place
from runtime import options
from runtime.errors import ConfigError
from training import run_folder
from training.checks import (
    COUNT,
    POSITIVE,
    POSITIVE_COUNT,
    SHARED_RANGES,
    Range,
    check_name,
    check_ranges,
    check_steps,
)
from training.config import exchange as store_config
from training.config.exchange import HOROVOD
from training.config.faces import DTYPES
from training.schedules import SCHEDULES

# The MXNet and Horovod examples for MNIST and ImageNet, and the Horovod CIFAR-10 tutorial. The
# steps for ImageNet are those of Goyal et al. 2017, arXiv:1706.02677, section 5.1. The example for
# MNIST has 0.01, which three epochs are too few for: it ends at 0.989 where 0.05 ends at 0.992.
RECIPES: Mapping[str, Mapping[str, Any]] = {
    "mnist": {
        "model": "LeNet",
        "batch_size": 64,
        "lr": 0.05,
        "wd": 0.0,
        "epochs": 3,
        "warmup_epochs": 0.5,
    },
    "cifar10": {"model": "ResNet18", "batch_size": 128, "lr": 0.1, "wd": 5e-4, "epochs": 200},
    "imagenet": {
        "model": "resnet50_v1",
        "batch_size": 128,
        "lr": 0.05,
        "wd": 1e-4,
        "epochs": 90,
        "lr_schedule": "step",
        "lr_steps": (30, 60, 80),
        "warmup_epochs": 5.0,
        "image_size": 224,
    },
    "synthetic": {
        "model": "LeNet",
        "batch_size": 64,
        "lr": 0.01,
        "epochs": 3,
        "num_classes": 10,
        "num_images": 10_000,
        "image_size": 32,
    },
}


@dataclass(frozen=True)
class ClassifyConfig:
    """All choices of one classification run; same names as the options of ``classify.py``."""

    dataset: str = ""
    """Data set and the recipe that belongs to it: mnist, cifar10, imagenet or synthetic."""

    data_dir: Optional[str] = None
    """Folder of the data: IDX files, CIFAR-10 batches, or train and val with a folder per class."""

    rec_train: Optional[str] = None
    """Record file (.rec) of training pictures, for imagenet; goes with --rec-val."""

    rec_val: Optional[str] = None
    """Record file (.rec) of validation pictures, for imagenet; goes with --rec-train."""

    num_classes: Optional[int] = None
    """Classes of the synthetic set."""

    num_images: Optional[int] = None
    """Training pictures of the synthetic set; a fifth as many are drawn for validation."""

    image_size: Optional[int] = None
    """Height and width of the pictures, for imagenet and synthetic."""

    threads: int = 0
    """Threads of a rank that make batches; 0 is the rank's share of the processors."""

    model: str = ""
    """Classifier: LeNet, one of the CIFAR-10 models, or any name of Gluon's model zoo."""

    last_gamma: bool = False
    """Begin with every residual unit as the identity: the gamma of its last BatchNorm is 0."""

    dtype: str = "float32"
    """Number format of the network: float32, or float16 (GPU only, with dynamic loss scaling)."""

    batch_size: int = 128
    """Pictures per rank and update."""

    epochs: int = 90
    """Length of the run in epochs."""

    lr: float = 0.1
    """Learning rate after warm-up for one rank; multiplied by the ranks that make an update."""

    no_lr_scaling: bool = False
    """Take --lr as it is, whatever the number of ranks."""

    warmup_epochs: float = 0.0
    """Epochs of linear warm-up."""

    lr_schedule: str = "cosine"
    """Fall of the learning rate: step (a tenth at each of --lr-steps), poly (power 2), cosine."""

    lr_steps: tuple[int, ...] = ()
    """Epochs at which the step schedule falls, as in 30,60,80."""

    momentum: float = 0.9
    """Momentum of SGD."""

    wd: float = 1e-4
    """Weight decay (not of biases, not of BatchNorm)."""

    label_smoothing: float = 0.0
    """Share of the target that is spread over all classes, 0 (off) to below 1."""

    mixup: float = 0.0
    """Mix pairs of pictures in shares from Beta(X, X); 0 is off, 0.2 is usual."""

    kv_store: str = HOROVOD
    """Exchange of gradients: horovod, or over parameter servers dist_sync, dist_async, dist_ssync
    (bounded by --staleness) or dist_gsync (in groups); these under python -m parallel.launch."""

    staleness: Optional[int] = None
    """Steps that a worker of dist_ssync may be ahead of the slowest when it begins another."""

    data_allocator: int = 0
    """Pictures of each worker: 0 as many for each, 1 by the launcher's --data-sharding."""

    rebalance: Optional[int] = None
    """Epochs after which dist_gsync measures all workers and makes groups and shares anew."""

    num_examples: Optional[int] = None
    """Train on the first so many pictures of each epoch's order."""

    fp16_allreduce: bool = False
    """Send the gradients between the ranks in float16."""

    gradient_predivide_factor: float = 1.0
    """Divide the gradients by this before their sum, and multiply after it."""

    eval_frequency: int = 1
    """Epochs between validations."""

    save_frequency: int = 1
    """Epochs between saves of the model and checkpoints; 0 saves at the end alone."""

    keep: int = 2
    """Checkpoints that stay, the newest ones; 0 writes none."""

    resume: str = field(default="auto", metadata={options.BARE: "auto"})
    """Go on from the newest checkpoint in --models-root (auto), from none (never), or from PATH."""

    stall_timeout: int = 600
    """Seconds without progress in an update that end the run; six times that between updates."""

    frequent: int = 20
    """Updates between log lines."""

    models_root: str = ""
    """Folder for the model, checkpoints, logs and metrics; ./models/DATASET-MODEL unless given."""

    seed: int = 1
    """Seed of initial values, shuffling and augmentation."""

    def peak_lr(self, contributors: int) -> float:
        """The learning rate after warm-up (linear scaling: Goyal et al., arXiv:1706.02677).

        Args:
            contributors: ranks whose batches make one update.
        """
        return self.lr if self.no_lr_scaling else self.lr * contributors

    def total_updates(self, updates_per_epoch: int) -> int:
        """The length of the run in updates."""
        return self.epochs * updates_per_epoch


# What a run that goes on from a checkpoint may not change.
IDENTITY = ("model", "dtype")


def values(config: ClassifyConfig) -> dict[str, Any]:
    """The resolved configuration as JSON has it."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return plain


def parse(argv: Optional[Sequence[str]] = None) -> ClassifyConfig:
    """Understand the command line of ``classify.py``; see ``options.parse``."""
    return options.parse(_PROGRAM, argv)


def resolve(given: Mapping[str, Any]) -> ClassifyConfig:
    """Lay the given values over those of the data set's recipe, and these over the defaults.

    Raises:
        ConfigError: The data set is missing or unknown, or an option does not belong to it.
    """
    if "dataset" not in given:
        raise ConfigError(
            f"no data: give --dataset ({', '.join(RECIPES)}); synthetic needs no files"
        )
    check_name("dataset", given["dataset"], RECIPES)
    _check_options_of_dataset(given)
    recipe = dict(RECIPES[given["dataset"]])
    if "lr_schedule" in given:
        recipe.pop("lr_steps", None)
    values = {**recipe, **given}
    if not values.get("models_root"):
        values["models_root"] = run_folder.default((values["dataset"],), values["model"])
    return ClassifyConfig(**values)


_DATASETS_OF_OPTIONS = {
    "data_dir": ("mnist", "cifar10", "imagenet"),
    "rec_train": ("imagenet",),
    "rec_val": ("imagenet",),
    "num_classes": ("synthetic",),
    "num_images": ("synthetic",),
    "image_size": ("imagenet", "synthetic"),
}


def _check_options_of_dataset(given: Mapping[str, Any]) -> None:
    for name, datasets in _DATASETS_OF_OPTIONS.items():
        if name in given and given["dataset"] not in datasets:
            raise ConfigError(
                f"{options.option(name)} {given[name]} goes with --dataset "
                f"{' or '.join(datasets)}, not with {given['dataset']}; leave it out"
            )


_RANGES = {
    **SHARED_RANGES,
    "image_size": Range(lambda value: value >= 8, "must be at least 8 pixels"),
    "batch_size": Range(POSITIVE_COUNT.holds, "must be at least 1 picture per rank"),
    "lr": POSITIVE,
    "warmup_epochs": Range(COUNT.holds, "must not be negative; 0 turns warm-up off"),
    "label_smoothing": Range(
        lambda value: 0 <= value < 1, "must be from 0 (off) to below 1; 0.1 is usual"
    ),
    "mixup": Range(COUNT.holds, "must not be negative; 0 turns it off, 0.2 is usual"),
    "staleness": Range(COUNT.holds, "must not be negative; 0 lets nobody run ahead"),
    "data_allocator": Range(lambda value: value in (0, 1), "must be 0 or 1"),
    "rebalance": POSITIVE_COUNT,
    "num_examples": POSITIVE_COUNT,
    "gradient_predivide_factor": Range(POSITIVE.holds, "must be above 0; 1 turns it off"),
    "eval_frequency": POSITIVE_COUNT,
    "save_frequency": Range(COUNT.holds, "must not be negative; 0 saves at the end alone"),
}


def check(config: ClassifyConfig) -> None:
    """Refuse a configuration that cannot run.

    Raises:
        ConfigError: With the option, its value, the reason and the remedy.
    """
    check_ranges(config, _RANGES)
    check_name("dtype", config.dtype, DTYPES)
    check_name("lr-schedule", config.lr_schedule, SCHEDULES)
    classifiers.check(config.model)
    check_steps(config.lr_schedule, config.lr_steps, "epochs", "30,60,80")
    _check_data(config)
    store_config.check(config, place.find(os.environ))


def _check_data(config: ClassifyConfig) -> None:
    if config.dataset == "synthetic":
        return
    has_records = config.rec_train is not None and config.rec_val is not None
    if has_records and config.data_dir is not None:
        raise ConfigError(
            f"--data-dir {config.data_dir} and --rec-train {config.rec_train} are two sets; leave "
            "one out"
        )
    if not has_records and (config.rec_train is not None or config.rec_val is not None):
        raise ConfigError("--rec-train and --rec-val go together; give both")
    if not has_records and config.data_dir is None:
        records = ", or --rec-train and --rec-val" if config.dataset == "imagenet" else ""
        raise ConfigError(
            f"--dataset {config.dataset} needs its files: give --data-dir{records}; --dataset "
            "synthetic needs none"
        )


_PROGRAM = options.Program(
    ClassifyConfig,
    description="Train an image classifier, data-parallel, on MXNet and Horovod.",
    epilog=f"recipes: {', '.join(RECIPES)}",
    resolve=resolve,
    check=check,
)
