"""The configuration of ``train.py``, composed of the options of its parts.

Values resolve in one order: default, preset of ``--dataset``, file of ``--config``, command line.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Optional

from typing_extensions import override

import backbones
from backbones.options import BackboneOptions, split_checkpoint
from data.options import FaceDataOptions, check_same_dataset
from partial_fc.options import COMBINED, LOSSES, HeadOptions
from partial_fc.options import check_given as check_given_head
from partial_fc.shard import STATES
from runtime import command_line, options
from runtime.errors import ConfigError
from runtime.options import COUNT, Options, name, number
from training.config import presets
from training.config.options import (
    RIVALS,
    DryRunOptions,
    FaceRunOptions,
    FaceScheduleOptions,
    OptimizerOptions,
    default_folder,
    with_schedule,
)

# Pairs that exclude each other: the first, where it is given, replaces a preset's second.
_RIVALS = (("max_update", "epochs"), ("epochs", "max_update"), ("loss", "margins"), *RIVALS)


@dataclass(frozen=True)
class FaceOptimizerOptions(OptimizerOptions):
    """Optimizer of the backbone and of the class centers."""

    optimizer: str = name("sgd", STATES)
    """Optimizer of backbone and centers: {names}; any but sgd needs --lr and --wd of its own."""


@dataclass(frozen=True)
class TeacherOptions(Options):
    """Distillation: a trained network as a teacher."""

    teacher: Optional[str] = None
    """Checkpoint PREFIX,EPOCH of a trained network, of which the embeddings of the same images are
    learned beside the classes; it is not trained itself."""

    teacher_weight: float = number(1.0, COUNT)
    """Weight of the teacher in the loss: times the mean of 1 - cosine between its embeddings and
    those that are trained; 0 measures it only."""

    @property
    def checkpoint(self) -> Optional[tuple[str, int]]:
        """Prefix and epoch of ``--teacher``."""
        return None if self.teacher is None else split_checkpoint("teacher", self.teacher)

    @override
    def check(self) -> None:
        if self.teacher is not None:
            split_checkpoint("teacher", self.teacher)
        elif self.teacher_weight != 1.0:
            raise ConfigError(
                f"--teacher-weight {self.teacher_weight:g} has no effect without --teacher "
                "PREFIX,EPOCH; give both or none"
            )


@dataclass(frozen=True)
class FaceConfig:
    """All choices of one face-recognition run."""

    data: FaceDataOptions
    backbone: BackboneOptions
    head: HeadOptions
    teacher: TeacherOptions
    optimizer: FaceOptimizerOptions
    schedule: FaceScheduleOptions
    run: FaceRunOptions
    dry_run: DryRunOptions

    IDENTITY: ClassVar[Sequence[str]] = (
        *("network", "net_output", "embedding_size", "loss", "optimizer", "dtype", "freeze"),
    )
    """Options that a run that goes on from a checkpoint may not change."""

    def trains_again(self, before: Mapping[str, Any]) -> bool:
        """Return False: a finished run is longer, or starts a new one with --pretrained."""
        return False

    def values(self) -> dict[str, Any]:
        """The resolved options as JSON has them, with what follows from others written out."""
        return options.as_json(
            {
                **options.values(self),
                "net_output": self.backbone.other_output,
                "loss": self.head.identity,
                "margins": self.head.applied_margins,
                "center_lr": self.head.center_lr or self.schedule.lr,
                "resume": self.run.checkpoint,
            }
        )

    @property
    def center_lr_factor(self) -> float:
        """The learning rate of the class centers, in units of the backbone's."""
        return (self.head.center_lr or self.schedule.lr) / self.schedule.lr


def parse(argv: Optional[Sequence[str]] = None) -> FaceConfig:
    """Parse the command line of ``train.py``; see ``command_line.parse``."""
    return command_line.parse(
        FaceConfig,
        resolve,
        check,
        argv,
        description="Train a face recognition network with Partial FC on MXNet and Horovod.",
        epilog=f"presets: {', '.join(presets.PRESETS)}",
        foreign="options of train.py",
    )


