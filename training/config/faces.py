"""One run, described in one place.

Everything a run can be told stands in ``TrainConfig``: the field is the option, the literal under
it is the option's help, its default is the option's default. ``runtime.options`` makes the parser
from it, so the three cannot drift apart. Values resolve in one order: field default, then the
preset of ``--dataset``, then the command line.

This module imports neither MXNet nor Horovod nor OpenCV: ``--help`` and a wrong option answer at
once.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

import backbones
from partial_fc.states import STATES
from runtime import options
from runtime.errors import ConfigError
from runtime.files import write_atomically
from runtime.options import REPEATABLE
from training import config_checks, run_folder
from training.checks import (
    COUNT,
    POSITIVE,
    POSITIVE_COUNT,
    SHARED_RANGES,
    Range,
    check_name,
    check_ranges,
)
from training.config import presets
from training.schedules import SCHEDULES

Margins = tuple[float, float, float]

# cos(m1 * angle + m2) - m3 on the target. ArcFace: Deng et al. 2019, arXiv:1801.07698. CosFace:
# Wang et al. 2018, arXiv:1801.09414. Its 0.35 is also InsightFace's first value; their Partial FC
# recipes use 0.4 (--margins 1,0,0.4), and so do the Glint360K presets.
# AdaFace (Kim et al. 2022, arXiv:2204.00964) and CurricularFace (Huang et al. 2020,
# arXiv:2004.00288) adapt theirs while training and are no such form.
LOSSES: dict[str, Optional[Margins]] = {
    "arcface": (1.0, 0.5, 0.0),
    "cosface": (1.0, 0.0, 0.35),
    "softmax": (1.0, 0.0, 0.0),
    "adaface": None,
    "curricularface": None,
}
# Weight decay that suits SGD outweighs the gradients when Adam normalizes their sum.
_ADAM_RECIPES = {"adam": "--lr 1e-3 --wd 0", "adamw": "--lr 1e-3 --wd 0.05"}
DTYPES = ("float32", "float16")
HEAD_DTYPES = ("float32", "bfloat16")
ON_NAN = ("stop", "skip")
# What a run that goes on from a checkpoint may not change.
IDENTITY = ("network", "embedding_size", "loss", "optimizer", "dtype")


@dataclass(frozen=True)
class TrainConfig:
    """All choices of one face-recognition run; same names as the options of ``train.py``."""

    dataset: Optional[str] = None
    """Preset: data set and the recipe that belongs to it; every value of it can be overridden."""

    rec: tuple[str, ...] = dataclasses.field(default=(), metadata=REPEATABLE)
    """Folder of a record set (train.rec, property, .bin files), or its .rec; several by several."""

    num_classes: Optional[int] = None
    """Identities of a made-up or drawn set, or for --dry-run; a record set knows its own number."""

    num_images: Optional[int] = None
    """Images of a drawn set, or for --dry-run; a record set knows its own number."""

    val_targets: tuple[str, ...] = ()
    """Verification sets: names of .bin files beside the data, as in lfw,cfp_fp."""

    min_images: int = 0
    """Leave out identities with fewer images than this."""

    color_jitter: float = 0.0
    """Strength of random changes of brightness, contrast and saturation, 0 to 1."""

    cutout: float = 0.0
    """Side of a gray square put on each image, as a fraction of the image, 0 (off) to 1."""

    max_bad_records: int = 100
    """Broken records that are skipped and named in the log; one more stops the run."""

    threads: int = 0
    """Decoding threads of a rank; 0 is the rank's share of the processors."""

    network: str = "r50"
    """Backbone: r18, r34, r50, r100, ... (layers as InsightFace counts them), mbf, or tiny."""

    pretrained: Optional[str] = None
    """Checkpoint PREFIX,EPOCH whose backbone the run starts from, under a new head."""

    embedding_size: int = 512
    """Length of an embedding."""

    dtype: str = "float32"
    """Number format of the backbone: float32, or float16 (GPU only, with dynamic loss scaling)."""

    recompute: bool = False
    """Keep few feature maps of the backbone and compute the others twice: less memory, slower."""

    head_dtype: str = "float32"
    """Number format of the head's products: float32, or bfloat16 (CPUs with AMX only)."""

    loss: str = "cosface"
    """Margin: arcface (1,0.5,0), cosface (1,0,0.35), softmax (1,0,0), adaface or curricularface."""

    margins: Optional[Margins] = None
    """The three numbers of cos(m1 * angle + m2) - m3, as in 1,0.3,0.2; overrides --loss."""

    scale: float = 64.0
    """Factor on the cosines before the softmax."""

    filter_threshold: float = 1.0
    """Leave out negatives more similar than this cosine, above 0 to 1 (off): wrong labels."""

    sample_ratio: float = 1.0
    """Share of the class centers that take part in an update, above 0 to 1; positives always do."""

    batch_size: int = 64
    """Images per rank and update."""

    lr: float = 0.1
    """Learning rate of the backbone after warm-up."""

    center_lr: Optional[float] = None
    """Learning rate of the class centers after warm-up; that of --lr unless given."""

    optimizer: str = "sgd"
    """Of backbone and centers: sgd, adam or adamw; the last two need --lr and --wd of their own."""

    momentum: float = 0.9
    """Momentum of SGD, for backbone and centers."""

    wd: float = 5e-4
    """Weight decay, for backbone (not biases, not BatchNorm) and centers."""

    lr_schedule: str = "poly"
    """Fall of the learning rate: step (a tenth at each of --lr-steps), poly (power 2), cosine."""

    lr_steps: tuple[int, ...] = ()
    """Updates at which the step schedule falls, as in 10000,16000."""

    warmup: int = 0
    """Updates of linear warm-up."""

    max_update: Optional[int] = None
    """Length of the run in updates; instead of --epochs."""

    epochs: Optional[int] = None
    """Length of the run in epochs; instead of --max-update."""

    frequent: int = 20
    """Updates between log lines."""

    verbose: int = 2000
    """Updates between verifications."""

    save_interval: int = 2000
    """Updates between saves of the model and checkpoints; 0 saves at the end alone."""

    keep: int = 2
    """Checkpoints that stay, the newest ones; 0 writes none."""

    resume: str = "auto"
    """Go on from the newest checkpoint in --models-root (auto), from none (never), or from PATH."""

    on_nan: str = "stop"
    """At a loss or gradient that is not finite: stop, or skip that update."""

    stall_timeout: int = 600
    """Seconds without progress in an update that end the run; six times that between updates."""

    models_root: str = ""
    """Folder for the model, checkpoints, logs and metrics; ./models/DATA-NETWORK unless given."""

    seed: int = 1
    """Seed of initial values, shuffling, augmentation and negatives."""

    debug: bool = False
    """Train on batches made in memory: shows whether input is the bottleneck."""

    dry_run: bool = False
    """Print shards, memory and bytes per collective for --world-size ranks, and stop."""

    world_size: Optional[int] = None
    """Ranks to plan for with --dry-run; 1 unless given."""

    @property
    def head_margins(self) -> Optional[Margins]:
        """The margins ``(m1, m2, m3)`` that the head applies; None where the loss adapts them."""
        return LOSSES[self.loss] if self.margins is None else self.margins

    @property
    def head_lr(self) -> float:
        """The learning rate of the class centers after warm-up."""
        return self.lr if self.center_lr is None else self.center_lr

    @property
    def pretrained_checkpoint(self) -> Optional[tuple[str, int]]:
        """Prefix and epoch of ``--pretrained``."""
        if self.pretrained is None:
            return None
        prefix, _, epoch = self.pretrained.rpartition(",")
        return prefix, int(epoch)

    def total_updates(self, updates_per_epoch: int) -> int:
        """The length of the run in updates."""
        if self.max_update is not None:
            return self.max_update
        assert self.epochs is not None, "check() lets no run without a length pass"
        return self.epochs * updates_per_epoch


