"""Two kills of one run; ``make faults`` does more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import campaign


@pytest.mark.launcher
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "setup",
    [
        campaign.Setup(ranks=2, kills=2),
        campaign.Setup(ranks=2, stored=True, kills=2),
    ],
    ids=["in memory", "a store"],
)
def test_a_killed_run_goes_on_and_ends_equal(tmp_path: Path, setup: campaign.Setup) -> None:
    (line,) = campaign.run(1, 7, tmp_path, setup)
    assert line.endswith(": equal"), line


def test_where_another_result_began() -> None:
    expected = [campaign.Loss(update, 1 / update) for update in range(1, 7)]
    # A checkpoint after two updates, and one after three: the last update is the first again.
    for saved, other in ((2, 5), (3, 4)):
        again = [*expected[:4], *expected[saved:]]
        assert campaign.first_other_loss(again, expected) == "losses are equal"
        again[other] = campaign.Loss(4, 0.25000001)
        said = campaign.first_other_loss(again, expected)
        assert said == "losses differ from update 4 of attempt 2 on"


def test_what_differs() -> None:
    expected = {"0 backbone/beta": 1, "head/centers": 2, "values": {"margin": {}}}
    assert campaign.differences(dict(expected), expected) == []
    for other in ({"head/centers": 3}, {"values": {"margin": {"m": 1}}}, {"head/momenta": 2}):
        assert campaign.differences({**expected, **other}, expected) == list(other)
        assert campaign.differences(expected, {**expected, **other}) == list(other)
