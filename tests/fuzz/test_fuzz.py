"""Some damaged inputs for every reader; ``make fuzz`` feeds many."""

from __future__ import annotations

import random

from tests.fuzz import campaign

# Those that need MXNet take seconds to start; they have a small share.
SHARES = {
    "rec": 2, "idx": 2, "property": 1, "cache": 1, "lst": 3, "bin": 4, "image": 3,
    "params": 1, "centers": 2, "symbol": 1, "graphs": 2, "onnx": 2, "groups": 1, "manifest": 2,
    "hosts": 1, "hostfile": 1,
    "ijb-faces": 1, "ijb-pairs": 2, "ijb-subjects": 1, "ijb-features": 1,
    "state-dict": 2, "npy": 2, "metrics": 1, "links": 1,
}  # fmt: skip


def test_no_input_crashes_hangs_or_runs() -> None:
    results = campaign.run(SHARES, 2000, seed=random.Random(0).randrange(1000), processes=2)
    assert all(result.is_clean for result in results.values()), campaign.describe(results, 0)
    assert sum(result.refused for result in results.values()) > 1000
    assert all(result.inputs == result.accepted + result.refused for result in results.values())
