"""The memory of a rank on a CPU, item by item, computed or measured.

The head is counted from its shapes. The backbone with its feature maps and what libraries take
beside it come from ``--calibrate`` where that has run this network here, and otherwise from sizes
in a table and constants that were measured on another machine. Nothing here loads MXNet, except for
``--freeze``, whose patterns fit names that only the graph has.

Shapes: B global batch, D embedding, S sampled rows of a shard.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Optional

import numpy as np

import backbones
from partial_fc.shard import STATES, Shard
from runtime.errors import ConfigError
from training.config.faces import FaceConfig
from training.plan.calibration import NetworkCost
from training.plan.items import ASSUMED, COMPUTED, FLOAT, MEASURED, BackboneBytes, Item
from training.plan.placement import held_rows

# Measured on a CPU: the memory of Python, MXNet, Horovod and Numba before training starts, and the
# copies of the backbone that they keep: oneDNN's of weights and gradients in its own layout,
# Horovod's of the gradients that it sends together.
_PROGRAM = 350 * 2**20
_LIBRARY_COPIES = 2
# Rows that bfloat16's products take at a time (partial_fc.blocks, which loads MXNet).
_BLOCK_ROWS = 2048
_NARROW = 2


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
    logits, and a few matrices of the size of the features. With ``--head-dtype bfloat16`` rows and
    logits have two bytes, and the gradient, like the float32 sums of a product, is that of a block
    of rows. With ``--center-store`` the rows of three samples are in memory, and marks of the rest.
    """
    global_batch = config.data.batch_size * shard.world_size
    embedding, rows = config.backbone.embedding_size, sampled_rows(config, shard)
    held = held_rows(config, shard, rows)
    features = 4 * global_batch * embedding * FLOAT
    if config.head.head_dtype == "bfloat16":
        block = min(rows, _BLOCK_ROWS)
        working = (rows + block) * embedding * _NARROW
        # Each block adds its own share to the gradient of the features.
        features += -(-rows // _BLOCK_ROWS) * global_batch * embedding * _NARROW
        logits = global_batch * (rows * _NARROW + block * FLOAT)
    else:
        working = 2 * rows * embedding * FLOAT
        logits = global_batch * rows * FLOAT
    return HeadMemory(held.centers, held.states, working + held.stages, logits, features)


def checkpoint_bytes(config: FaceConfig, shard: Shard) -> int:
    """The copy that a rank makes for its checkpoints, and keeps; rank 0's is the largest.

    Its centers and their states, and on rank 0 the backbone's parameters and their states.
    """
    if not config.run.keep:
        return 0
    held = held_rows(config, shard, sampled_rows(config, shard))
    size = backbone_bytes(config)
    backbone = size.all + _wide_states(config) * size.trained
    return held.copied + (backbone if shard.rank == 0 else 0)


def rank_memory(
    config: FaceConfig, shard: Shard, measured: Optional[NetworkCost] = None
) -> list[Item]:
    """The items of a rank's memory on a CPU, without the copy for checkpoints."""
    head, size = head_memory(config, shard), backbone_bytes(config)
    backbone = backbone_memory(config)
    if measured is None:
        network, basis = config.backbone, COMPUTED
        activations = backbones.activation_bytes(
            network.network,
            config.images_per_pass,
            recompute=network.recompute,
            output=network.net_output,
            dtype=network.dtype,
        )
        libraries = _PROGRAM + _LIBRARY_COPIES * size.all
    else:
        basis = MEASURED
        activations = round(measured.bytes_per_image * config.images_per_pass)
        libraries = round(measured.base_bytes) - backbone
    rows = f"{sampled_rows(config, shard):,} sampled rows"
    return [
        Item("class_centers", "class centers", head.centers, COMPUTED),
        Item("optimizer_states", "their optimizer states", head.states, COMPUTED),
        Item("sampled_rows", rows, head.rows, COMPUTED),
        Item("logits", "logits", head.logits, COMPUTED),
        Item("features", "features", head.features, COMPUTED),
        Item("backbone", "backbone", backbone, COMPUTED),
        Item("activations", "its activations", activations, basis),
        Item(
            "libraries",
            "libraries and their copies",
            libraries,
            ASSUMED if measured is None else basis,
        ),
    ]


def backbone_memory(config: FaceConfig) -> int:
    """Parameters; gradients of those that are trained, and the states of their optimizer."""
    size = backbone_bytes(config)
    return size.all + (1 + _wide_states(config)) * size.trained


def backbone_bytes(config: FaceConfig) -> BackboneBytes:
    """The float32 parameters of the backbone.

    Raises:
        ConfigError: nothing fits a pattern of ``--freeze``, or MXNet cannot be loaded for it.
    """
    network = config.backbone
    shape = network.network, network.embedding_size, network.net_output
    every = FLOAT * backbones.parameter_count(*shape)
    frozen = FLOAT * _frozen_count(*shape, network.frozen) if network.frozen else 0
    return BackboneBytes(every, every - frozen)


@lru_cache(maxsize=None)
def _frozen_count(
    network: str, embedding_size: int, output: Optional[str], patterns: tuple[str, ...]
) -> int:
    """The numbers in the parameters that patterns fit; running statistics are not among them."""
    try:
        # Loads MXNet, which has the graph and its names.
        from backbones.graph import frozen
        from backbones.graph.memory import tensor_sizes
        from backbones.model import FACE_SIZE
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"--freeze {','.join(patterns)} names parameters of a graph, which MXNet has, and it "
            f"cannot be loaded here: {error}; plan without --freeze, which counts more"
        ) from None
    symbol = backbones.build(network, embedding_size=embedding_size, output=output)
    sizes = tensor_sizes(symbol, (1, 3, *FACE_SIZE))
    fixed = frozen.find(patterns, symbol) & set(symbol.list_arguments())
    return int(np.sum([sizes[name].elements for name in fixed], dtype=np.int64))


def _wide_states(config: FaceConfig) -> int:
    """Arrays of the size of a parameter that the optimizer keeps."""
    return sum(state.wide for state in STATES[config.optimizer.optimizer].values())
