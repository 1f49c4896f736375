"""The plan of a run of ``train.py``: what fits, before it is queued on 64 GPUs.

``--dry-run`` prints how much memory a rank needs, item by item, the size of each collective, and
the most classes that fit. It reads no data and uses no device, so it runs on a laptop for a
cluster. How long an update takes, a short run tells: ``--max-update 20``.

The memory is that of a rank on a CPU, or with ``--gpu`` on a GPU. What the head keeps is counted
from its shapes, the parameters of the backbone from its graph. Feature maps are the outputs of the
graph's operators times what a step was seen to allocate for them, and what libraries take was
measured on a CPU and counted, or measured by others, for a GPU.

Shapes: B global batch, D embedding, S sampled rows of a shard.
"""

from __future__ import annotations

import os
from typing import NamedTuple, Optional

import backbones
from partial_fc.shard import ENTRY, STATES, Shard
from runtime import processors
from runtime.errors import ConfigError
from training.config.faces import FaceConfig
from training.plan import COMPUTED, ESTIMATED, PROGRAM_BYTES, Item, render, total

# Bytes of numbers.
_FLOAT, _HALF, _LABEL = 4, 2, 8
_MIB = 2**20
_FACE_SHAPE = 3, 112, 112

# Memory of maps, gradients and workspace over the outputs of all operators; with --recompute, over
# those of the largest part. On a CPU measured by enlarging the batch of r18, r50 and mbf (1.2), for
# a GPU by the arrays that a step of r18 to r200 allocates on mx.cpu(1) (0.93 to 1.10).
_KEPT, _PART_KEPT = 1.35, 3.1
_KEPT_ON_GPU, _PART_KEPT_ON_GPU = 1.0, 4.8
# The share that stays with bfloat16. Measured on a CPU with r18 (0.54) and mbf (0.63).
_NARROW = 0.63
# Copies of the backbone on a CPU: that of oneDNN in its own layout, and Horovod's of the gradients
# that it sends together.
_LIBRARY_COPIES = 2
# Rows that bfloat16's products take at a time (partial_fc.blocks, which loads MXNet), and samples
# of a store that are read, computed and written at a time.
_BLOCK_ROWS = 2048
_STAGES = 3

# Arrays [B, D] and [S, D] of a step. An optimizer with two states makes another [S, D].
_FEATURE_ARRAYS, _FEATURE_ARRAYS_ON_GPU = 4, 9
_ROW_ARRAYS = 2
# A context without kernels, on a Titan V (pytorch/pytorch issue 28394). Kernels, which CUDA up to
# 11.7 loads all at once: the sections for compute capability 7.5 of mxnet-cu101 1.9.1, of cuBLAS
# 11.10 and cuDNN 8.5. The workspace of convolutions (backbones.graph.gpu, which loads MXNet).
_GPU_LIBRARIES = (320 + 437 + 255 + 261 + 256) * _MIB
# NCCL's buffers between eight V100 with NVLink (NVIDIA/nccl issues 713 and 1685): 12 channels of
# three connections of 10 MiB. HOROVOD_FUSION_THRESHOLD, whose default is 128 MiB on GPUs.
_GPU_COMMUNICATION = (12 * 3 * 10 + 128) * _MIB


class NetworkSize(NamedTuple):
    """Sizes of a backbone: numbers of parameters, and elements of maps per image in a step."""

    parameters: int
    trained: int
    maps: float


