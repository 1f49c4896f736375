"""What a rank needs on its GPU, computed before the run has one: ``--dry-run --gpu``.

Arrays are counted from the graph, the head's step and the optimizer; tests compare them with what
the same step allocates on ``mx.cpu(1)``. MXNet's pool rounds each up, keeps what is freed, and
gives it to arrays of the same size only, so that arrays of different sizes add up even if they do
not exist at the same time. What libraries take beside the arrays was counted in their files or
measured by others; the constants name their sources.

Shapes: B global batch, D embedding, S sampled rows of a shard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

import backbones
from backbones.graph import frozen
from backbones.graph.gpu import WORKSPACE
from backbones.graph.memory import Tensor, step_memory, tensor_sizes
from backbones.model import FACE_SIZE
from partial_fc.rows.device import PART_BYTES
from partial_fc.shard import STATES, Shard
from training.config.faces import FaceConfig
from training.update.mixed_precision import PART_SIZE

_FLOAT = 4
_MIB = 2**20
# Of MXNet's pool (src/storage/pooled_storage_manager.h).
_PAGE, _LARGE = 4096, 2 * _MIB

# A context without kernels, as PyCUDA makes it on a Titan V (pytorch/pytorch issue 28394).
_CONTEXT = 320 * _MIB
# Kernels, which CUDA up to 11.7 loads all at once: the sections that occupy memory in the code for
# compute capability 7.5 of mxnet-cu101 1.9.1 (2 % more for 7.0), of cuBLAS 11.10 and cuDNN 8.5. The
# latter count convolutions, not recurrent networks; those of CUDA 10 are smaller.
_MXNET_KERNELS = 437 * _MIB
_LIBRARY_KERNELS = (255 + 261) * _MIB
# NCCL's buffers of a connection (NVIDIA/nccl issue 1685); a ring receives over one of them, a tree
# over two; channels of eight V100 with NVLink (issue 713: six rings, each twice). Without NVLink
# there are two channels.
_CHANNELS, _CONNECTIONS, _CONNECTION_BUFFER = 12, 3, 10 * _MIB
# HOROVOD_FUSION_THRESHOLD, in which Horovod sends small gradients together.
_FUSION_BUFFER = 128 * _MIB

# Arrays [S, D] of a step: unit vectors and gradient; and one that Adam's update makes.
_ROW_BUFFERS = 2
_TEMPORARY_ROWS = {"sgd": 0, "adam": 1, "adamw": 1}
# Arrays [B, D].
_FEATURE_ARRAYS = 9

# Float32 arrays that an update of a float16 network makes of a part of its parameters.
_UPDATE_ARRAYS = {"sgd": 3, "adam": 8, "adamw": 8}


def gpu_memory(config: FaceConfig, shard: Shard, num_rows: int) -> dict[str, int]:
    """Return the bytes of each item on the GPU of the rank whose shard this is.

    An update takes ``num_rows`` of it.
    """
    return {
        **head_memory(config, shard, num_rows),
        **_backbone(config, shard.world_size),
        **_libraries(shard.world_size),
    }


def pooled(num_bytes: int) -> int:
    """What MXNet's pool takes for an array: whole pages, and above 2 MiB whole such pieces."""
    pages = -(-num_bytes // _PAGE) * _PAGE
    return pages if pages <= _LARGE else -(-pages // _LARGE) * _LARGE


def head_memory(config: FaceConfig, shard: Shard, num_rows: int) -> dict[str, int]:
    """Return those of the head alone."""
    embedding, optimizer = config.backbone.embedding_size, config.optimizer.optimizer
    global_batch = config.data.batch_size * shard.world_size
    states = STATES[optimizer].values()
    is_sampled = num_rows < shard.size
    # Sampled rows and their states are copied; otherwise the arrays themselves are updated.
    copies = 1 + sum(state.wide for state in states) if is_sampled else 0
    rows = pooled(num_rows * embedding * _FLOAT)
    # Where four numbers of a row go back to is an int32.
    places = pooled(num_rows * embedding) if is_sampled else 0
    logits = global_batch * num_rows * _FLOAT
    return {
        "class centers": pooled(shard.size * embedding * _FLOAT),
        "their optimizer states": sum(
            pooled(state.num_bytes(shard.size, embedding)) for state in states
        ),
        f"{num_rows:,} sampled rows": (_ROW_BUFFERS + copies + _TEMPORARY_ROWS[optimizer]) * rows
        + places,
        "logits": pooled(logits),
        "rules for negatives": _rule_arrays(config, logits) * pooled(min(logits, PART_BYTES)),
        "features": _FEATURE_ARRAYS * pooled(global_batch * embedding * _FLOAT),
    }


def _rule_arrays(config: FaceConfig, logits: int) -> int:
    """Arrays of a part; those of one part still exist when the next one gets its own."""
    arrays = 0
    if config.head.filter_threshold < 1.0:
        arrays = 1
    if config.head.margins is None and config.head.loss == "curricularface":
        arrays = 2
    return arrays * (2 if logits > PART_BYTES else 1)


def _backbone(config: FaceConfig, world_size: int) -> dict[str, int]:
    options, images = config.backbone, config.images_per_pass
    symbol = backbones.build(
        options.network,
        embedding_size=options.embedding_size,
        dtype=options.dtype,
        output=options.net_output,
    )
    tensors = tensor_sizes(symbol, (images, 3, *FACE_SIZE))
    names = [name for name in symbol.list_arguments() if name != "data"]
    held = [tensors[name] for name in (*names, *symbol.list_auxiliary_states())]
    fixed = frozen.find(options.frozen, symbol)
    trained = {name: tensors[name] for name in names if name not in fixed}
    # Rank 0 sends its initial weights as one array for each type; the pool keeps their memory.
    joined = Counter[int]()
    for tensor in held:
        joined[tensor.element_size] += tensor.num_bytes
    pixels = 3 * int(np.prod(FACE_SIZE))
    memory = step_memory(symbol, images, FACE_SIZE, recompute=options.recompute)
    return {
        "weights of the backbone": sum(pooled(tensor.num_bytes) for tensor in held),
        "their gradients": sum(pooled(tensor.num_bytes) for tensor in trained.values()),
        **_optimizer(config, trained),
        "initial broadcast": sum(map(pooled, joined.values())) if world_size > 1 else 0,
        # Those of the next update are on their way.
        "images": 2 * pooled(config.data.batch_size * pixels) + pooled(images * pixels * _FLOAT),
        "feature maps": _total(memory.maps),
        "gradients of feature maps": _total(memory.gradients),
        "workspace of convolutions": WORKSPACE * _MIB,
    }


def _optimizer(config: FaceConfig, trained: Mapping[str, Tensor]) -> dict[str, int]:
    """See ``training.update.parameter_updates`` and, for float16, ``mixed_precision``."""
    rule = config.optimizer.optimizer
    states = sum(state.wide for state in STATES[rule].values())
    if config.backbone.dtype == "float32":
        of_one = (pooled(tensor.num_bytes) for tensor in trained.values())
        return {"their optimizer": states * sum(of_one), "arrays of its update": 0}
    # Parameters of one type and weight decay stand end to end.
    lengths = Counter[tuple[int, bool]]()
    for name, tensor in trained.items():
        lengths[tensor.element_size, name.endswith("_weight")] += tensor.elements
    kept = made = 0
    for (element_size, _), length in lengths.items():
        is_half = element_size < _FLOAT
        kept += (states + is_half) * pooled(length * _FLOAT)
        for part in (min(length, PART_SIZE), length % PART_SIZE if length > PART_SIZE else 0):
            made += _UPDATE_ARRAYS[rule] * pooled(part * _FLOAT) + pooled(part * element_size)
    return {"their optimizer": kept, "arrays of its update": made}


def _libraries(world_size: int) -> dict[str, int]:
    nccl = _CHANNELS * _CONNECTIONS * _CONNECTION_BUFFER
    return {
        "CUDA context": _CONTEXT,
        "kernels of MXNet": _MXNET_KERNELS,
        "kernels of cuBLAS and cuDNN": _LIBRARY_KERNELS,
        "buffers of NCCL": nccl if world_size > 1 else 0,
        "Horovod's fusion buffer": _FUSION_BUFFER if world_size > 1 else 0,
    }


def _total(blocks: Counter[int]) -> int:
    return sum(pooled(size) * count for size, count in blocks.items())
