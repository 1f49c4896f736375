"""What a run costs, computed before it is queued on 64 GPUs.

``--dry-run`` prints which classes each rank holds, how much memory a rank needs and the size of
each collective. It reads no data and uses no device, so it runs on a laptop for a cluster. The
memory is that of a rank on a CPU, or with ``--gpu`` (``training.gpu_memory``) that on a GPU.

Shapes: B global batch, D embedding, S sampled rows of a shard, C_r classes of a shard.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import backbones
from partial_fc.shard import STATES, Shard
from runtime.errors import ConfigError
from training.config.faces import FaceConfig

_FLOAT, _BFLOAT16 = 4, 2
_LABEL = 8
# Measured on a CPU: the memory of Python, MXNet, Horovod and Numba before training starts, and the
# copies of the backbone that they keep: oneDNN's of weights and gradients in its own layout,
# Horovod's of the gradients that it sends together.
_PROGRAM = 350 * 2**20
_LIBRARY_COPIES = 2


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
        """The sum."""
        return sum(astuple(self))


def sampled_rows(config: FaceConfig, shard: Shard) -> int:
    """The rows S that a shard takes into an update, if the positives spread evenly."""
    sampled = max(1, round(shard.size * config.head.sample_ratio))
    return max(sampled, min(shard.size, config.data.batch_size))


def head_memory(config: FaceConfig, shard: Shard) -> HeadMemory:
    """The bytes of a rank's head: centers, their optimizer's states, the memory of an update.

    The working memory is ``2·S·D + B·S + 4·B·D`` floats: the sampled rows and their gradient, the
    logits, and a few matrices of the size of the features.
    """
    global_batch, embedding = config.data.batch_size * shard.world_size, _embedding(config)
    rows = sampled_rows(config, shard)
    states = STATES[config.optimizer.optimizer].values()
    number = _BFLOAT16 if config.head.center_dtype == "bfloat16" else _FLOAT
    return HeadMemory(
        centers=shard.size * embedding * number,
        states=sum(state.num_bytes(shard.size, embedding, number) for state in states),
        rows=2 * rows * embedding * _FLOAT,
        logits=global_batch * rows * _FLOAT,
        features=4 * global_batch * embedding * _FLOAT,
    )


def checkpoint_bytes(config: FaceConfig, shard: Shard) -> int:
    """The copy that a rank makes for its checkpoints, and keeps; rank 0's is the largest.

    Its centers and their states, and on rank 0 the backbone's parameters and their states.
    """
    if not config.run.keep:
        return 0
    memory = head_memory(config, shard)
    # Without the gradients.
    backbone = (_backbone_copies(config) - 1) * _backbone_bytes(config)
    return memory.centers + memory.states + (backbone if shard.rank == 0 else 0)


def collective_bytes(config: FaceConfig, world_size: int) -> dict[str, int]:
    """The size of each collective's result in one update, by its name.

    The gradients of the backbone are sent parameter by parameter; their sum is given. Those of a
    float16 network have two bytes, but for a thousandth (BatchNorm).
    """
    gradients = _backbone_bytes(config) // (2 if config.backbone.dtype == "float16" else 1)
    global_batch = config.data.batch_size * world_size
    sizes = {
        "allgather head.features": global_batch * _embedding(config) * _FLOAT,
        "allgather head.labels": global_batch * _LABEL,
        "allreduce head.maximum": global_batch * _FLOAT,
        "allreduce head.denominator": 2 * global_batch * _FLOAT,
        "allreduce head.gradient": global_batch * _embedding(config) * _FLOAT,
        "allreduce of the backbone": gradients,
    }
    if config.teacher.teacher is not None:
        sizes["allreduce teacher.loss"] = _FLOAT
    for name, numbers in config.head.collectives.items():
        sizes[name] = numbers * global_batch * _FLOAT
    return sizes


def describe(config: FaceConfig) -> str:
    """Describe the run of a checked configuration on ``--world-size`` ranks (default 1).

    Raises:
        ConfigError: there are more ranks than classes, or too few images for an update.
    """
    num_classes, world_size = config.data.num_classes, config.dry_run.world_size or 1
    assert num_classes is not None, "check() lets no dry run without classes pass"
    if num_classes < world_size:
        raise ConfigError(
            f"--world-size {world_size} leaves ranks without a class, as there are only "
            f"{num_classes}; use at most {num_classes} ranks"
        )
    shards = [Shard(rank, world_size, num_classes) for rank in (0, world_size - 1)]
    sections = [
        _describe_length(config, world_size),
        _describe_shards(*shards),
        (_describe_gpu if config.dry_run.gpu else _describe_memory)(config, shards[0]),
        ["bytes per collective and update"]
        + [_row(*item) for item in collective_bytes(config, world_size).items()],
    ]
    if config.backbone.sync_bn:
        sections.append(["not counted: the memory and the collectives of --sync-bn"])
    if config.teacher.teacher is not None:
        sections.append(["not counted: the memory of --teacher"])
    return "\n\n".join("\n".join(section) for section in sections)


def _describe_length(config: FaceConfig, world_size: int) -> list[str]:
    data = config.data
    global_batch = data.batch_size * world_size
    lines = [
        f"{data.dataset or ' + '.join(data.rec)}: network {config.backbone.network}, "
        f"embedding {_embedding(config)}, {config.backbone.dtype}",
        f"global batch {global_batch:,} ({world_size:,} ranks x {data.batch_size:,} images)",
    ]
    if data.num_images is None:
        return [*lines, "updates per epoch unknown: add --num-images to have them counted"]
    updates_per_epoch = data.num_images // global_batch
    if updates_per_epoch == 0:
        raise ConfigError(
            f"{data.num_images:,} images do not fill one global batch of {global_batch:,}; "
            "lower --batch-size or --world-size"
        )
    total = config.schedule.total_updates(updates_per_epoch)
    epochs = total / updates_per_epoch
    return [
        *lines,
        f"{updates_per_epoch:,} updates per epoch, {total:,} in all ({epochs:.1f} epochs)",
    ]


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
    head = head_memory(config, shard)
    backbone = _backbone_copies(config) * _backbone_bytes(config)
    network = config.backbone
    activations = backbones.activation_bytes(
        network.network,
        config.images_per_pass,
        recompute=network.recompute,
        output=network.net_output,
        dtype=network.dtype,
    )
    libraries = _PROGRAM + _LIBRARY_COPIES * _backbone_bytes(config)
    total = head.total + backbone + activations + libraries
    return [
        f"memory of rank {shard.rank}",
        _row("class centers", head.centers),
        _row("their optimizer states", head.states),
        _row(f"{sampled_rows(config, shard):,} sampled rows", head.rows),
        _row("logits", head.logits),
        _row("features", head.features),
        _row("head in all", head.total),
        _row("backbone", backbone),
        _row("its activations", activations),
        _row("libraries and their copies", libraries),
        _row("everything together", total),
        _row("with the copy for checkpoints", total + checkpoint_bytes(config, shard)),
    ]


def _describe_gpu(config: FaceConfig, shard: Shard) -> list[str]:
    """The items on a GPU, in MiB as ``nvidia-smi`` has them."""
    try:
        # Loads MXNet, which has the graph of the backbone.
        from training.gpu_memory import gpu_memory
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"--gpu counts the memory of the backbone's graph with MXNet, which cannot be loaded "
            f"here: {error}; MXNet's builds for GPUs need the driver, those for CPUs (make env) "
            "need nothing"
        ) from None
    items = gpu_memory(config, shard, sampled_rows(config, shard))
    items["everything together"] = sum(items.values())
    rows = [
        f"  {name:<30}{size / 2**20:>8,.0f} MiB  {size:>18,}"
        for name, size in items.items()
        if size
    ]
    return [f"memory of rank {shard.rank} on a GPU", *rows]


def _embedding(config: FaceConfig) -> int:
    return config.backbone.embedding_size


def _backbone_copies(config: FaceConfig) -> int:
    """Parameters, their gradients, and the states of their optimizer."""
    return 2 + sum(state.wide for state in STATES[config.optimizer.optimizer].values())


def _backbone_bytes(config: FaceConfig) -> int:
    network = config.backbone
    return _FLOAT * backbones.parameter_count(
        network.network, network.embedding_size, network.net_output
    )


def _row(name: str, size: int) -> str:
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        del units[0]
    readable = f"{value:.1f} {units[0]}"
    return f"  {name:<30}{readable:>12}  {size:>18,}"
