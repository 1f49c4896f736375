"""The arrays that a step makes on ``mx.cpu(1)``, as MXNet's profiler sees them allocated.

A program, because two things are chosen before MXNet's import: the engine that runs one operator
after the other, so that the order of allocations is known; and no oneDNN, which makes arrays of
its own.

    python -m tests.support.allocations network NAME BATCH [OUTPUT] [recompute]
    python -m tests.support.allocations head CLASSES BATCH RATIO OPTIMIZER LOSS FILTER
    python -m tests.support.allocations optimizer NETWORK DTYPE OPTIMIZER

prints, by size in bytes, the most arrays that existed at a time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def measure(*arguments: object) -> Counter[int]:
    """Run this program."""
    settings = {"MXNET_ENGINE_TYPE": "NaiveEngine", "MXNET_MKLDNN_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.allocations", *map(str, arguments)],
        cwd=ROOT, env={**os.environ, **settings},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Counter({int(size): count for size, count in json.loads(done.stdout).items()})


def most_at_a_time(work: Callable[[Any], None]) -> Counter[int]:
    """Call ``work`` with the device; return the most arrays of each size that existed on it."""
    from runtime.mxnet import mx

    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        only_memory = {f"profile_{kind}": False for kind in ("symbolic", "imperative", "api")}
        mx.profiler.set_config(profile_memory=True, filename=str(trace), **only_memory)
        mx.profiler.set_state("run")
        work(mx.cpu(1))
        mx.nd.waitall()
        mx.profiler.set_state("stop")
        mx.profiler.dump()
        events = json.loads(trace.read_text())["traceEvents"]
    in_use = [
        (event["ts"], number, next(iter(event["args"].values())))
        for number, event in enumerate(events)
        if event.get("ph") == "C" and event["name"] == "Memory: cpu/1"
    ]
    assert in_use, "the profiler saw no array"
    live: Counter[int] = Counter()
    most: Counter[int] = Counter()
    before = 0
    for _, _, after in sorted(in_use):
        size = abs(after - before)
        live[size] += 1 if after > before else -1
        most[size] = max(most[size], live[size])
        before = after
    return most


def network_step(name: str, batch_size: int, words: list[str]) -> Callable[[Any], None]:
    """Two steps of a backbone."""
    from backbones.model import Backbone
    from backbones.options import BackboneOptions
    from runtime.mxnet import mx

    def work(device: Any) -> None:
        images = mx.nd.zeros((batch_size, 3, 112, 112), ctx=device)
        for _ in range(2):
            with mx.autograd.record():
                features = backbone(images)
            mx.nd.waitall()
            backbone.backward(features, mx.nd.ones_like(features))
            mx.nd.waitall()

    output = next((word for word in words if word != "recompute"), None)
    options = BackboneOptions(network=name, net_output=output, recompute="recompute" in words)
    backbone = Backbone.create(options, ctx=mx.cpu(1))
    backbone.hybridize()
    mx.nd.waitall()
    return work


def head_step(
    shape: tuple[int, int], ratio: float, optimizer: str, loss: str, threshold: float
) -> Callable[[Any], None]:
    """Three steps of a head, centers and states included; the shape is classes and batch."""
    import numpy as np

    from partial_fc import optimizers
    from partial_fc.head import PartialFC
    from partial_fc.options import HeadOptions
    from runtime.mxnet import mx
    from tests.support.thread_world import run_ranks
    from training.config.faces import FaceOptimizerOptions

    num_classes, batch_size = shape
    options = HeadOptions(sample_ratio=ratio, loss=loss, filter_threshold=threshold)

    def work(device: Any) -> None:
        def train(world: Any) -> None:
            rule = optimizers.build(FaceOptimizerOptions(optimizer=optimizer))
            centers = num_classes, 512
            head = PartialFC.create(options, centers, world, device, optimizer=rule, seed=1)
            generator = np.random.default_rng(0)
            for update in range(3):
                numbers = generator.standard_normal((batch_size, 512), dtype=np.float32)
                labels = generator.integers(num_classes, size=batch_size)
                head.step(mx.nd.array(numbers, ctx=device), labels, update, 0.1)
                mx.nd.waitall()

        run_ranks(1, train)

    return work


def optimizer_updates(name: str, dtype: str, optimizer: str) -> Callable[[Any], None]:
    """Two updates of a backbone, whose gradients are zero."""
    from backbones.model import Backbone
    from backbones.options import BackboneOptions
    from runtime.mxnet import mx
    from tests.support.thread_world import run_ranks
    from training.config.faces import FaceOptimizerOptions
    from training.update.optimizer import BackboneOptimizer

    def work(_: Any) -> None:
        def train(world: Any) -> None:
            options = FaceOptimizerOptions(optimizer=optimizer)
            updates = BackboneOptimizer(options, parameters, world, dtype=dtype)
            for update in range(2):
                for parameter in trained:
                    # As the backward pass leaves it.
                    parameter.data()._fresh_grad = True
                updates.reduce(update)
                updates.update(update, 0.1)
                mx.nd.waitall()

        run_ranks(1, train)

    backbone = Backbone.create(BackboneOptions(network=name, dtype=dtype), ctx=mx.cpu(1))
    parameters = backbone.parameters
    trained = [one for one in parameters.values() if one.grad_req != "null"]
    for parameter in trained:
        parameter.grad()[:] = 0
    mx.nd.waitall()
    return work


if __name__ == "__main__":
    kind, first, *rest = sys.argv[1:]
    if kind == "network":
        step = network_step(first, int(rest[0]), rest[1:])
    elif kind == "head":
        step = head_step(
            (int(first), int(rest[0])), float(rest[1]), rest[2], rest[3], float(rest[4])
        )
    else:
        step = optimizer_updates(first, *rest)
    print(json.dumps(most_at_a_time(step)))
