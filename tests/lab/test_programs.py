"""A timeline of the lab, by hand; the softmax that is cut is that of ``partial_fc``."""

from __future__ import annotations

import json

import numpy as np
import pytest

from docs.lab import cut_softmax, timeline
from partial_fc.head import PartialFC
from partial_fc.initial import initial_centers
from partial_fc.margin import CombinedMargin
from partial_fc.optimizers import SGD
from partial_fc.options import HeadOptions
from partial_fc.rows.host import HostRows
from partial_fc.shard import Sampler, Shard
from runtime.mxnet import mx
from tests.support.thread_world import ThreadWorld, run_ranks

pytestmark = pytest.mark.documents


def test_a_timeline_is_added_up() -> None:
    tensor = {"name": "horovod_allreduce.backbone.gradient.3"}
    written: list[dict] = [
        {"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time": 1}},
        {"name": "process_name", "ph": "M", "pid": 7, "ts": 0, "args": tensor},
    ]
    for kind, name, time in (
        ("B", "NEGOTIATE_ALLREDUCE", 1000), ("X", "0", 1000), ("X", "1", 3990), ("E", "", 4000),
        ("B", "ALLREDUCE", 4000), ("B", "MEMCPY_IN_FUSION_BUFFER", 4000), ("E", "", 4500),
        ("E", "", 6000),
    ):  # fmt: skip
        written.append({"ph": kind, "name": name, "ts": time, "pid": 7})
    whole = json.dumps(written)
    # A run that was killed has written no end of the list.
    for text in (whole, whole[:-1] + ",\n"):
        ((name, found),) = timeline.collectives(timeline.events(text)).items()
        assert name == "backbone.gradient" and found.last == {"1": 1}
        assert found.milliseconds == {
            "NEGOTIATE_ALLREDUCE": 3.0, "MEMCPY_IN_FUSION_BUFFER": 0.5, "ALLREDUCE": 2.0
        }  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_cut_softmax_is_one_step_of_the_head(ranks: int) -> None:
    rng = np.random.default_rng(3)
    features = np.array_split(rng.normal(size=(12, 24)) * 3, ranks)
    # Two of one class.
    numbers = rng.integers(101, size=11)
    labels = np.array_split(np.append(numbers[:1], numbers), ranks)

    def rank_main(world: ThreadWorld):
        shard = Shard(world.rank, world.size, 101)
        centers = initial_centers(shard, 24, seed=5)
        rows = HostRows(centers.copy(), SGD(momentum=0.0, weight_decay=0.0))
        margin, sampler = CombinedMargin(1.0, 0.0, 0.35), Sampler(shard, 1.0, seed=11)
        head = PartialFC(HeadOptions(scale=64.0), margin, rows, sampler, shard, world)
        own = mx.nd.array(features[world.rank], dtype="float32")
        step = head.step(own, labels[world.rank], 0, 0.3)
        after = head.rows.export()["centers"]
        return centers, step.loss.asscalar(), step.gradient.asnumpy(), (centers - after) / 0.3

    found = run_ranks(ranks, rank_main)
    loss, of_features, of_centers = cut_softmax.cut_step(
        features, labels, [centers.astype(np.float64) for centers, *_ in found], 64.0, 0.35
    )
    for rank, (_, its_loss, gradient, moved) in enumerate(found):
        assert its_loss == pytest.approx(loss, rel=1e-5)
        np.testing.assert_allclose(gradient, of_features[rank], rtol=2e-4, atol=1e-6)
        largest = np.abs(of_centers[rank]).max()
        np.testing.assert_allclose(moved, of_centers[rank], rtol=2e-3, atol=1e-4 * largest)
