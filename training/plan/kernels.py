"""Measures a rank's share of what ``--calibrate`` asks for: products, rows, disk, collectives.

A process of its own for each rank, started by ``training.plan.calibrate``: MXNet reads its threads
while it is imported, and ranks that compute at the same time share the memory's bandwidth. All
ranks measure at the same time, behind a barrier, and the slowest counts.

    python -m training.plan.kernels REQUEST ANSWER

reads a table of ``Request``, or null for the collectives alone; rank 0 writes a table of rates.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Optional

import numpy as np

from data import decoding
from parallel.world import LoneWorld, join_ranks
from partial_fc import optimizers
from partial_fc.blocks import Products
from partial_fc.head import TYPES, PartialFC, usable_dtype
from partial_fc.options import HeadOptions
from partial_fc.rows.host import HostRows
from partial_fc.shard import Sample, Sampler, Shard
from partial_fc.store.center_store import CenterStore, StoreOptions
from partial_fc.store.records import Layout, Part, Staged
from runtime.errors import ConfigError
from runtime.files import open_regular
from runtime.mxnet import mx
from training.config.faces import FaceOptimizerOptions

# Of the head: 128 MiB of centers of 512 numbers, more than any cache, from which 8,192 are sampled.
_CLASSES, _SAMPLED, _BATCH = 65_536, 8_192, 128
_ROUNDS = 5
_FEW_CLASSES, _FEW_IMAGES = 64, 4
# Of a store: so many classes that hardly one is sampled again.
_STORED_CLASSES, _STORED, _STORE_MEMORY = 1 << 20, 4_096, 1 << 30
_SIDE = 112
_IMAGES = 200
# Of a file that is read from the disk.
_FILE = 2**26
_SMALL, _LARGE = 16, 2**22


@dataclass(frozen=True)
class Request:
    """What is to be measured."""

    embedding_size: int
    head_dtype: str
    optimizer: str
    record_file: Optional[str]
    """Whose disk is read; None for a temporary file."""
    center_store: Optional[str]
    """On whose disk rows are read and written, beside it; None for no store."""


def main() -> None:
    """Measure on this rank; rank 0 writes what the slowest of all took."""
    asked = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    world = join_ranks()
    rates = _collectives(world)
    if asked is not None:
        request = Request(**asked)
        rates.update(**_head(request, world), **_input(request, world), **_store(request, world))
    if world.rank == 0:
        Path(sys.argv[2]).write_text(json.dumps(rates), encoding="utf-8")
    world.barrier()


def _seconds(
    call: Callable[[], object],
    world: Any,
    rounds: int = _ROUNDS,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """The median over rounds of the seconds that the slowest rank takes, after one to warm up."""
    taken = []
    for _ in range(rounds + 1):
        world.barrier()
        start = clock()
        call()
        mx.nd.waitall()
        taken.append(clock() - start)
    slowest = mx.nd.array([statistics.median(taken[1:])])
    slowest = world.allreduce(slowest, "calibrate.seconds", op="max")
    return float(slowest.asscalar())


def _head(request: Request, world: Any) -> dict[str, float]:
    size = request.embedding_size
    dtype = usable_dtype(request.head_dtype, mx.cpu())
    # Momentum and weight decay have values, so that their arithmetic is done.
    chosen = FaceOptimizerOptions(optimizer=request.optimizer)
    rule = optimizers.build(chosen)
    rng = np.random.default_rng(world.rank)
    centers = rng.standard_normal((_CLASSES, size), dtype=np.float32)
    rows = HostRows(centers, rule)
    sampler = Sampler(Shard(0, 1, _CLASSES), _SAMPLED / _CLASSES, seed=1)
    labels = rng.integers(_CLASSES, size=_BATCH)
    sample = sampler.sample(labels, 1)
    placed = rows.place(Sample(sample.rows, sample.targets, sample.local))
    products = Products(TYPES[dtype])
    products.begin((_BATCH, sample.rows.size, size), mx.cpu())
    features = mx.nd.array(rng.standard_normal((_BATCH, size), dtype=np.float32))
    products.set_features(features)

    def gather() -> list[Any]:
        return [
            rows.gather(placed, block.part, block.units_KD, block.gradient_KD)
            for block in products.blocks
        ]

    gathered = gather()
    targets_B = mx.nd.zeros(_BATCH)

    def multiply() -> None:
        for block in products.blocks:
            products.multiply(block)
        products.features_gradient()
        for block in products.blocks:
            products.rows_gradient(block)

    def update() -> None:
        for one in gathered:
            rows.update(one, 1e-6)

    def pass_over_logits() -> None:
        rows.exponentiate(products.logits, placed, targets_B)

    count = sample.rows.size
    return {
        "gathered": count * size / _seconds(gather, world),
        "operations": 6 * _BATCH * count * size / _seconds(multiply, world),
        "updated": count * size / _seconds(update, world),
        "logits": _BATCH * count / _seconds(pass_over_logits, world),
        "drawn": count / _seconds(lambda: sampler.sample(labels, 2), world),
        "head_seconds": _seconds(_small_step(request, dtype), world, rounds=20),
    }


def _small_step(request: Request, dtype: str) -> Callable[[], object]:
    """A step of the head without collectives on hardly any rows."""
    options = HeadOptions(head_dtype=dtype)
    rule = optimizers.build(FaceOptimizerOptions(optimizer=request.optimizer))
    shape = _FEW_CLASSES, request.embedding_size
    head = PartialFC.create(options, shape, LoneWorld(), mx.cpu(), optimizer=rule, seed=1)
    features = mx.nd.random.normal(shape=(_FEW_IMAGES, request.embedding_size))
    labels = np.arange(_FEW_IMAGES)
    return partial(head.step, features, labels, 1, 1e-6)


def _store(request: Request, world: Any) -> dict[str, float]:
    """Rows per second of a processor; each rank has a store of its own, of rows that are new."""
    if request.center_store is None:
        return {}
    layout = Layout(
        request.embedding_size,
        optimizers.build(FaceOptimizerOptions(optimizer=request.optimizer)).states,
    )
    shard = Shard(0, 1, _STORED_CLASSES)
    rng = np.random.default_rng(world.rank)
    samples = [np.unique(rng.integers(shard.size, size=_STORED)) for _ in range(_ROUNDS + 1)]
    with _folder_beside(Path(request.center_store)) as folder:
        store = CenterStore(StoreOptions(folder, _STORE_MEMORY, 1), shard, layout, LoneWorld())
        store.begin("calibrate")
        staged = Staged(layout, _STORED)

        def exchange() -> None:
            classes = samples.pop()
            part = Part(staged.first(classes.size), classes, np.arange(classes.size))
            store.wait(store.read(part))
            store.write(part)
            store.wait()

        seconds = _seconds(exchange, world, clock=time.process_time)
        store.close()
    return {"stored": _STORED / seconds}


@contextmanager
def _folder_beside(store: Path) -> Iterator[Path]:
    """A new folder in that of a store, or in the nearest above it that exists."""
    place = next(path for path in (store, *Path(os.path.realpath(store)).parents) if path.is_dir())
    try:
        made = tempfile.TemporaryDirectory(prefix="calibrate-", dir=place)
    except OSError as error:
        raise ConfigError(
            f"--center-store {store}: {place} cannot be written ({error.strerror}); choose another "
            "folder, or make this one writable"
        ) from None
    with made as folder:
        yield Path(folder)


def _input(request: Request, world: Any) -> dict[str, float]:
    rng = np.random.default_rng(1)
    # Smooth as a face: noise would take several times as long.
    coarse = rng.integers(256, size=(8, 8, 3)).astype(np.uint8)
    image = np.kron(coarse, np.ones((_SIDE // 8, _SIDE // 8, 1), np.uint8))
    encoded = decoding.encode(image, lossless=False)

    def decode() -> None:
        for _ in range(_IMAGES):
            decoding.decode_rgb(encoded)

    decoded = _IMAGES / _seconds(decode, world)
    return {"decoded": decoded, "read_bytes": _read_speed(request.record_file, world)}


def _read_speed(record_file: Optional[str], world: Any) -> float:
    """Bytes per second from the disk, of a file whose pages are dropped from memory first."""
    with tempfile.NamedTemporaryFile() as made:
        if record_file is None:
            made.write(os.urandom(_FILE))
            made.flush()
            os.fsync(made.fileno())
        with open_regular(record_file or made.name, buffering=0) as file:
            size = min(_FILE, os.fstat(file.fileno()).st_size)

            def read() -> None:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                file.seek(0)
                left = size
                while left > 0:
                    left -= len(file.read(min(left, 2**20))) or left

            return size / _seconds(read, world, rounds=2)


def _collectives(world: Any) -> dict[str, float]:
    if world.size == 1:
        return {}

    def reduce(array: Any, name: str) -> None:
        world.allreduce(array, name)
        world.wait(array)

    small, large = mx.nd.ones((_SMALL,)), mx.nd.ones((_LARGE,))
    base = _seconds(lambda: reduce(small, "calibrate.small"), world, rounds=20)
    seconds = _seconds(lambda: reduce(large, "calibrate.large"), world)
    sent = 2 * (world.size - 1) / world.size * 4 * _LARGE
    return {"collective_seconds": base, "sent_bytes": sent / max(seconds - base, 1e-9)}


if __name__ == "__main__":
    from runtime.errors import run_program

    def program() -> int:
        """Measure, and end well."""
        main()
        return 0

    run_program(program)
