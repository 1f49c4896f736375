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
from parallel.parameter_server.assignment import SCHEMES
from runtime import command_line, environment, options
from runtime.errors import ConfigError
from runtime.options import COUNT, POSITIVE, POSITIVE_COUNT, Options, Range, name, number
from training.config.options import (
    AGAIN,
    ANYWAY,
    AUTO,
    RIVALS,
    ImageRunOptions,
    ImageScheduleOptions,
    OptimizerOptions,
    PlanOptions,
    default_folder,
    with_schedule,
)
from training.config.presets import RECIPES

SYNONYMS: Mapping[str, str] = {
    "--num-epoch": "--epochs",
    "--num-epochs": "--epochs",
    "--network": "--model",
    "--mom": "--momentum",
    "-r": "--resume",
}
"""Options of the tutorial, of Grouping-SGD and of MXNet's examples that are taken under both names.
"""
HOROVOD = "horovod"
ALONE = frozenset(("local", "device", "nccl", "local_allreduce_cpu", "local_allreduce_device"))
"""MXNet's stores of one process with several GPUs; here each GPU has a rank, and these are
``HOROVOD``."""


@dataclass(frozen=True)
class LossOptions(Options):
    """Loss."""

    label_smoothing: float = number(
        0.0, Range(lambda value: 0 <= value < 1, "must be from 0 to below 1")
    )
    """Share of the target that is spread over all classes, 0 (off) to below 1."""

    mixup: float = number(0.0, COUNT)
    """Mix pairs of images in shares from Beta(X, X); 0 is off, 0.2 is usual."""


@dataclass(frozen=True)
class ExchangeOptions(Options):
    """Exchange of gradients."""

    kv_store: str = name(HOROVOD, (HOROVOD, *SCHEMES))
    """Exchange of gradients: horovod, or over parameter servers dist_sync, dist_async, dist_ssync
    (bounded by --staleness) or dist_gsync (in groups); these under python -m parallel.launch;
    local, device and nccl, MXNet's for one process, are horovod."""

    staleness: Optional[int] = number(None, COUNT)
    """Steps that a worker of dist_ssync may be ahead of the slowest when it begins another; 0 if
    it is left out."""

    data_allocator: int = number(0, Range(lambda value: value in (0, 1), "must be 0 or 1"))
    """Images of each worker: 0 the same number, 1 by the launcher's --data-sharding."""

    rebalance: Optional[int] = number(None, POSITIVE_COUNT)
    """Epochs after which dist_gsync measures all workers and forms new groups and shares."""

    fp16_allreduce: bool = False
    """Send the gradients between the ranks in float16."""

    gradient_predivide_factor: float = number(1.0, POSITIVE)
    """Divide the gradients by this before their sum, and multiply after it."""

    @property
    def bound(self) -> Optional[int]:
        """Steps that a worker may be ahead of the slowest; None if the exchange has no bound."""
        scheme = SCHEMES.get(self.kv_store)
        return (self.staleness or 0) if scheme is not None and scheme.is_bounded else None

    def check(self) -> None:
        """Refuse options that belong to another exchange."""
        scheme = SCHEMES.get(self.kv_store)
        has_groups = scheme is not None and scheme.has_groups
        for option, value, fits, store in (
            ("--staleness", self.staleness, self.bound is not None, "dist_ssync"),
            ("--rebalance", self.rebalance, has_groups, "dist_gsync"),
            ("--data-allocator", self.data_allocator or None, scheme is not None, "dist_sync"),
        ):
            if value is not None and not fits:
                raise ConfigError(
                    f"{option} {value} goes with --kv-store {store}, not with {self.kv_store}; "
                    "leave it out"
                )


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
        return options.as_json({**options.values(self), "resume": self.run.checkpoint})

    def trains_again(self, before: Mapping[str, Any]) -> bool:
        """Return True for the tutorial's ``--resume --lr X``, if the options before had another X.

        So the same command, typed again or by ``--restarts``, goes on with what it has begun.
        """
        lr = self.schedule.lr
        return self.run.resume in (AGAIN, ANYWAY) and before.get("lr", lr) != lr


def parse(argv: Optional[Sequence[str]] = None) -> ImageConfig:
    """Parse the command line of ``classify.py``; see ``command_line.parse``."""
    return command_line.parse(
        ImageConfig,
        resolve,
        check,
        argv,
        description="Train an image classifier, data-parallel, on MXNet and Horovod.",
        epilog=f"recipes: {', '.join(RECIPES)}",
        foreign="options of classify.py",
        synonyms=SYNONYMS,
    )


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
    options.check_name("model", found["model"], classifiers.names(), "models")
    if given.get("resume") == AUTO and "lr" in given:
        found["resume"] = AGAIN
    if found.get("kv_store") in ALONE:
        found["kv_store"] = HOROVOD
    if not found.get("models_root"):
        found["models_root"] = default_folder((dataset,), found["model"])
    return options.compose(ImageConfig, found)


def check(config: ImageConfig) -> None:
    """Refuse an exchange of gradients that this process was not started for."""
    chosen, own = config.exchange, assignment.find(environment.variables())
    if chosen.kv_store != HOROVOD:
        if config.dry_run.dry_run:
            raise ConfigError(
                f"--dry-run plans runs on Horovod, not --kv-store {chosen.kv_store}: what workers "
                "wait for servers depends on their speeds; leave out --kv-store"
            )
        if own is None or own.role != assignment.WORKER:
            raise ConfigError(
                f"--kv-store {chosen.kv_store} needs servers and a scheduler: start it with "
                "python -m parallel.launch ... -- python classify.py ..."
            )
        _check_worker(config, own)
    elif own is not None:
        raise ConfigError(
            "parallel.launch has started this process next to parameter servers, but --kv-store is "
            f"{HOROVOD}; give one of {', '.join(SCHEMES)}, or start it with horovodrun"
        )


def _check_worker(config: ImageConfig, own: assignment.Assignment) -> None:
    """Refuse what the job of this worker was not started for, and what only Horovod can do."""
    chosen, scheme = config.exchange, SCHEMES[config.exchange.kv_store]
    if scheme.has_groups and not own.groups:
        raise ConfigError(
            f"--kv-store {chosen.kv_store} needs groups: give the launcher --groups FILE, with the "
            "addresses of a group in each line"
        )
    if chosen.data_allocator and not own.shares:
        raise ConfigError(
            f"--data-allocator {chosen.data_allocator} needs the shares of the workers: give the "
            "launcher --data-sharding FILE, or leave it out for equal shares"
        )
    if own.tolerates and (scheme.is_synchronous or scheme.has_groups):
        raise ConfigError(
            f"--kv-store {chosen.kv_store} cannot continue without a worker that others wait for; "
            "leave out the launcher's --tolerate-workers, or use dist_async or dist_ssync"
        )
    alone, predivides = not scheme.has_groups, chosen.gradient_predivide_factor != 1
    of_horovod = {
        "--sync-bn": config.classifier.sync_bn,
        "--dtype float16": config.classifier.dtype == "float16",
        "--clip-norm": config.optimizer.clip_norm is not None,
        "--fp16-allreduce": alone and chosen.fp16_allreduce,
        "--gradient-predivide-factor": alone and predivides,
    }
    for option, is_given in of_horovod.items():
        if is_given:
            raise ConfigError(
                f"{option} goes with --kv-store {HOROVOD}, not with {chosen.kv_store}: its servers "
                "add float32 gradients and know neither their whole norm nor the statistics of "
                "BatchNorm; leave it out"
            )
