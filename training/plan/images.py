"""The plan of a run of ``classify.py``: memory, collectives and time, before it is queued.

Unlike the plan of faces it opens the data set, which says how many classes and images there are and
of which shape, and makes the network, of which only the graph knows the parameters. Both take a
second. What a network takes beside its parameters is measured (``--calibrate``) or not said: there
are too many classifiers, Gluon's among them, for a table of their sizes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

from training.config.images import ImageConfig
from training.plan import calibration, keys, text
from training.plan.calibration import Calibration, NetworkCost, find
from training.plan.items import (
    COMPUTED,
    FLOAT,
    MEASURED,
    BackboneBytes,
    Duration,
    Item,
    communication,
    total,
)
from training.plan.keys import Cell

JSON_VERSION = 1
"""Of ``--json``; raised whenever a name changes or goes, not when one is added."""


@dataclass(frozen=True)
class ImageSize:
    """What the data set and the network say.

    Attributes:
        classes: of the data set.
        images: of an epoch.
        parameters: bytes of the float32 parameters.
    """

    classes: int
    images: int
    parameters: BackboneBytes


@dataclass(frozen=True)
class ImagePlan:
    """What there is to say about a run; docs/scaling.md has the names of its JSON."""

    config: ImageConfig
    world_size: int
    size: ImageSize
    memory: Optional[list[Item]]
    """None if the network was not measured here."""
    checkpoint: int
    """Bytes of the copy for checkpoints of rank 0."""
    collectives: dict[str, int]
    durations: Optional[list[Duration]]


def describe(config: ImageConfig) -> str:
    """Describe the run of a checked configuration on ``--world-size`` ranks (default 1).

    Raises:
        ConfigError: the network does not take these images; with ``--calibrate``, what is measured
            cannot be run or written.
        DataError: the data is missing or broken.
    """
    # Before MXNet is loaded, for which the threads of this process are set.
    cell = Cell.of(config.dry_run.world_size or 1)
    found = _calibration(config)
    plan = make(config, _look(config), cell, found)
    return as_json(plan) if config.dry_run.json else as_text(plan)


def make(config: ImageConfig, size: ImageSize, cell: Cell, found: Calibration) -> ImagePlan:
    """Plan the run of a data set and a network of this size by what was measured for a cell."""
    world_size = config.dry_run.world_size or 1
    network = find(found.networks, keys.classifier_key(config, cell))
    sizes = _collective_bytes(config, size.parameters)
    rates = find(found.collectives, str(cell))
    durations = None
    if network is not None and (rates is not None or world_size == 1):
        step = network.base_seconds + config.data.batch_size * network.seconds_per_image
        durations = [Duration("backbone", "network and its input", step, MEASURED)]
        if rates is not None:
            durations.append(communication(sizes, world_size, rates, cell))
    # Parameters and momentum.
    copied = size.parameters.all + size.parameters.trained if config.run.keep else 0
    memory = None if network is None else _memory(config, size.parameters, network)
    return ImagePlan(config, world_size, size, memory, copied, sizes, durations)


def as_text(plan: ImagePlan) -> str:
    """The plan for a reader."""
    sections = [_describe_length(plan)]
    if plan.memory is None:
        held = 2 * plan.size.parameters.trained + plan.size.parameters.all
        sections.append(
            [
                "memory of rank 0",
                text.row("parameters and optimizer", held) + f"  {COMPUTED}",
                "  feature maps and libraries: not measured on this host; add --calibrate",
            ]
        )
    else:
        rows = [text.row(item.label, item.num_bytes) + f"  {item.basis}" for item in plan.memory]
        everything = total(plan.memory)
        sections.append(
            [
                "memory of rank 0",
                *rows,
                text.row("everything together", everything),
                text.row("with the copy for checkpoints", everything + plan.checkpoint),
            ]
        )
    collectives = [text.row(*item) for item in plan.collectives.items()]
    sections.append(["bytes per collective and update", *collectives])
    if plan.durations is None:
        sections.append(["time of an update: not measured on this host; add --calibrate"])
    else:
        global_batch = plan.config.data.batch_size * plan.world_size
        sections.append(text.lines_of_time(plan.durations, global_batch))
    return "\n\n".join("\n".join(section) for section in sections)


def as_json(plan: ImagePlan) -> str:
    """The plan for a program: one table."""
    per_epoch, updates = _updates(plan)
    memory = plan.memory
    content: dict[str, Any] = {
        "version": JSON_VERSION,
        "device": "cpu",
        "ranks": plan.world_size,
        "batch_size": plan.config.data.batch_size,
        "num_classes": plan.size.classes,
        "updates_per_epoch": per_epoch,
        "updates": updates,
        "memory": None if memory is None else text.memory_as_json(memory, plan.checkpoint),
        "collectives": [{"name": name, "bytes": size} for name, size in plan.collectives.items()],
        "time": None if plan.durations is None else text.time_as_json(plan.durations),
    }
    return json.dumps(content, indent=1)


def _look(config: ImageConfig) -> ImageSize:
    """Open the data set and make the network."""
    from backbones.classifiers.classifier import Classifier
    from training.image_data import open_images

    data = open_images(config.data, config.run.seed)
    classifier = Classifier.create(
        config.classifier,
        classes=data.num_classes,
        image_shape=data.shape,
        normalization=data.normalization,
        seed=config.run.seed,
    )
    every = [*classifier.parameters.values()]
    trained = [one for one in every if one.grad_req != "null"]
    sizes = (FLOAT * sum(one.data().size for one in some) for some in (every, trained))
    return ImageSize(data.num_classes, data.num_examples(config.data), BackboneBytes(*sizes))


def _calibration(config: ImageConfig) -> Calibration:
    if config.dry_run.calibrate:
        from training.plan.calibrate_images import calibrate

        return calibrate(config)
    return calibration.read()


def _memory(config: ImageConfig, size: BackboneBytes, network: NetworkCost) -> list[Item]:
    # Parameters; gradients and momentum of those that are trained.
    held = size.all + 2 * size.trained
    maps = round(network.bytes_per_image * config.data.batch_size)
    libraries = round(network.base_bytes) - held
    return [
        Item("backbone", "parameters and optimizer", held, COMPUTED),
        Item("activations", "feature maps", maps, MEASURED),
        Item("libraries", "libraries and their copies", libraries, MEASURED),
    ]


def _collective_bytes(config: ImageConfig, size: BackboneBytes) -> dict[str, int]:
    halves = config.classifier.dtype == "float16" or config.exchange.fp16_allreduce
    return {"allreduce of the gradients": size.trained // (2 if halves else 1)}


def _updates(plan: ImagePlan) -> tuple[int, int]:
    """Per epoch, and in all."""
    per_epoch = plan.size.images // (plan.config.data.batch_size * plan.world_size)
    return per_epoch, plan.config.schedule.total_updates(per_epoch)


def _describe_length(plan: ImagePlan) -> Sequence[str]:
    config, world_size = plan.config, plan.world_size
    batch, (per_epoch, updates) = config.data.batch_size, _updates(plan)
    epochs = f" ({updates / per_epoch:.1f} epochs)" if per_epoch else ""
    return [
        f"{config.data.dataset}: {plan.size.images:,} images of {plan.size.classes:,} classes, "
        f"{config.classifier.model}, {config.classifier.dtype}",
        f"global batch {batch * world_size:,} ({world_size:,} ranks x {batch:,} images)",
        f"{per_epoch:,} updates per epoch, {updates:,} in all{epochs}",
    ]
