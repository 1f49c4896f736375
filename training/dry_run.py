"""What a run would cost, before it is queued on 64 GPUs.

``--dry-run`` answers from arithmetic alone which classes each rank would hold, how much memory the
head needs and what travels between the ranks. Neither data nor device is touched, so it runs on a
laptop for a cluster.

Shapes: B global batch, D embedding, S sampled rows of a shard, C_r classes of a shard.
"""

from __future__ import annotations

from dataclasses import dataclass

import backbones
from partial_fc.shard import Shard
from partial_fc.states import STATES
from runtime.errors import ConfigError
from training.config.faces import FaceConfig

_FLOAT = 4
_LABEL = 8
# Measured on a CPU: what Python, MXNet, Horovod and Numba take before anything is trained, and the
# copies that they make of the backbone: oneDNN's of weights and gradients in an order of its own,
# Horovod's of the gradients that it sends together.
_PROGRAM = 350 * 2**20
_LIBRARY_COPIES = 2
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True)
class HeadMemory:
    """Bytes that the head of one rank takes."""

    centers: int
    states: int
    rows: int
    logits: int
    features: int

    @property
    def total(self) -> int:
        """Everything together."""
        return self.centers + self.states + self.rows + self.logits + self.features


def sampled_rows(config: FaceConfig, shard: Shard) -> int:
    """The rows S that a shard takes into an update, if the positives spread evenly."""
    sampled = max(1, round(shard.size * config.head.sample_ratio))
    return max(sampled, min(shard.size, config.data.batch_size))


def head_memory(config: FaceConfig, shard: Shard) -> HeadMemory:
    """The bytes of a rank's head: centers, their optimizer's states, the memory of an update.

    The working memory is ``2·S·D + B·S + 4·B·D`` floats: the sampled rows and their gradient, the
    logits, and a few matrices of the size of the features.
    """
    global_batch = config.data.batch_size * shard.world_size
    rows = sampled_rows(config, shard)
    states = STATES[config.optimizer.optimizer].values()
    return HeadMemory(
        centers=shard.size * config.backbone.embedding_size * _FLOAT,
        states=sum(state.num_bytes(shard.size, config.backbone.embedding_size) for state in states),
        rows=2 * rows * config.backbone.embedding_size * _FLOAT,
        logits=global_batch * rows * _FLOAT,
        features=4 * global_batch * config.backbone.embedding_size * _FLOAT,
    )


def checkpoint_bytes(config: FaceConfig, shard: Shard) -> int:
    """The copy that a rank makes for its checkpoints, and keeps; rank 0's is the largest.

    Its centers and their states, and on rank 0 the backbone's parameters and their states.
    """
    if not config.run.keep:
        return 0
    memory = head_memory(config, shard)
    # Without the gradients.
    backbone = (_backbone_copies(config) - 1) * _backbone_parameters(config) * _FLOAT
    return memory.centers + memory.states + (backbone if shard.rank == 0 else 0)


def collective_bytes(config: FaceConfig, world_size: int) -> dict[str, int]:
    """The size of each collective's result in one update, by its name.

    The gradients of the backbone travel parameter by parameter; their sum is given.
    """
    global_batch = config.data.batch_size * world_size
    sizes = {
        "allgather head.features": global_batch * config.backbone.embedding_size * _FLOAT,
        "allgather head.labels": global_batch * _LABEL,
        "allreduce head.maximum": global_batch * _FLOAT,
        "allreduce head.denominator": 2 * global_batch * _FLOAT,
        "allreduce head.gradient": global_batch * config.backbone.embedding_size * _FLOAT,
        "allreduce of the backbone": _backbone_parameters(config) * _FLOAT,
    }
    if config.head.collective:
        sizes[config.head.collective] = global_batch * _FLOAT
    return sizes


