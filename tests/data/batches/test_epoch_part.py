from __future__ import annotations

from data.batches.epoch_part import EpochPart, equal_shares


def test_ranks_cut_each_global_batch() -> None:
    parts = [EpochPart.of_rank(100, 8, rank, 3) for rank in range(3)]
    assert {part.updates_per_epoch for part in parts} == {4}
    assert [part.offset for part in parts] == [0, 8, 16]


def test_shares_meet_without_gap_or_overlap() -> None:
    for workers in (1, 3, 7):
        parts = [
            EpochPart.of_worker(1000, 10, worker, equal_shares(workers), (worker,))
            for worker in range(workers)
        ]
        ends = [part.first + part.length for part in parts]
        assert [part.first for part in parts] == [0, *ends[:-1]] and ends[-1] == 1000
