"""The other programs of the lab, by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from docs.lab import sampling, schemes, timeline

pytestmark = pytest.mark.documents


def test_a_sample_is_the_softmax_with_another_margin() -> None:
    """Exactly so where every kept class stands for as many others."""
    cosines = np.tile(np.linspace(-0.2, 0.2, 4), (1, 25))
    cosines[0, 0] = 0.9
    kept = np.zeros(100)
    kept[[0, 41, 42, 43, 44]] = 1
    smaller = sampling.MARGIN - math.log(99 / 4) / sampling.SCALE
    # The target and 99 others, in which each of the four cosines is as often as in the sample.
    everything = np.full(100, 1.0)
    cosines[0, 1:] = np.tile(cosines[0, 41:45], 25)[:99]
    few, _ = sampling.loss_and_gradient(cosines, sampling.MARGIN, kept)
    all_of_them, _ = sampling.loss_and_gradient(cosines, smaller, everything)
    assert few == pytest.approx(all_of_them, rel=0.01)


def test_gradients_of_the_sampling_program() -> None:
    rng = np.random.default_rng(0)
    cosines, kept = rng.uniform(-0.5, 0.5, (3, 20)), (rng.random(20) < 0.5).astype(float)
    kept[:3] = 1
    _, gradient = sampling.loss_and_gradient(cosines, 0.2, kept)
    direction = rng.normal(size=cosines.shape)
    up, down = (
        sampling.loss_and_gradient(cosines + sign * 1e-6 * direction, 0.2, kept)[0]
        for sign in (1, -1)
    )
    assert np.sum(gradient * direction) == pytest.approx((up - down) / 2e-6, rel=1e-5)
    assert np.all(gradient[:, kept == 0] == 0)


def test_schemes_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    class Exact:
        def uniform(self, low: float, high: float) -> float:
            return 1.0

    monkeypatch.setattr(np.random, "default_rng", lambda seed: Exact())
    # Steps of 0.25 s and 1 s. Together: each step takes the longest.
    together = schemes.simulate([range(4)], [10])
    assert together == schemes.Outcome(10.0, 10, 1.0)
    # Worker 0 has finished its four steps when worker 2 ends its first: 4 updates, then that one.
    apart = schemes.simulate([[0], [2]], [4, 1])
    assert apart.seconds == 1.0 and apart.updates == 5
    assert apart.staleness == pytest.approx((1 + 1 + 1 + 1 + 5) / 5)
    # One step ahead at most: the fast worker waits for each step of the slow one.
    bound = schemes.simulate([[0], [2]], [4, 4], bound=1)
    assert bound.seconds == pytest.approx(4.0) and bound.updates == 8
    # Two steps at once, one more after a second, and five when the slow worker has ended at 2 s.
    assert schemes.simulate([[0], [2]], [8, 2], bound=1).seconds == pytest.approx(3.25)
    free = schemes.simulate([[0], [2]], [16, 4])
    assert free.seconds == 4.0 and free.updates == 20


def test_a_timeline_is_added_up() -> None:
    def span(name: str, begin: float, end: float, *marks: tuple[str, float]):
        yield {"ph": "B", "name": name, "ts": begin, "pid": 7}
        yield from ({"ph": "X", "name": rank, "ts": ts, "pid": 7} for rank, ts in marks)
        yield {"ph": "E", "ts": end, "pid": 7}

    name = {"name": "horovod_allreduce.backbone.gradient.3"}
    written = [
        {"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time": 1}},
        {"name": "process_name", "ph": "M", "pid": 7, "args": name},
        *span("NEGOTIATE_ALLREDUCE", 1000, 4000, ("0", 1000), ("1", 3990)),
        {"ph": "B", "name": "ALLREDUCE", "ts": 4000, "pid": 7},
        *span("MEMCPY_IN_FUSION_BUFFER", 4000, 4500),
        {"ph": "E", "ts": 6000, "pid": 7},
    ]
    whole = json.dumps(written)
    # A run that was killed has written no end of the list.
    for text in (whole, whole[:-1] + ",\n"):
        (found,) = timeline.collectives(timeline.events(text)).items()
        assert found[0] == "backbone.gradient"
        assert found[1].milliseconds == {
            "NEGOTIATE_ALLREDUCE": 3.0, "MEMCPY_IN_FUSION_BUFFER": 0.5, "ALLREDUCE": 2.0
        }  # fmt: skip
        assert found[1].last == {"1": 1}
