"""Steps whose labels the head knows before: what is exchanged and drawn when."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from partial_fc.margin import CombinedMargin
from partial_fc.rows.host import HostRows
from runtime.mxnet import mx
from tests.support.reference_losses import ReferenceCombined
from tests.support.small_head import GLOBAL_BATCH, LR, SGD_09, Loss, make_batches, make_head
from tests.support.thread_world import ThreadWorld, run_ranks

ARCFACE = Loss(partial(CombinedMargin, 1.0, 0.5, 0.0), partial(ReferenceCombined, 1.0, 0.5, 0.0))


def test_a_step_whose_labels_were_announced_is_the_same() -> None:
    loss, num_classes, updates = ARCFACE, 24, 5

    def rank_main(world: ThreadWorld, announced):
        drawn = []
        head = make_head(world, num_classes, loss, 64.0, 0.5, HostRows, SGD_09)
        draw = head._sampler.sample
        head._sampler.sample = lambda *labels: drawn.append(labels[-1]) or draw(*labels)
        batch = GLOBAL_BATCH // world.size
        own = slice(world.rank * batch, (world.rank + 1) * batch)
        batches = list(make_batches(num_classes, updates + 2, loss.deviations))
        steps = []
        for update, (features, labels) in enumerate(batches[:updates]):
            if announced[update] is not None:
                head.prepare(batches[announced[update]][1][own], announced[update])
            step = head.step(mx.nd.array(features[own]), labels[own], update, LR)
            steps += [step.loss.asnumpy(), step.gradient.asnumpy()]
        return [*steps, head.rows.export()["centers"]], drawn

    plain = run_ranks(2, partial(rank_main, announced=[None] * updates))
    assert plain[0][1] == [0, 1, 2, 3, 4]
    for announced, expected in {
        # One step ahead, as in training; one that never comes; right before its own step.
        (1, 2, 3, 4, 5): [0, 1, 2, 3, 4, 5],
        (None, 6, None, 4, None): [0, 1, 6, 2, 3, 4],
        (0, 1, 2, 3, 4): [0, 1, 2, 3, 4],
    }.items():
        for one, other in zip(plain, run_ranks(2, partial(rank_main, announced=announced))):
            assert other[1] == expected
            assert len(one[0]) == len(other[0]) == 2 * updates + 1
            assert all(map(np.array_equal, one[0], other[0]))


class ReadingRows(HostRows):
    """Rows that say when they begin to be read."""

    reads_ahead = True

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.read = []

    def read_ahead(self, sample):
        self.read.append(sample.update)


@pytest.mark.parametrize("rows_of", [HostRows, ReadingRows])
def test_the_next_step_is_prepared_at_once_only_where_rows_have_to_be_read(rows_of) -> None:
    """Else Python would wait for the other ranks' labels before the step that hides it."""

    def rank_main(world: ThreadWorld):
        head = make_head(world, 24, ARCFACE, 64.0, 0.5, rows_of)
        gathered, gather = [], world.allgather
        world.allgather = lambda array, name: gathered.append(name) or gather(array, name)
        ((features, labels),) = make_batches(24, 1)
        head.prepare(labels, 1)
        before = list(gathered)
        head.step(mx.nd.array(features), labels, 0, LR)
        return before, gathered, getattr(head.rows, "read", None)

    ((before, gathered, read),) = run_ranks(1, rank_main)
    first, own = ["head.labels"], ["head.features"]
    if rows_of is ReadingRows:
        assert (before, gathered, read) == (first, first * 2 + own, [1])
    else:
        assert (before, gathered) == ([], first + own + first)
