"""``--dry-run --calibrate``: measures on this host what a plan is made of, before it is made.

The memory and the time of a backbone are those of ``train.py`` itself, run twice for a few updates
on batches from memory: a computed graph does not know what oneDNN, the memory allocator and Horovod
take beside it. Two batches, of 8 and of 32 images, make a line (``training.plan.runs``), and a plan
for 64 images needs no run on 64. The head is not in them: its arrays are exact, and its time
follows from the rates that ``training.plan.kernels`` measures.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Optional

from partial_fc.shard import Shard
from runtime import options
from training.config.faces import FaceConfig
from training.plan import keys
from training.plan.calibration import Calibration, HeadRates, InputRates, StoreRates
from training.plan.keys import Cell
from training.plan.memory import head_memory
from training.plan.runs import (
    IMAGES,
    UPDATES,
    RunCost,
    collective_entries,
    kernel_rates,
    line_through,
    measure,
    short_run,
)

# With --recompute the line bends: of the arrays that each part gets and gives back, the allocator
# keeps small ones and returns large ones, so larger batches are measured.
_IMAGES_IN_PARTS = 16, 64
# So few that the head hardly matters.
_CLASSES = 1000
# What a run of a few updates is not to do, and what a plan does not depend on.
_PLAIN = {
    **{"rec": (".",), "debug": True, "val_targets": (), "best": None, "keep": 0},
    **{"resume": "never", "verbose": 10**9, "save_interval": 0, "frequent": 1, "epochs": None},
    **{"warmup": 0, "lr": 1e-4, "center_lr": None, "pretrained": None, "pretrained_centers": None},
    **{"teacher": None, "sample_ratio": 1.0, "accumulate": 1, "num_classes": _CLASSES},
    **{"dry_run": False, "calibrate": False, "json": False, "gpu": False, "world_size": None},
    **{"memory": None, "dataset": None, "num_images": None, "filter_threshold": 1.0},
    # A store is the user's, perhaps with the centers of a run.
    **{"center_store": None},
    **{"max_update": UPDATES, "lr_schedule": "cosine", "lr_steps": (), "lr_factor": None},
}


def calibrate(config: FaceConfig) -> Calibration:
    """Measure what the plan of this configuration needs, add it to the file and return all of it.

    Raises:
        ConfigError: a run failed, or the file cannot be read or written.
    """
    return measure(config.dry_run.world_size, lambda cell: _entries(config, cell))


def _entries(config: FaceConfig, cell: Cell) -> Iterator[tuple[str, object]]:
    few, many = _IMAGES_IN_PARTS if config.backbone.recompute else IMAGES
    small, large = _run(config, cell, few), _run(config, cell, many)
    key = keys.network_key(config, cell)
    yield "networks", line_through(key, (few, small), (many, large))
    yield from _rates(config, cell)


def _run(config: FaceConfig, cell: Cell, images: int) -> RunCost:
    """Train for a few updates; without the bytes of the head, which a plan counts by itself."""
    chosen = options.replace(config, **{**_PLAIN, "batch_size": images})
    head = head_memory(chosen, Shard(0, cell.ranks, _CLASSES)).total
    cost = short_run("train.py", chosen, cell, ("head", "communication", "waiting"))
    return cost._replace(peak=cost.peak - head)


def _rates(config: FaceConfig, cell: Cell) -> list[tuple[str, object]]:
    request = {
        "embedding_size": config.backbone.embedding_size,
        "head_dtype": config.head.head_dtype,
        "optimizer": config.optimizer.optimizer,
        "record_file": _record_file(config),
        "center_store": config.head.center_store,
    }
    rates = kernel_rates(cell, request)
    head = {name: rates[name] for name in ("operations", "gathered", "updated", "logits", "drawn")}
    entries: list[tuple[str, object]] = [
        (
            "heads",
            HeadRates(keys.head_key(config, cell), **head, base_seconds=rates["head_seconds"]),
        ),
        (
            "inputs",
            InputRates(keys.input_key(config), rates["read_bytes"], rates["decoded"]),
        ),
    ]
    if config.head.center_store is not None:
        entries.append(("stores", StoreRates(keys.store_key(config, cell), rates["stored"])))
    return [*entries, *collective_entries(cell, rates)]


def _record_file(config: FaceConfig) -> Optional[str]:
    if not config.data.rec:
        return None
    given = Path(config.data.rec[0])
    file = given if given.suffix == ".rec" else given / "train.rec"
    return str(file.resolve()) if file.is_file() else None