def resolve(given: Mapping[str, Any]) -> TrainConfig:
    """Lay the given values over the preset's, and those over the defaults.

    Raises:
        ConfigError: The preset does not exist, or two of the given values exclude each other.
    """
    if "margins" in given and LOSSES.get(given.get("loss", ""), given["margins"]) is None:
        raise ConfigError(
            f"--margins mean nothing to --loss {given['loss']}, which adapts its own; leave one out"
        )
    _check_recipe_of_optimizer(given)
    recipe = presets.find(given["dataset"]) if "dataset" in given else presets.OWN_DATA
    values = dict(recipe)
    for chosen, rival in (("max_update", "epochs"), ("epochs", "max_update"), ("loss", "margins")):
        if chosen in given:
            values.pop(rival, None)
    values.update(given)
    if "margins" in values:
        values["loss"] = "combined"
    if not values.get("models_root"):
        data = given.get("rec") or (given.get("dataset", "data"),)
        values["models_root"] = run_folder.default(data, values.get("network", TrainConfig.network))
    return TrainConfig(**values)


def _check_recipe_of_optimizer(given: Mapping[str, Any]) -> None:
    """Refuse to run Adam with what defaults and presets hold for SGD, or to ignore an option."""
    optimizer = given.get("optimizer", "sgd")
    if optimizer not in _ADAM_RECIPES:
        return
    if "lr" not in given or "wd" not in given:
        raise ConfigError(
            f"--optimizer {optimizer} needs --lr and --wd of its own, as in "
            f"{_ADAM_RECIPES[optimizer]}: defaults and presets are for sgd"
        )
    if "momentum" in given:
        raise ConfigError(
            f"--momentum {given['momentum']:g} is of sgd and means nothing to "
            f"--optimizer {optimizer}; leave it out"
        )


