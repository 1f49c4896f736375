"""The arrays that a step makes on ``mx.cpu(1)``, as MXNet's profiler sees them allocated.

A program, because two things are chosen before MXNet's import: the engine that runs one operator
after the other, so that the order of allocations is known; and no oneDNN, which makes arrays of
its own.

    python -m tests.support.allocations NETWORK BATCH

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


def measure(network: str, batch_size: int) -> Counter[int]:
    settings = {"MXNET_ENGINE_TYPE": "NaiveEngine", "MXNET_MKLDNN_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.allocations", network, str(batch_size)],
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


def two_steps(name: str, batch_size: int) -> Callable[[Any], None]:
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

    backbone = Backbone.create(BackboneOptions(network=name), ctx=mx.cpu(1))
    backbone.hybridize()
    mx.nd.waitall()
    return work


if __name__ == "__main__":
    print(json.dumps(most_at_a_time(two_steps(sys.argv[1], int(sys.argv[2])))))
