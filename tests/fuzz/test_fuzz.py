"""Some damaged inputs for every reader; ``make fuzz`` feeds many."""

from __future__ import annotations

import random

import pytest

from tests.fuzz import campaign
from tests.fuzz.graph_inputs import make_graph
from tests.fuzz.mutate import make_input
from tests.fuzz.onnx_inputs import make_onnx

# Those that need MXNet take seconds to start; they have a small share.
SHARES = {
    "rec": 2, "idx": 2, "property": 1, "cache": 1, "lst": 3, "bin": 4, "image": 3,
    "params": 1, "centers": 2, "symbol": 1, "graphs": 2, "onnx": 2, "groups": 1, "manifest": 2,
    "hosts": 1, "hostfile": 1,
    "ijb-faces": 1, "ijb-pairs": 2, "ijb-subjects": 1, "ijb-features": 1,
}  # fmt: skip


def test_no_input_crashes_hangs_or_runs() -> None:
    results = campaign.run(SHARES, 2000, seed=random.Random(0).randrange(1000), processes=2)
    assert all(result.is_clean for result in results.values()), campaign.describe(results, 0)
    assert sum(result.refused for result in results.values()) > 1000
    assert all(result.inputs == result.accepted + result.refused for result in results.values())


@pytest.mark.parametrize("kind", ["dies", "hangs", "throws", "executes", "refuses"])
def test_a_campaign_notices(kind: str) -> None:
    """Input 103 is the one that goes wrong, after the seed and three that are refused."""
    result = campaign.run_range(kind, 100, 110, "tests.fuzz.bad_worker", input_seconds=2)
    found = [finding.split()[0] for finding in (*result.crashes, *result.hangs)]
    wrong = kind in ("dies", "hangs", "throws")
    # A new process takes over behind a finding, and is wrong in its turn.
    assert found == ([f"{kind}:103", f"{kind}:107"] if wrong else [])
    assert result.executions == (kind == "executes")
    assert result.inputs == 10
    assert result.is_clean == (kind == "refuses")


def test_an_input_is_always_the_same_bytes() -> None:
    seeds = [b"0\t0\n1\t400\n", bytes(range(256))]
    inputs = [make_input(seeds, number) for number in range(300)]
    assert inputs == [make_input(seeds, number) for number in range(300)]
    assert len(set(inputs)) > 250


def test_a_network_that_is_made_is_always_the_same_bytes() -> None:
    for make in (make_graph, make_onnx):
        inputs = [make_input([b"seed"], number, make) for number in range(100)]
        assert inputs == [make_input([b"seed"], number, make) for number in range(100)]
        assert len(set(inputs)) > 70