def resolve(given: Mapping[str, Any], saved: Mapping[str, Any] = {}) -> FaceConfig:
    """Compose a configuration of ``given`` values, a ``saved`` file, preset and defaults."""
    saved = _as_given(saved)
    check_same_dataset(given, saved)
    check_given_head(given)
    _check_recipe_of_optimizer(given, saved)
    dataset = given.get("dataset", saved.get("dataset"))
    preset = presets.OWN_DATA
    if dataset is not None:
        options.check_name("dataset", dataset, presets.PRESETS)
        preset = presets.PRESETS[dataset]
    chosen = with_schedule(given)
    if {"loss", "margins"}.isdisjoint(saved) and "margins" not in given:
        # InsightFace's cosface has another margin than that of the paper; its own command lines
        # give the name as well.
        if chosen.get("loss") == preset.get("loss"):
            chosen.pop("loss", None)
    found = options.overlay((preset, saved, chosen), _RIVALS)
    network = found.get("network", BackboneOptions.network)
    options.check_name("network", network, backbones.names(), "networks")
    if not found.get("models_root"):
        data = given.get("rec", saved.get("rec")) or (dataset or "data",)
        found["models_root"] = default_folder(data, network)
    return options.compose(FaceConfig, found)


def _as_given(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Remove from ``values`` what follows from other options, so that it follows them again."""
    given = dict(saved)
    if given.get("loss") == COMBINED:
        del given["loss"]
    elif given.get("loss") in LOSSES and LOSSES[given["loss"]].margins == given.get("margins"):
        given.pop("margins", None)
    if given.get("center_lr") == given.get("lr"):
        given.pop("center_lr", None)
    return given


def _check_recipe_of_optimizer(given: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Refuse another optimizer with the defaults and presets for SGD, or with ``--momentum``."""
    optimizer = given.get("optimizer", saved.get("optimizer", "sgd"))
    if optimizer == "sgd" or optimizer not in STATES:
        return
    chosen = {**saved, **given} if saved.get("optimizer") == optimizer else given
    if "lr" not in chosen or "wd" not in chosen:
        raise ConfigError(
            f"--optimizer {optimizer} needs --lr and --wd of its own, as in --lr 1e-3 and --wd 0 "
            "for adam, 0.05 for adamw: defaults and presets are for sgd"
        )
    if "momentum" in given:
        raise ConfigError(
            f"--momentum {given['momentum']:g} has no effect with --optimizer {optimizer}; leave "
            "it out"
        )


def check(config: FaceConfig) -> None:
    """Refuse a run whose data is missing; whether the device has ``--dtype`` is checked later."""
    data, parts = config.data, config.backbone.accumulate
    if data.batch_size % parts:
        raise ConfigError(
            f"--accumulate {parts} does not divide the {data.batch_size} images of --batch-size "
            "into equal parts; choose one that divides the other"
        )
    if config.run.best is not None and config.run.best not in data.val_targets:
        known = ", ".join(data.val_targets) or "none are given"
        raise ConfigError(
            f"--best {config.run.best} is no set of --val-targets ({known}); name one of these"
        )
    if config.head.starts_from_means and (config.backbone.pretrained is None or data.debug):
        raise ConfigError(
            "--pretrained-centers without a folder takes the means of the embeddings that the "
            "backbone of --pretrained has of a record set; give --pretrained PREFIX,EPOCH, without "
            "--debug"
        )
    if data.dataset is None and not data.rec:
        raise ConfigError(
            f"no data: give --dataset NAME ({', '.join(presets.PRESETS)}) or --rec DIR; "
            "--dataset synthetic needs no files"
        )
    if config.dry_run.dry_run:
        if data.num_classes is None:
            raise ConfigError(
                "--dry-run reads no data: add --num-classes to say how many identities it has"
            )
        formats = (config.head.head_dtype, config.backbone.dtype)
        if config.dry_run.gpu and ("bfloat16" in formats or config.head.center_store is not None):
            raise ConfigError(
                "--gpu plans for a GPU, where neither bfloat16 nor --center-store is; leave one out"
            )
    elif data.dataset == "synthetic":
        if (data.num_images or 0) < (data.num_classes or 0):
            raise ConfigError(
                f"--num-images {data.num_images} does not give each of {data.num_classes} "
                "identities an image; raise it, or lower --num-classes"
            )
    elif not (data.debug and data.num_classes is not None):
        for folder in data.rec:
            if not os.path.exists(folder):
                raise ConfigError(
                    f"--rec {folder} does not exist; give the folder that holds train.rec, or add "
                    "--debug to train without data"
                )
