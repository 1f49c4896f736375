"""Some damaged inputs for every reader; ``make fuzz`` feeds many."""

from __future__ import annotations

import random

import pytest

from tests.fuzz import campaign
from tests.fuzz.readers import READERS

# Those that need MXNet take seconds to start; they have a small share.
SHARES = {
    **dict.fromkeys(READERS, 1), "rec": 2, "idx": 2, "lst": 3, "bin": 4, "image": 3, "centers": 2,
    "graphs": 2, "onnx": 2, "manifest": 2, "ijb-pairs": 2, "state-dict": 2, "npy": 2,
}  # fmt: skip


@pytest.mark.thorough
def test_no_input_crashes_hangs_or_runs() -> None:
    results = campaign.run(SHARES, 800, seed=random.Random(0).randrange(1000), processes=2)
    assert all(result.is_clean for result in results.values()), campaign.describe(results, 0)
    assert sum(result.refused for result in results.values()) > 400
    assert all(result.inputs == result.accepted + result.refused for result in results.values())
