"""The plan of a run of ``train.py``: what fits, before it is queued on 64 GPUs.

``--dry-run`` prints which classes each rank holds, how much memory a rank needs, the size of each
collective, and the most classes that fit. It reads no data and uses no device, so it runs on a
laptop for a cluster. The memory is that of a rank on a CPU, or with ``--gpu`` on a GPU. How long an
update takes, a short run tells: ``--max-update 20``.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Optional

from partial_fc.shard import Shard
from runtime import processors
from runtime.errors import ConfigError
from training.config.faces import FaceConfig
from training.plan import memory, text
from training.plan.memory import NetworkSize, checkpoint_bytes, network_size, rank_memory
from training.plan.text import JSON_VERSION, Item

_GIB = 2**30
# More identities than there are people.
_MOST = 2**35


@dataclass(frozen=True)
class Plan:
    """What there is to say about a run; docs/scaling.md has the names of its JSON."""

    config: FaceConfig
    world_size: int
    shards: tuple[Shard, Shard]
    """The first and the last."""
    updates: Optional[tuple[int, int]]
    """Per epoch and in all; None if the number of images is not known."""
    memory: list[Item]
    checkpoint: int
    """Bytes of the copy for checkpoints, which is on the host."""
    collectives: dict[str, int]
    limit: Optional[int]
    """Bytes that a rank may take."""
    most_classes: Optional[int]
    not_counted: list[str]


def describe(config: FaceConfig) -> str:
    """Describe the run of a checked configuration on ``--world-size`` ranks (default 1).

    Raises:
        ConfigError: there are more ranks than classes, or too few images for an update; MXNet
            cannot be loaded; or nothing fits a pattern of ``--freeze``.
    """
    plan = make(config)
    return as_json(plan) if config.dry_run.json else as_text(plan)


def make(config: FaceConfig) -> Plan:
    """Plan the run; raises as ``describe`` does."""
    num_classes, world_size = config.data.num_classes, config.dry_run.world_size or 1
    assert num_classes is not None, "check() lets no dry run without classes pass"
    if num_classes < world_size:
        raise ConfigError(
            f"--world-size {world_size} leaves ranks without a class, as there are only "
            f"{num_classes}; use at most {num_classes} ranks"
        )
    updates = _updates(config, world_size)
    first, last = (Shard(rank, world_size, num_classes) for rank in (0, world_size - 1))
    network, limit = network_size(config), memory_limit(config, world_size)
    return Plan(
        config,
        world_size,
        (first, last),
        updates,
        rank_memory(config, first, network),
        checkpoint_bytes(config, first, network),
        memory.collective_bytes(config, world_size, network),
        limit,
        None if limit is None else most_classes(config, world_size, network, limit),
        _not_counted(config),
    )


def memory_limit(config: FaceConfig, world_size: int) -> Optional[int]:
    """Return the bytes that a rank may take: of ``--memory``, else its part of this machine's.

    None with ``--gpu`` without ``--memory``: the GPU that is planned for need not be here.
    """
    plan = config.dry_run
    if plan.memory is not None:
        return round(plan.memory * _GIB)
    if plan.gpu:
        return None
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return machine // min(world_size, processors.available())


def most_classes(config: FaceConfig, world_size: int, network: NetworkSize, limit: int) -> int:
    """Return the largest number of classes with which rank 0 takes no more than ``limit`` bytes.

    There is at least one class per rank; 0 if not even those fit. On a CPU the copy for checkpoints
    counts.
    """

    def fits(num_classes: int) -> bool:
        shard = Shard(0, world_size, num_classes)
        copy = 0 if config.dry_run.gpu else checkpoint_bytes(config, shard, network)
        return text.total(rank_memory(config, shard, network)) + copy <= limit

    low, high = world_size, _MOST
    if not fits(low):
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def as_text(plan: Plan) -> str:
    """Return the plan for a reader."""
    sections = [
        _lines_of_length(plan),
        _lines_of_shards(*plan.shards),
        text.lines_of_memory(plan.memory, plan.checkpoint, gpu=plan.config.dry_run.gpu),
        text.lines_of_collectives(plan.collectives),
    ]
    if plan.limit is not None:
        limit = text.readable(plan.limit)
        sections.append([f"most classes in {limit} per rank: {plan.most_classes:,}"])
    sections += [[f"not counted: {what}"] for what in plan.not_counted]
    return "\n\n".join("\n".join(section) for section in sections)


def as_json(plan: Plan) -> str:
    """Return the plan for a program: one table."""
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
        "collectives": text.collectives_as_json(plan.collectives),
        "memory_limit": plan.limit,
        "most_classes": plan.most_classes,
        "not_counted": plan.not_counted,
    }
    return json.dumps(content, indent=1)


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


def _lines_of_length(plan: Plan) -> list[str]:
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
    epochs = f"({updates / per_epoch:.1f} epochs)"
    return [*lines, f"{per_epoch:,} updates per epoch, {updates:,} in all {epochs}"]


def _lines_of_shards(first: Shard, last: Shard) -> list[str]:
    """Return which classes the first and the last rank hold."""
    lines = [f"{first.num_classes:,} classes in {first.world_size:,} shards"]
    for shard in (first, last)[: first.world_size]:
        lines.append(
            f"  rank {shard.rank}: classes {shard.start:,} to {shard.stop - 1:,} ({shard.size:,})"
        )
    larger = first.num_classes % first.world_size
    if larger:
        lines.append(f"  the first {larger:,} ranks hold one class more than the others")
    return lines


def _not_counted(config: FaceConfig) -> list[str]:
    missing = ["the memory and the collectives of --sync-bn"] if config.backbone.sync_bn else []
    return missing + ["the memory of --teacher"] * (config.teacher.teacher is not None)
