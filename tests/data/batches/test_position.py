from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from data.batches.position import EpochPlan, Position


def test_by_hand():
    """The origin is where epochs of this length would have begun."""
    first = EpochPlan(num_images=10, global_batch=3)
    assert [tuple(first.at(update)) for update in (0, 2, 3, 4)] == [(0, 0), (0, 6), (1, 0), (1, 3)]
    assert first.origin == EpochPlan(10, 3, 4, Position(1, 3)).origin == 0
    # Two epochs of three updates are over; those to come have five.
    later = EpochPlan(10, 2, start_update=6, start=Position(2, 0))
    assert later.origin == -4 and later.at(later.origin + 3 * 5) == Position(3, 0)
    # Six of ten are used: four are left for batches of two.
    later = EpochPlan(10, 2, start_update=2, start=Position(0, 6))
    assert [tuple(later.at(update)) for update in range(2, 6)] == [(0, 6), (0, 8), (1, 0), (1, 2)]
    assert later.first_update_of(1) == 4 and later.first_update_of(3) == 14
    assert later.origin == -1 and later.at(later.origin + 5) == Position(1, 0)


CHANGES = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 40)), min_size=1, max_size=5)


@given(st.integers(12, 99), CHANGES)
def test_no_sample_comes_twice_and_none_is_left_out(num_images, changes):
    used: dict[int, int] = {}
    update, position = 0, Position(0, 0)
    for global_batch, updates in changes:
        plan = EpochPlan(num_images, global_batch, update, position)
        for number in range(update, update + updates):
            epoch, first = plan.at(number)
            assert first == used.get(epoch, 0) and first + global_batch <= num_images
            used[epoch] = first + global_batch
            # Going on with the same batch changes nothing.
            later = EpochPlan(num_images, global_batch, number, plan.at(number))
            for epoch in range(4):
                assert later.first_update_of(epoch) == max(plan.first_update_of(epoch), number)
            assert later.at(update + updates) == plan.at(update + updates)
        update += updates
        position = plan.at(update)
    # An epoch is left when what remains does not fill the global batch.
    assert sorted(used) == [*range(len(used))]