def values(config: TrainConfig) -> dict[str, Any]:
    """The resolved configuration as JSON has it."""
    resolved = dataclasses.asdict(config)
    resolved.update(margins=config.head_margins, center_lr=config.head_lr)
    plain: dict[str, Any] = json.loads(json.dumps(resolved))
    return plain


def write(values: Mapping[str, Any], path: Union[str, Path]) -> None:
    """Write values as JSON, whole or not at all.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        write_atomically(Path(path), (json.dumps(values, indent=2) + "\n").encode())
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error.strerror}); make room or give another --models-root"
        ) from None


_RANGES = {
    **SHARED_RANGES,
    "min_images": Range(COUNT.holds, "must not be negative; 0 keeps every identity"),
    "color_jitter": Range(lambda value: 0 <= value <= 1, "must be from 0 (off) to 1"),
    "cutout": Range(lambda value: 0 <= value <= 1, "must be from 0 (off) to 1"),
    "max_bad_records": Range(COUNT.holds, "must not be negative; 0 stops at the first bad record"),
    "embedding_size": Range(POSITIVE_COUNT.holds, "must be at least 1; 512 is usual"),
    "scale": Range(POSITIVE.holds, "must be above 0; 64 is usual"),
    "filter_threshold": Range(
        lambda value: 0 < value <= 1, "must be above 0 and at most 1; 1 turns the filter off"
    ),
    "sample_ratio": Range(
        lambda value: 0 < value <= 1,
        "must be above 0 and at most 1; 1 uses all class centers, 0.1 a tenth of them",
    ),
    "batch_size": Range(POSITIVE_COUNT.holds, "must be at least 1 image per rank"),
    "lr": Range(POSITIVE.holds, "must be above 0; 0.1 is usual for a global batch of 512"),
    "center_lr": Range(POSITIVE.holds, "must be above 0; leave it out to follow --lr"),
    "warmup": Range(COUNT.holds, "must not be negative; 0 turns warm-up off"),
    "max_update": POSITIVE_COUNT,
    "verbose": POSITIVE_COUNT,
    "save_interval": Range(COUNT.holds, "must not be negative; 0 saves at the end alone"),
    "world_size": POSITIVE_COUNT,
}


def check(config: TrainConfig) -> None:
    """Refuse a configuration that cannot run.

    Whether the device can compute in ``config.dtype`` is not known here: the program asks it.

    Raises:
        ConfigError: With the option, its value, the reason and the remedy.
    """
    check_ranges(config, _RANGES)
    check_name("loss", config.loss, LOSSES if config.margins is None else (*LOSSES, "combined"))
    check_name("dtype", config.dtype, DTYPES)
    check_name("head-dtype", config.head_dtype, HEAD_DTYPES)
    check_name("on-nan", config.on_nan, ON_NAN)
    check_name("optimizer", config.optimizer, STATES)
    check_name("lr-schedule", config.lr_schedule, SCHEDULES)
    backbones.check(config.network)
    config_checks.pretrained(config.pretrained)
    config_checks.margins(config.head_margins)
    config_checks.schedule(config)
    config_checks.world_size(config)
    config_checks.targets(config)
    config_checks.data(config)


_PROGRAM = options.Program(
    TrainConfig,
    description="Train a face recognition network with Partial FC on MXNet and Horovod.",
    epilog=f"presets: {', '.join(presets.PRESETS)}",
    resolve=resolve,
    check=check,
)


def parse(argv: Optional[Sequence[str]] = None) -> TrainConfig:
    """Understand the command line of ``train.py``; see ``options.parse``."""
    return options.parse(_PROGRAM, argv)
