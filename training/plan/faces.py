"""The plan of a run of ``train.py``: what fits, before it is queued on 64 GPUs.

``--dry-run`` prints which classes each rank holds, how much memory a rank needs, the size of each
collective, and the most classes that fit. It reads no data and uses no device, so it runs on a
laptop for a cluster. The memory is that of a rank on a CPU, or with ``--gpu`` on a GPU. How long an
update takes, a short run tells: ``--max-update 20``.
"""

from __future__ import annotations

import os
from typing import Optional

from partial_fc.shard import Shard
from runtime import processors
from runtime.errors import ConfigError
from training.config.faces import FaceConfig
from training.plan import memory
from training.plan.memory import NetworkSize
from training.plan.text import Plan, lines_of_length, readable, total

_GIB = 2**30
# More identities than there are people.
_MOST = 2**35


def describe(config: FaceConfig) -> str:
    """Describe the run of a checked configuration on ``--world-size`` ranks (default 1).

    Raises:
        ConfigError: there are more ranks than classes, or too few images for an update; MXNet
            cannot be loaded; or nothing fits a pattern of ``--freeze``.
    """
    data, world_size = config.data, config.dry_run.world_size or 1
    assert data.num_classes is not None, "check() lets no dry run without classes pass"
    if data.num_classes < world_size:
        raise ConfigError(
            f"--world-size {world_size} leaves ranks without a class, as there are only "
            f"{data.num_classes}; use at most {data.num_classes} ranks"
        )
    per_epoch = _updates_per_epoch(config, world_size)
    updates = None if per_epoch is None else config.schedule.total_updates(per_epoch)
    shard = Shard(0, world_size, data.num_classes)
    network, limit = memory.network_size(config), memory_limit(config, world_size)
    most = None if limit is None else most_classes(config, world_size, network, limit)
    not_counted = ["the memory and the collectives of --sync-bn"] * config.backbone.sync_bn
    not_counted += ["the memory of --teacher"] * (config.teacher.teacher is not None)
    after = [] if limit is None else [[f"most classes in {readable(limit)} per rank: {most:,}"]]
    run = (
        f"{data.dataset or ' + '.join(data.rec)}: network {config.backbone.network}, "
        f"embedding {config.backbone.embedding_size}, {config.backbone.dtype}"
    )
    plan = Plan(
        {
            "device": "gpu" if config.dry_run.gpu else "cpu",
            "ranks": world_size,
            "batch_size": data.batch_size,
            "num_classes": data.num_classes,
            "updates_per_epoch": per_epoch,
            "updates": updates,
            "memory_limit": limit,
            "most_classes": most,
            "not_counted": not_counted,
        },
        memory.rank_memory(config, shard, network),
        memory.checkpoint_bytes(config, shard, network),
        memory.collective_bytes(config, world_size, network),
        [
            [run, *lines_of_length(data.batch_size, world_size, per_epoch, updates)],
            _lines_of_shards(shard),
        ],
        [*after, *([f"not counted: {what}"] for what in not_counted)],
    )
    return plan.as_json() if config.dry_run.json else plan.as_text()


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
        copy = 0 if config.dry_run.gpu else memory.checkpoint_bytes(config, shard, network)
        return total(memory.rank_memory(config, shard, network)) + copy <= limit

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


def _updates_per_epoch(config: FaceConfig, world_size: int) -> Optional[int]:
    """Return the updates per epoch; None if the number of images is not known."""
    data, global_batch = config.data, config.data.batch_size * world_size
    if data.num_images is None:
        return None
    if data.num_images < global_batch:
        raise ConfigError(
            f"{data.num_images:,} images do not fill one global batch of {global_batch:,}; "
            "lower --batch-size or --world-size"
        )
    return data.num_images // global_batch


def _lines_of_shards(first: Shard) -> list[str]:
    """Return which classes the first and the last rank hold."""
    ranks, num_classes = first.world_size, first.num_classes
    lines = [f"{num_classes:,} classes in {ranks:,} shards"]
    for shard in (first, Shard(ranks - 1, ranks, num_classes))[:ranks]:
        lines.append(
            f"  rank {shard.rank}: classes {shard.start:,} to {shard.stop - 1:,} ({shard.size:,})"
        )
    larger = num_classes % ranks
    if larger:
        lines.append(f"  the first {larger:,} ranks hold one class more than the others")
    return lines