def describe(config: FaceConfig) -> str:
    """Describe the run of a checked configuration on ``--world-size`` ranks (default 1).

    Raises:
        ConfigError: There are more ranks than classes.
    """
    assert config.data.num_classes is not None, "check() lets no dry run without classes pass"
    world_size = config.dry_run.world_size or 1
    if config.data.num_classes < world_size:
        raise ConfigError(
            f"--world-size {world_size} leaves ranks without a class, as there are only "
            f"{config.data.num_classes}; use at most {config.data.num_classes} ranks"
        )
    shards = [Shard(rank, world_size, config.data.num_classes) for rank in (0, world_size - 1)]
    sections = (
        _describe_length(config, world_size),
        _describe_shards(*shards),
        _describe_memory(config, shards[0]),
        _describe_collectives(config, world_size),
    )
    return "\n\n".join("\n".join(section) for section in sections)


def _describe_length(config: FaceConfig, world_size: int) -> list[str]:
    global_batch = config.data.batch_size * world_size
    lines = [
        f"{config.data.dataset or ' + '.join(config.data.rec)}: network {config.backbone.network}, "
        f"embedding {config.backbone.embedding_size}, {config.backbone.dtype}",
        f"global batch {global_batch:,} ({world_size:,} ranks x {config.data.batch_size:,} images)",
    ]
    if config.data.num_images is None:
        lines.append("updates per epoch unknown: add --num-images to have them counted")
        return lines
    updates_per_epoch = config.data.num_images // global_batch
    if updates_per_epoch == 0:
        raise ConfigError(
            f"{config.data.num_images:,} images do not fill one global batch of {global_batch:,}; "
            "lower --batch-size or --world-size"
        )
    total = config.schedule.total_updates(updates_per_epoch)
    lines.append(
        f"{updates_per_epoch:,} updates per epoch, "
        f"{total:,} in all ({total / updates_per_epoch:.1f} epochs)"
    )
    return lines


def _describe_shards(first: Shard, last: Shard) -> list[str]:
    lines = [f"{first.num_classes:,} classes in {first.world_size:,} shards"]
    for shard in (first, last)[: first.world_size]:
        lines.append(
            f"  rank {shard.rank}: classes {shard.start:,} to {shard.stop - 1:,} ({shard.size:,})"
        )
    larger = first.num_classes % first.world_size
    if larger:
        lines.append(f"  the first {larger:,} ranks hold one class more than the others")
    return lines


def _describe_memory(config: FaceConfig, shard: Shard) -> list[str]:
    memory = head_memory(config, shard)
    rows = sampled_rows(config, shard)
    weights = _backbone_copies(config) * _backbone_parameters(config) * _FLOAT
    activations = backbones.activation_bytes(
        config.backbone.network, config.data.batch_size, recompute=config.backbone.recompute
    )
    libraries = _PROGRAM + _LIBRARY_COPIES * _backbone_parameters(config) * _FLOAT
    together = memory.total + weights + activations + libraries
    checkpoint = checkpoint_bytes(config, shard)
    return [
        f"memory of rank {shard.rank}",
        _row("class centers", memory.centers),
        _row("their optimizer states", memory.states),
        _row(f"{rows:,} sampled rows", memory.rows),
        _row("logits", memory.logits),
        _row("features", memory.features),
        _row("head in all", memory.total),
        _row("backbone", weights),
        _row("its activations", activations),
        _row("libraries and their copies", libraries),
        _row("everything together", together),
        _row("with the copy for checkpoints", together + checkpoint),
    ]


def _describe_collectives(config: FaceConfig, world_size: int) -> list[str]:
    sizes = collective_bytes(config, world_size)
    return ["bytes per collective and update", *(_row(*item) for item in sizes.items())]


def _backbone_copies(config: FaceConfig) -> int:
    """Parameters, their gradients, and the states of their optimizer."""
    return 2 + sum(state.wide for state in STATES[config.optimizer.optimizer].values())


def _backbone_parameters(config: FaceConfig) -> int:
    return backbones.parameter_count(config.backbone.network, config.backbone.embedding_size)


def _row(name: str, size: int) -> str:
    return f"  {name:<30}{_readable(size):>12}  {size:>18,}"


def _readable(size: int) -> str:
    value = float(size)
    for unit in _UNITS[:-1]:
        if value < 1024:
            return f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {_UNITS[-1]}"
