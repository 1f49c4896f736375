"""The head with its class centers in a store on a disk, beside the head with them in memory.

    python -m benchmarks.center_store --classes 2000000 --ratio 0.005 --batch 128 --updates 50

Runs the head of one rank: an update is the sample, the rows, the products, the softmax, the
optimizer and the write. With ``--network`` a backbone computes in each update, too, while rows of
the next one are read; without it the head has nothing to hide them behind. ``--fill`` writes every
row before the measurement and has the system forget it, so that all rows are read from the disk and
none is made. Prints medians of the updates, what share of the time went into waiting for rows, and
the most memory that the process had.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np

from backbones.model import Backbone
from backbones.options import BackboneOptions
from benchmarks.head_case import (
    LEARNING_RATE,
    MARGIN,
    MOMENTUM,
    SCALE,
    SEED,
    WEIGHT_DECAY,
)
from benchmarks.toolkit_head import OneRank
from partial_fc.head import PartialFC
from partial_fc.optimizers import SGD
from partial_fc.options import HeadOptions
from partial_fc.rows.stored import StoredRows
from runtime.command_line import Parser
from runtime.errors import run_program
from runtime.mxnet import mx

# Updates before the measurement: kernels are compiled, memory is taken.
_WARM_UP = 5


def measure(args: argparse.Namespace, store: Optional[Path]) -> dict[str, float]:
    """Run the updates; seconds per update, waiting for rows, and memory."""
    options = HeadOptions(
        margins=(1.0, 0.0, MARGIN),
        scale=SCALE,
        sample_ratio=args.ratio,
        center_store=str(store) if store else None,
        center_memory=args.memory,
    )
    started = time.perf_counter()
    head = PartialFC.create(
        options,
        (args.classes, args.embedding),
        OneRank(),
        mx.cpu(),
        optimizer=SGD(MOMENTUM, WEIGHT_DECAY),
        seed=SEED,
    )
    begun = time.perf_counter() - started
    if args.fill and isinstance(head.rows, StoredRows):
        _fill(head.rows, args)
        _forget(head.rows.options.folder)
    head.rows.export_state(0, head.shard) if store else None
    seconds, waiting = _updates(head, args)
    paused = time.perf_counter()
    head.rows.export_state(args.updates, head.shard) if store else None
    paused = time.perf_counter() - paused
    head.rows.close()
    return {
        "begins in": begun,
        "an update": statistics.median(seconds),
        "slowest": max(seconds),
        "waiting for rows": waiting,
        "pause of a checkpoint": paused,
        "GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def _fill(rows: StoredRows, args: argparse.Namespace) -> None:
    piece = np.full((1 << 15, args.embedding), 1e-3, np.float32)
    for first in range(0, args.classes, len(piece)):
        rows.load("momenta", first, piece[: args.classes - first])


def _forget(folder: Path) -> None:
    """Have the system read the files from the disk."""
    for path in folder.iterdir():
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


class _Backbone:
    """What computes the features of an update: a network, or none for features that are given."""

    def __init__(self, args: argparse.Namespace) -> None:
        generator = np.random.default_rng(SEED)
        shape = args.batch, args.embedding
        self._features = mx.nd.array(generator.standard_normal(shape, dtype=np.float32))
        self._network: Optional[Backbone] = None
        if args.network is not None:
            options = BackboneOptions(network=args.network, embedding_size=args.embedding)
            self._network = Backbone.create(options, image_size=(112, 112), seed=SEED)
            self._network.hybridize()
        pixels = generator.integers(256, size=(args.batch, 3, 112, 112), dtype=np.uint8)
        self._images = mx.nd.array(pixels, dtype="uint8")

    def forward(self, update: int) -> Any:
        """The features [B, D]."""
        if self._network is None:
            return self._features
        self._network.begin_update(update, 0)
        with mx.autograd.record():
            self._features = self._network(self._images)
        return self._features

    def backward(self, gradient: Any) -> None:
        """Compute the gradients of the network."""
        if self._network is not None:
            self._network.backward(self._features, gradient)


def _updates(head: PartialFC, args: argparse.Namespace) -> tuple[list[float], float]:
    generator = np.random.default_rng(SEED)
    backbone = _Backbone(args)
    labels = generator.integers(args.classes, size=(_WARM_UP + args.updates + 1, args.batch))
    seconds: list[float] = []
    waiting: dict[str, Any] = {}
    for update in range(_WARM_UP + args.updates):
        if update == _WARM_UP:
            head.rows.averages()
        started = time.perf_counter()
        head.prepare(labels[update + 1], update + 1)
        features = backbone.forward(update)
        step = head.step(features, labels[update], update, LEARNING_RATE)
        backbone.backward(step.gradient)
        mx.nd.waitall()
        seconds.append(time.perf_counter() - started)
    waiting = head.rows.averages()
    return seconds[_WARM_UP:], sum(waiting.values())


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Measure, and print a table."""
    parser = Parser(description=__doc__)
    parser.add_argument("--classes", type=int, default=1_000_000)
    parser.add_argument("--ratio", type=float, default=0.01)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--embedding", type=int, default=512)
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--memory", type=float, default=HeadOptions.center_memory)
    parser.add_argument("--network", help="a backbone that computes in each update")
    parser.add_argument("--fill", action="store_true")
    parser.add_argument("--in-memory", action="store_true", help="without a store")
    parser.add_argument("--folder", type=Path, help="on the disk to be measured")
    args = parser.parse_args(argv)
    folder = None if args.in_memory else Path(tempfile.mkdtemp(dir=args.folder))
    try:
        for name, value in measure(args, folder).items():
            print(f"{name:<24}{value:10.4f}")
        if folder is not None:
            used = sum(path.stat().st_blocks * 512 for path in folder.iterdir())
            print(f"{'GiB on the disk':<24}{used / 2**30:10.4f}")
    finally:
        if folder is not None:
            shutil.rmtree(folder)
            os.sync()


if __name__ == "__main__":
    run_program(main)
