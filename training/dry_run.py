"""What a run costs, computed before it is queued on 64 GPUs.

``--dry-run`` prints which classes each rank holds, how much memory a rank needs, the size of each
collective, how long an update takes and how many classes fit. It reads no data and uses no device,
so it runs on a laptop for a cluster. The memory is that of a rank on a CPU, or with ``--gpu``
(``training.plan.gpu_memory``) that on a GPU. What ``--calibrate`` has measured on this host is used
where there is any, and each line says how it is known. docs/scaling.md says how well it holds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Callable, Optional

from partial_fc.shard import Shard
from runtime.errors import ConfigError
from training.config.faces import FaceConfig
from training.plan import calibration, capacity, text
from training.plan.calibration import Calibration
from training.plan.capacity import Choice
from training.plan.items import COMPUTED, Duration, Item, total
from training.plan.memory import checkpoint_bytes, rank_memory, sampled_rows
from training.plan.roofline import Measured, update_time
from training.plan.traffic import collective_bytes

JSON_VERSION = 1
"""Of ``--json``; raised whenever a name changes or goes, not when one is added."""


@dataclass(frozen=True)
class Plan:
    """What there is to say about a run; docs/scaling.md has the names of its JSON."""

    config: FaceConfig
    world_size: int
    shards: tuple[Shard, Shard]
    """The first and the last."""
    updates: Optional[tuple[int, int]]
    """Per epoch and in all; None if the images are not known."""
    memory: list[Item]
    checkpoint: int
    """Bytes of the copy for checkpoints, which lies on the host."""
    collectives: dict[str, int]
    durations: Optional[list[Duration]]
    limit: Optional[int]
    """Bytes that a rank may take."""
    most_classes: Optional[int]
    table: list[Choice]
    not_counted: list[str]


def describe(config: FaceConfig) -> str:
    """Describe the run of a checked configuration on ``--world-size`` ranks (default 1).

    Raises:
        ConfigError: there are more ranks than classes, or too few images for an update; with
            ``--calibrate``, what is measured cannot be run or written.
    """
    plan = make(config)
    return as_json(plan) if config.dry_run.json else as_text(plan)


def make(config: FaceConfig) -> Plan:
    """Plan the run, after measuring with ``--calibrate``; raises as ``describe`` does."""
    num_classes, world_size = config.data.num_classes, config.dry_run.world_size or 1
    assert num_classes is not None, "check() lets no dry run without classes pass"
    if num_classes < world_size:
        raise ConfigError(
            f"--world-size {world_size} leaves ranks without a class, as there are only "
            f"{num_classes}; use at most {num_classes} ranks"
        )
    updates = _updates(config, world_size)
    first, last = (Shard(rank, world_size, num_classes) for rank in (0, world_size - 1))
    limit = capacity.memory_limit(config, world_size)
    found = _calibration(config)
    measured = Measured.of(config, world_size, found)
    memory_of = _memory_on_gpu(config) if config.dry_run.gpu else _memory_on_host(config, measured)
    most = None
    if limit is not None:
        most = capacity.largest(
            lambda classes: memory_of(Shard(0, world_size, classes))[1] <= limit, world_size
        )
    on_gpu = config.dry_run.gpu
    return Plan(
        config,
        world_size,
        (first, last),
        updates,
        memory_of(first)[0],
        checkpoint_bytes(config, first),
        collective_bytes(config, world_size),
        None if on_gpu else update_time(config, first, measured),
        limit,
        most,
        [] if on_gpu else list(capacity.choices(config, world_size, found, limit)),
        _not_counted(config),
    )


def as_text(plan: Plan) -> str:
    """The plan for a reader."""
    config = plan.config
    sections = [_describe_length(plan), text.lines_of_shards(*plan.shards)]
    if config.dry_run.gpu:
        sections.append(text.lines_of_gpu(plan.memory))
    else:
        sections.append(text.lines_of_memory(plan.memory, plan.checkpoint))
    collectives = [text.row(*item) for item in plan.collectives.items()]
    sections.append(["bytes per collective and update", *collectives])
    if plan.durations is not None:
        global_batch = config.data.batch_size * plan.world_size
        sections.append(text.lines_of_time(plan.durations, global_batch))
    elif not config.dry_run.gpu:
        sections.append(["time of an update: not measured on this host; add --calibrate"])
    if plan.limit is not None and plan.most_classes is not None:
        sections.append(
            [f"most classes in {text.readable(plan.limit)} per rank: {plan.most_classes:,}"]
        )
    if plan.table:
        sections.append(text.lines_of_choices(plan.table))
    sections += [[f"not counted: {what}"] for what in plan.not_counted]
    return "\n\n".join("\n".join(section) for section in sections)


def as_json(plan: Plan) -> str:
    """The plan for a program: one table."""
    data = plan.config.data
    content: dict[str, Any] = {
        "version": JSON_VERSION,
        "device": "gpu" if plan.config.dry_run.gpu else "cpu",
        "ranks": plan.world_size,
        "batch_size": data.batch_size,
        "num_classes": data.num_classes,
        "updates_per_epoch": None if plan.updates is None else plan.updates[0],
        "updates": None if plan.updates is None else plan.updates[1],
        "memory": text.memory_as_json(plan.memory, plan.checkpoint),
        "collectives": [{"name": name, "bytes": size} for name, size in plan.collectives.items()],
        "time": None if plan.durations is None else text.time_as_json(plan.durations),
        "memory_limit": plan.limit,
        "most_classes": plan.most_classes,
        "table": [
            {
                "ranks": one.ranks,
                "batch_size": one.batch_size,
                "sample_ratio": one.sample_ratio,
                "bytes": one.num_bytes,
                "seconds": one.seconds,
                "most_classes": one.num_classes,
            }
            for one in plan.table
        ],
        "not_counted": plan.not_counted,
    }
    return json.dumps(content, indent=1)


def _calibration(config: FaceConfig) -> Calibration:
    if config.dry_run.calibrate:
        from training.plan.calibrate import calibrate

        return calibrate(config)
    # A GPU's time and memory do not follow from those of processors.
    return Calibration("") if config.dry_run.gpu else calibration.read()


# The items of a shard, and their sum with the copy for checkpoints where that lies beside them.
_Memory = Callable[[Shard], tuple[list[Item], int]]


def _memory_on_host(config: FaceConfig, measured: Measured) -> _Memory:
    def of(shard: Shard) -> tuple[list[Item], int]:
        items = rank_memory(config, shard, measured.network)
        return items, total(items) + checkpoint_bytes(config, shard)

    return of


def _memory_on_gpu(config: FaceConfig) -> _Memory:
    try:
        # Loads MXNet, which has the graph of the backbone.
        from training.plan.gpu_memory import gpu_memory, head_memory
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"--gpu counts the memory of the backbone's graph with MXNet, which cannot be loaded "
            f"here: {error}; MXNet's builds for GPUs need the driver, those for CPUs (make env) "
            "need nothing"
        ) from None
    rest: dict[str, int] = {}

    def of(shard: Shard) -> tuple[list[Item], int]:
        rows = sampled_rows(config, shard)
        head = head_memory(config, shard, rows)
        if not rest:
            # Planning the graph takes a second; only the head depends on the shard.
            everything = gpu_memory(config, shard, rows)
            rest.update({name: everything[name] for name in everything.keys() - head.keys()})
            ordered = [name for name in everything if name in rest]
            rest.update({name: rest.pop(name) for name in ordered})
        items = [_gpu_item(name, size) for name, size in {**head, **rest}.items()]
        return items, total(items)

    return of


def _gpu_item(label: str, size: int) -> Item:
    key = "sampled rows" if label.endswith(" sampled rows") else label.replace("'s", "")
    return Item(key.replace(" ", "_").lower(), label, size, COMPUTED)


def _updates(config: FaceConfig, world_size: int) -> Optional[tuple[int, int]]:
    data, global_batch = config.data, config.data.batch_size * world_size
    if data.num_images is None:
        return None
    per_epoch = data.num_images // global_batch
    if per_epoch == 0:
        raise ConfigError(
            f"{data.num_images:,} images do not fill one global batch of {global_batch:,}; "
            "lower --batch-size or --world-size"
        )
    return per_epoch, config.schedule.total_updates(per_epoch)


def _describe_length(plan: Plan) -> list[str]:
    config, world_size = plan.config, plan.world_size
    data, network = config.data, config.backbone
    lines = [
        f"{data.dataset or ' + '.join(data.rec)}: network {network.network}, "
        f"embedding {network.embedding_size}, {network.dtype}",
        f"global batch {data.batch_size * world_size:,} "
        f"({world_size:,} ranks x {data.batch_size:,} images)",
    ]
    if plan.updates is None:
        return [*lines, "updates per epoch unknown: add --num-images to have them counted"]
    per_epoch, updates = plan.updates
    return [
        *lines,
        f"{per_epoch:,} updates per epoch, {updates:,} in all ({updates / per_epoch:.1f} epochs)",
    ]


def _not_counted(config: FaceConfig) -> list[str]:
    missing = ["the memory and the collectives of --sync-bn"] if config.backbone.sync_bn else []
    return missing + ["the memory of --teacher"] * (config.teacher.teacher is not None)