def describe(config: FaceConfig) -> str:
    """Describe the run of a checked configuration on ``--world-size`` ranks (default 1).

    Raises:
        ConfigError: there are more ranks than classes, MXNet cannot be loaded, or nothing fits a
            pattern of ``--freeze``.
    """
    data, world_size = config.data, config.dry_run.world_size or 1
    assert data.num_classes is not None, "check() lets no dry run without classes pass"
    if data.num_classes < world_size:
        raise ConfigError(
            f"--world-size {world_size} leaves ranks without a class, as there are only "
            f"{data.num_classes}; use at most {data.num_classes} ranks"
        )
    per_epoch = data.num_images and data.num_images // (data.batch_size * world_size)
    shard = Shard(0, world_size, data.num_classes)
    network, limit = network_size(config), memory_limit(config, world_size)
    not_counted = ["the memory and the collectives of --sync-bn"] * config.backbone.sync_bn
    not_counted += ["the memory of --teacher"] * (config.teacher.teacher is not None)
    adapts = config.head.applied_margins is None
    not_counted += [f"the norms or cosines that --loss {config.head.loss} exchanges"] * adapts
    return render(
        {
            "device": "gpu" if config.dry_run.gpu else "cpu",
            "ranks": world_size,
            "batch_size": data.batch_size,
            "num_classes": data.num_classes,
            "classes_per_rank": shard.size,
            "sampled_per_rank": sampled_rows(config, shard),
            "updates_per_epoch": per_epoch,
            "updates": None if per_epoch is None else config.schedule.total_updates(per_epoch),
            "memory_limit": limit,
            "most_classes": limit and most_classes(config, world_size, network, limit),
            "not_counted": not_counted,
        },
        rank_memory(config, shard, network),
        checkpoint_bytes(config, shard, network),
        collective_bytes(config, world_size, network),
        as_json=config.dry_run.json,
    )


def memory_limit(config: FaceConfig, world_size: int) -> Optional[int]:
    """Return the bytes that a rank may take: of ``--memory``, else its part of this machine's.

    None with ``--gpu`` without ``--memory``: the GPU that is planned for need not be here.
    """
    plan = config.dry_run
    if plan.memory is not None:
        return round(plan.memory * 2**30)
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
        return total(rank_memory(config, shard, network)) + copy <= limit

    # More identities than there are people.
    low, high = world_size - 1, 2**35
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low if low >= world_size else 0


def network_size(config: FaceConfig) -> NetworkSize:
    """Measure the graph of the backbone.

    Raises:
        ConfigError: MXNet, which has the graph, cannot be loaded; or nothing fits a pattern of
            ``--freeze``.
    """
    try:
        from backbones.graph import passes
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"--dry-run counts the backbone's graph with MXNet, which cannot be loaded here: "
            f"{error}; MXNet's builds for GPUs need the driver, those for CPUs (make env) need "
            "nothing"
        ) from None
    network, gpu = config.backbone, config.dry_run.gpu
    shape = network.network, network.embedding_size, network.net_output
    symbol = backbones.build(
        network.network, embedding_size=network.embedding_size, output=network.net_output
    )
    maps = passes.output_elements(symbol, _FACE_SHAPE) * (_KEPT_ON_GPU if gpu else _KEPT)
    if network.recompute:
        largest, between = passes.recomputed_elements(symbol, _FACE_SHAPE[1:])
        maps = min(maps, between + largest * (_PART_KEPT_ON_GPU if gpu else _PART_KEPT))
    trained = backbones.parameter_count(*shape, network.freeze)
    return NetworkSize(backbones.parameter_count(*shape), trained, maps)


def sampled_rows(config: FaceConfig, shard: Shard) -> int:
    """Return the rows S that a shard takes into an update, if the positives spread evenly."""
    sampled = max(1, round(shard.size * config.head.sample_ratio))
    return max(sampled, min(shard.size, config.data.batch_size))


def rank_memory(config: FaceConfig, shard: Shard, network: NetworkSize) -> list[Item]:
    """Return the items of a rank's memory, on a GPU with ``--gpu``."""
    share = {"float32": 1.0, "float16": 0.5, "bfloat16": _NARROW}[config.backbone.dtype]
    images = config.data.batch_size // config.backbone.accumulate
    libraries = PROGRAM_BYTES + _LIBRARY_COPIES * _FLOAT * network.parameters
    if config.dry_run.gpu:
        libraries = _GPU_LIBRARIES + _GPU_COMMUNICATION * (shard.world_size > 1)
    computed = {**_head(config, shard), "backbone": _backbone_bytes(config, network)}
    activations = round(_FLOAT * share * images * network.maps)
    return [
        *(Item(name, size, COMPUTED) for name, size in computed.items()),
        Item("activations", activations, ESTIMATED),
        Item("libraries", libraries, ESTIMATED),
    ]


