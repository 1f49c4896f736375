"""The model of an exchange, by hand; it is told nothing but the times of a few Allreduces."""

from __future__ import annotations

import pytest

from benchmarks.scaling_model import Link, Probe, sent

# 5 ms until ranks agree, 20 µs for a message, 2 GB/s.
LINK = Link(start=0.005, latency=20e-6, bandwidth=2e9)


@pytest.mark.parametrize(
    ("ranks", "seconds"),
    [
        (1, 0.0),
        # Two arrays: 2 messages each and half of 40 MB twice; then 4, 6 and 12 messages each.
        (2, 0.005 + 4 * 20e-6 + 0.02),
        (4, 0.005 + 8 * 20e-6 + 0.03),
        (8, 0.005 + 12 * 20e-6 + 0.035),
        (64, 0.005 + 24 * 20e-6 + 0.039375),
    ],
)
def test_seconds_of_an_allreduce(ranks: int, seconds: float) -> None:
    assert LINK.allreduce(ranks, [30_000_000, 10_000_000]) == pytest.approx(seconds)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_link_is_found_in_what_it_takes(ranks: int) -> None:
    """A small array takes a message of each step of doubling, a large one two."""
    steps = {2: 1, 4: 2, 8: 3}[ranks]
    probe = Probe(
        ranks=ranks,
        one_small=0.005 + steps * 20e-6,
        many_small=0.005 + 64 * steps * 20e-6,
        many=64,
        large=LINK.allreduce(ranks, [16_000_000]),
        large_bytes=16_000_000,
    )
    assert Link.of(probe) == pytest.approx(LINK)


def test_noise_makes_no_negative_times() -> None:
    probe = Probe(2, 0.005, many_small=0.004, many=64, large=0.013, large_bytes=16_000_000)
    assert Link.of(probe) == pytest.approx((0.005, 0.0, 2e9))


def test_a_large_array_that_takes_no_time_tells_nothing() -> None:
    with pytest.raises(ValueError, match="large_bytes=16000000"):
        Link.of(Probe(2, 0.005, 0.006, 64, 0.004, 16_000_000))


@pytest.mark.parametrize(("ranks", "size"), [(1, 0), (2, 100), (4, 150), (64, 196.875)])
def test_what_a_rank_sends(ranks: int, size: float) -> None:
    assert sent(ranks, 100) == size
