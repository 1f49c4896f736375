"""Which ranks have the same folder."""

from __future__ import annotations

import pytest

from training.checkpoint import storage


@pytest.mark.parametrize(
    ("seen", "firsts"),
    [
        ([0, 0, 0], (0, 0, 0)),
        ([0, 1, 2], (0, 1, 2)),
        # Rank 2 has seen rank 1's file before rank 0's, which was late.
        ([0, 0, 1], (0, 0, 0)),
        ([0, 1, 1, 2, 0], (0, 1, 1, 1, 0)),
    ],
)
def test_what_a_rank_does_not_see_another_may_have_seen(seen, firsts) -> None:
    assert storage._joined(seen) == firsts
