from __future__ import annotations

from data.batches.epoch_part import equal_shares, of_rank, of_worker


def test_ranks_cut_each_global_batch() -> None:
    portions = [of_rank(100, 8, rank, 3) for rank in range(3)]
    assert {epoch_part.updates_per_epoch for epoch_part in portions} == {4}
    assert [epoch_part.offset for epoch_part in portions] == [0, 8, 16]


def test_shares_meet_without_gap_or_overlap() -> None:
    for workers in (1, 3, 7):
        portions = [
            of_worker(1000, 10, worker, equal_shares(workers), (worker,))
            for worker in range(workers)
        ]
        ends = [epoch_part.first + epoch_part.length for epoch_part in portions]
        assert [epoch_part.first for epoch_part in portions] == [0, *ends[:-1]] and ends[-1] == 1000
