"""The operations that MXNet's engine runs for a piece of a program, counted by its profiler.

Each costs the host time to queue and the device a launch, so their number in an update is pinned.
The engine's own cleaning up and Python's waits are left out: their number differs between runs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runtime.mxnet import mx

_NOT_COUNTED = ("DeleteVariable", "DeleteOperator", "WaitForVar")


@contextmanager
def counted_operations(folder: Path) -> Iterator[Counter[str]]:
    """Count the operations within the context by name; the counter is filled at its end.

    The engine does not join operations to larger ones meanwhile.

    Args:
        folder: where the profiler may leave a file, at the end of the process.
    """
    found: Counter[str] = Counter()
    mx.profiler.set_config(
        profile_imperative=True,
        profile_symbolic=True,
        aggregate_stats=True,
        filename=str(folder / "profile.json"),
    )
    mx.nd.waitall()
    mx.profiler.dumps(reset=True)
    mx.profiler.set_state("run")
    try:
        yield found
        mx.nd.waitall()
    finally:
        mx.profiler.set_state("stop")
        table = json.loads(mx.profiler.dumps(reset=True, format="json"))["Time"]
        found.update({name: row["Count"] for name, row in table.get("operator", {}).items()})
        for name in _NOT_COUNTED:
            found.pop(name, None)
