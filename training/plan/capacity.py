"""How far memory reaches: the most classes that a rank can hold a share of, and a table of choices.

Shapes: see ``training.plan.memory``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Callable, NamedTuple, Optional

from partial_fc.shard import Shard
from runtime import options
from training.config.faces import FaceConfig
from training.plan.calibration import Calibration
from training.plan.items import seconds, total
from training.plan.keys import Cell
from training.plan.memory import checkpoint_bytes, rank_memory
from training.plan.roofline import Measured, update_time

_GIB = 2**30
# More identities than there are people.
_MOST = 2**35
# Of a sample, beside the configuration's own.
_RATIOS = (1.0, 0.1, 0.01)


class Choice(NamedTuple):
    """A row of the table; ``num_classes`` is None without a memory that limits it."""

    sample_ratio: float
    batch_size: int
    ranks: int
    num_bytes: int
    seconds: Optional[float]
    num_classes: Optional[int]


def memory_limit(config: FaceConfig, world_size: int) -> Optional[int]:
    """Bytes that a rank may take: those of ``--memory``, else a rank's part of this machine's.

    None with ``--gpu`` without ``--memory``: the GPU that is planned for need not be here.
    """
    plan = config.dry_run
    if plan.memory is not None:
        return round(plan.memory * _GIB)
    if plan.gpu:
        return None
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return machine // Cell.of(world_size).ranks


def largest(fits: Callable[[int], bool], ranks: int) -> int:
    """The largest number of classes that fits, at least one per rank; 0 if not even those do."""
    low, high = ranks, _MOST
    if not fits(low):
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def host_bytes(config: FaceConfig, world_size: int, num_classes: int, measured: Measured) -> int:
    """The memory of rank 0, which has the most, on a CPU, with the copy for checkpoints."""
    shard = Shard(0, world_size, num_classes)
    return total(rank_memory(config, shard, measured.network)) + checkpoint_bytes(config, shard)


def choices(
    config: FaceConfig, world_size: int, found: Calibration, limit: Optional[int]
) -> Iterator[Choice]:
    """The table over sample ratio, batch and ranks: those of the plan, and twice of the latter."""
    num_classes = config.data.num_classes
    assert num_classes is not None
    batch = config.data.batch_size
    ratios = sorted({config.head.sample_ratio, *_RATIOS}, reverse=True)
    for ranks in (world_size, 2 * world_size):
        for size in (batch, 2 * batch) if ranks <= num_classes else ():
            for ratio in ratios:
                chosen = options.replace(config, batch_size=size, sample_ratio=ratio)
                yield choice(chosen, ranks, found, limit)


def choice(config: FaceConfig, ranks: int, found: Calibration, limit: Optional[int]) -> Choice:
    """One row."""
    num_classes = config.data.num_classes
    assert num_classes is not None
    measured = Measured.of(config, ranks, found)
    durations = update_time(config, Shard(0, ranks, num_classes), measured)
    reach = None
    if limit is not None:

        def fits(classes: int) -> bool:
            return host_bytes(config, ranks, classes, measured) <= limit

        reach = largest(fits, ranks)
    return Choice(
        config.head.sample_ratio,
        config.data.batch_size,
        ranks,
        host_bytes(config, ranks, num_classes, measured),
        None if durations is None else seconds(durations),
        reach,
    )
