"""The configuration of ``classify.py``, composed of the options of its parts.

Values resolve in one order: default, recipe of ``--dataset``, file of ``--config``, command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Optional

from backbones import classifiers
from backbones.options import ClassifierOptions
from data.options import ImageDataOptions, check_given_images, check_same_dataset
from parallel.parameter_server import assignment
from runtime import command_line, environment, options
from runtime.errors import ConfigError
from runtime.options import COUNT, Options, Range, number
from training.config import exchange, originals
from training.config.exchange import ExchangeOptions
from training.config.presets import RECIPES
from training.config.run import ANYWAY, AUTO, Auto, ImageRunOptions, PlanOptions, default_folder
from training.config.schedule import (
    RIVALS,
    ImageScheduleOptions,
    OptimizerOptions,
    with_schedule,
)


@dataclass(frozen=True)
class LossOptions(Options):
    """Loss."""

    label_smoothing: float = number(
        0.0, Range(lambda value: 0 <= value < 1, "must be from 0 (off) to below 1; 0.1 is usual")
    )
    """Share of the target that is spread over all classes, 0 (off) to below 1."""

    mixup: float = number(0.0, COUNT.saying("must not be negative; 0 turns it off, 0.2 is usual"))
    """Mix pairs of images in shares from Beta(X, X); 0 is off, 0.2 is usual."""


@dataclass(frozen=True)
class ImageConfig:
    """All choices of one classification run."""

    data: ImageDataOptions
    classifier: ClassifierOptions
    loss: LossOptions
    optimizer: OptimizerOptions
    schedule: ImageScheduleOptions
    exchange: ExchangeOptions
    run: ImageRunOptions
    dry_run: PlanOptions

    IDENTITY: ClassVar[Sequence[str]] = ("model", "dtype", "freeze")
    """Options that a run that goes on from a checkpoint may not change."""

    def values(self) -> dict[str, Any]:
        """The resolved options as JSON has them."""
        return options.as_json(options.values(self))

    def trains_again(self, before: Mapping[str, Any]) -> bool:
        """Return True for the tutorial's ``--resume --lr X``, if the options before had another X.

        So the same command, typed again or by ``--restarts``, goes on with what it has begun.
        """
        lr = self.schedule.lr
        resume = self.run.resume
        return isinstance(resume, Auto) and resume.again and before.get("lr", lr) != lr


def parse(argv: Optional[Sequence[str]] = None) -> ImageConfig:
    """Parse the command line of ``classify.py``; see ``command_line.parse``."""
    return command_line.parse(_PROGRAM, argv)


def resolve(given: Mapping[str, Any], saved: Mapping[str, Any] = {}) -> ImageConfig:
    """Compose a configuration of ``given`` values, a ``saved`` file, recipe and defaults."""
    check_same_dataset(given, saved)
    dataset = given.get("dataset", saved.get("dataset"))
    if dataset is None:
        raise ConfigError(
            f"no data: give --dataset ({', '.join(RECIPES)}); synthetic needs no files"
        )
    options.check_name("dataset", dataset, RECIPES)
    check_given_images({**given, "dataset": dataset})
    recipe = {"lr_schedule": "cosine", **RECIPES[dataset]}
    layers = (recipe, saved, with_schedule(given))
    found = options.overlay(layers, (*RIVALS, ("lr_schedule", "lr_steps")))
    originals.check_name("--model", found["model"], classifiers.names(), originals.MODELS)
    if found.get("resume") in (AUTO, ANYWAY):
        again = "resume" in given and "lr" in given
        found["resume"] = Auto(again=again, anyway=found["resume"] == ANYWAY)
    if found.get("kv_store") in exchange.ALONE:
        found["kv_store"] = exchange.HOROVOD
    if not found.get("models_root"):
        found["models_root"] = default_folder((dataset,), found["model"])
    return options.compose(ImageConfig, found)


def check(config: ImageConfig) -> None:
    """Refuse an exchange of gradients that this process was not started for."""
    if config.dry_run.dry_run and config.exchange.kv_store != exchange.HOROVOD:
        raise ConfigError(
            f"--dry-run plans runs on Horovod, not --kv-store {config.exchange.kv_store}: what "
            "workers wait for servers depends on their speeds; leave out --kv-store"
        )
    own = assignment.find(environment.variables())
    exchange.check(config.exchange, config.classifier, config.optimizer, own)


_PROGRAM = command_line.Program(
    ImageConfig,
    description="Train an image classifier, data-parallel, on MXNet and Horovod.",
    epilog=f"recipes: {', '.join(RECIPES)}",
    resolve=resolve,
    check=check,
    foreign=originals.CLASSIFY,
    synonyms=originals.SYNONYMS,
)
