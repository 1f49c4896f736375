"""Some damaged inputs for every reader; ``make fuzz`` feeds many."""

from __future__ import annotations

import random

import pytest

from tests.fuzz import __main__ as campaign
from tests.fuzz.readers import READERS


@pytest.mark.thorough
def test_no_input_crashes_hangs_or_runs() -> None:
    shares = dict.fromkeys(READERS, 1)
    results = campaign.run(shares, 800, seed=random.Random(0).randrange(1000), processes=2)
    assert all(result.is_clean for result in results.values()), campaign.describe(results, 0)
    assert sum(result.refused for result in results.values()) > 400
    assert all(result.inputs == result.accepted + result.refused for result in results.values())
