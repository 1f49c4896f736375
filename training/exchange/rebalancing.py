"""A leg of a run: the epochs in which groups and shares stay as they are.

Most runs are one. With ``--rebalance`` all workers meet after so many epochs, and each leg after
the first begins where the one before has ended, with other groups and through other shares. Updates
are counted on by the number of worker 0, which names checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from training.log.stopwatch import COMMUNICATION
from training.log.throughput import Throughput


@dataclass(frozen=True)
class Leg:
    """Where a leg begins, the same for all workers."""

    epoch: int = 0
    """Epochs that earlier legs have done."""
    update: int = 0
    """Updates that they have done."""
    best: float = 0.0
    """The best accuracy so far."""
    checkpoint: Optional[Path] = None
    """The last one that they have saved, if this worker saves any."""


def own_speed(throughput: Optional[Throughput], contributors: int) -> float:
    """Images/s of a worker while it works, not while it waits for others; 0 if nobody knows.

    Waiting for its own data is work: a machine whose disk is slow is slow.

    Args:
        throughput: of its leg, with the images of all contributors.
        contributors: workers whose batches make one update.
    """
    if throughput is None:
        return 0.0
    seconds = throughput.seconds - throughput.parts[COMMUNICATION]
    return throughput.images / contributors / max(seconds, 1e-9)