def checkpoint_bytes(config: FaceConfig, shard: Shard, network: NetworkSize) -> int:
    """Return the size of the copy that a rank makes for its checkpoints, and keeps on the host.

    It has the rank's centers and their states, unless a store has them, and on rank 0 the
    backbone's parameters and their states.
    """
    if not config.run.keep:
        return 0
    held = 0 if config.head.center_store is not None else sum(_held(config, shard.size))
    if shard.rank > 0:
        return held
    return held + _FLOAT * (network.parameters + _wide_states(config) * network.trained)


def collective_bytes(config: FaceConfig, world_size: int, network: NetworkSize) -> dict[str, int]:
    """Return the size of each collective's result in one update, by its name.

    The gradients of the backbone are sent parameter by parameter; their sum is given, without those
    of frozen parameters. Those of a float16 network have two bytes, but for a thousandth
    (BatchNorm).
    """
    embedding = config.backbone.embedding_size
    global_batch = config.data.batch_size * world_size
    sizes = {
        "allgather head.features": global_batch * embedding * _FLOAT,
        "allgather head.labels": global_batch * _LABEL,
        "allreduce head.maximum": global_batch * _FLOAT,
        "allreduce head.denominator": 2 * global_batch * _FLOAT,
        "allreduce head.gradient": global_batch * embedding * _FLOAT,
        "allreduce of the backbone": _number_bytes(config) * network.trained,
    }
    if config.teacher.teacher is not None:
        sizes["allreduce teacher.loss"] = _FLOAT
    return sizes


def _head(config: FaceConfig, shard: Shard) -> dict[str, int]:
    """Count the items of the head.

    On a CPU rows, logits and features take ``2·S·D + B·S + 4·B·D`` floats. With ``--head-dtype
    bfloat16`` rows and logits have two bytes, and the gradient, like the float32 sums of a product,
    is that of a block of rows. With ``--center-store`` the rows of three samples are in memory, and
    for each class its entry in the index and a mark. On a GPU sampled rows and states are copied.
    """
    global_batch, gpu = config.data.batch_size * shard.world_size, config.dry_run.gpu
    embedding, rows = config.backbone.embedding_size, sampled_rows(config, shard)
    centers, states = _held(config, shard.size)
    row_arrays, logits = _ROW_ARRAYS, global_batch * rows * _FLOAT
    features = _FLOAT * global_batch * embedding
    features *= _FEATURE_ARRAYS_ON_GPU if gpu else _FEATURE_ARRAYS
    if gpu:
        wide = _wide_states(config)
        row_arrays += wide - 1 + (1 + wide if rows < shard.size else 0)
    working = row_arrays * rows * embedding * _FLOAT
    if config.head.head_dtype == "bfloat16":
        block = min(rows, _BLOCK_ROWS)
        working = (rows + block) * embedding * _HALF
        # Each block adds its own share to the gradient of the features.
        features += -(-rows // _BLOCK_ROWS) * global_batch * embedding * _HALF
        logits = global_batch * (rows * _HALF + block * _FLOAT)
    if config.head.center_store is not None:
        centers, states = (ENTRY + 1) * shard.size, 0
        working += _STAGES * sum(_held(config, rows))
    return {
        "class_centers": centers,
        "optimizer_states": states,
        "sampled_rows": working,
        "logits": logits,
        "features": features,
    }


def _held(config: FaceConfig, rows: int) -> tuple[int, int]:
    """The bytes of so many centers, and of all states that their optimizer keeps."""
    size = config.backbone.embedding_size
    states = STATES[config.optimizer.optimizer].values()
    return rows * size * _FLOAT, sum(state.num_bytes(rows, size) for state in states)


def _backbone_bytes(config: FaceConfig, network: NetworkSize) -> int:
    """Parameters; gradients of those that are trained, and the states of their optimizer.

    With float16 these have float32 master copies.
    """
    number, states = _number_bytes(config), _wide_states(config)
    held = number * (network.parameters + network.trained)
    held += _FLOAT * states * network.trained
    if config.backbone.dtype == "float16":
        held += _FLOAT * network.trained
    return held


def _number_bytes(config: FaceConfig) -> int:
    """The bytes of a parameter of the backbone and of its gradient."""
    return _HALF if config.backbone.dtype == "float16" else _FLOAT


def _wide_states(config: FaceConfig) -> int:
    """Arrays of the size of a parameter that the optimizer keeps."""
    return sum(state.wide for state in STATES[config.optimizer.optimizer].values())
