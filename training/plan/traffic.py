"""The collectives of an update: what each sends, by its name.

Shapes: B global batch, D embedding.
"""

from __future__ import annotations

from training.config.faces import FaceConfig
from training.plan.items import FLOAT
from training.plan.memory import backbone_bytes

_LABEL = 8


def collective_bytes(config: FaceConfig, world_size: int) -> dict[str, int]:
    """The size of each collective's result in one update, by its name.

    The gradients of the backbone are sent parameter by parameter; their sum is given, without those
    of frozen parameters. Those of a float16 network have two bytes, but for a thousandth
    (BatchNorm).
    """
    embedding = config.backbone.embedding_size
    gradients = backbone_bytes(config).trained
    gradients //= 2 if config.backbone.dtype == "float16" else 1
    global_batch = config.data.batch_size * world_size
    sizes = {
        "allgather head.features": global_batch * embedding * FLOAT,
        "allgather head.labels": global_batch * _LABEL,
        "allreduce head.maximum": global_batch * FLOAT,
        "allreduce head.denominator": 2 * global_batch * FLOAT,
        "allreduce head.gradient": global_batch * embedding * FLOAT,
        "allreduce of the backbone": gradients,
    }
    if config.teacher.teacher is not None:
        sizes["allreduce teacher.loss"] = FLOAT
    for name, numbers in config.head.collectives.items():
        sizes[name] = numbers * global_batch * FLOAT
    return sizes
