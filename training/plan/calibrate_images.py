"""``classify.py --dry-run --calibrate``: short runs of the same options, of two batches.

The peak of a process and the time of an update grow in a straight line with the images of a batch
(``training.plan.runs``). The runs take the user's own data set, so that their time contains
reading and decoding where these compete with the network for processors.
"""

from __future__ import annotations

from collections.abc import Iterator

from runtime import options
from training.config.images import ImageConfig
from training.plan import keys
from training.plan.calibration import Calibration
from training.plan.keys import Cell
from training.plan.runs import (
    IMAGES,
    RunCost,
    collective_entries,
    kernel_rates,
    line_through,
    measure,
    short_run,
)

# What a run of a few updates is not to do, and what a plan does not depend on.
_PLAIN = {
    **{"keep": 0, "resume": "never", "frequent": 1, "eval_frequency": 10**9, "save_frequency": 0},
    **{"lr": 1e-4, "lr_schedule": "cosine", "lr_steps": ()},
    **{"lr_factor": None, "warmup_epochs": 0.0, "pretrained": None, "last_gamma": False},
    **{"dry_run": False, "calibrate": False, "json": False, "world_size": None},
}


def calibrate(config: ImageConfig) -> Calibration:
    """Measure what the plan of this configuration needs, add it to the file and return all of it.

    Raises:
        ConfigError: a run failed, or the file cannot be read or written.
    """
    return measure(config.dry_run.world_size, lambda cell: _entries(config, cell))


def _entries(config: ImageConfig, cell: Cell) -> Iterator[tuple[str, object]]:
    few, many = IMAGES
    small, large = _run(config, cell, few), _run(config, cell, many)
    key = keys.classifier_key(config, cell)
    yield "networks", line_through(key, (few, small), (many, large))
    if cell.ranks > 1:
        yield from collective_entries(cell, kernel_rates(cell, None))


def _run(config: ImageConfig, cell: Cell, images: int) -> RunCost:
    chosen = options.replace(config, **{**_PLAIN, "batch_size": images})
    return short_run("classify.py", chosen, cell, ("communication",))
