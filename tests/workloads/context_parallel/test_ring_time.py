"""The time of a ring, by hand: equal work in closed form, unequal work hop by hop."""

from __future__ import annotations

import pytest

from tests.workloads.context_parallel.ring_time import Hop, RingTime, backward_hops, forward_hops, ring_time


def equal(ranks: int, attention_s: float) -> list[list[float]]:
    return [[attention_s] * ranks] * ranks


@pytest.mark.parametrize(("block_s", "step_s", "hidden_ratio"), [(0.5, 4.0, 1.0), (1.0, 4.0, 1.0), (4.0, 13.0, 0.25)])
def test_forward_with_equal_work_has_a_closed_form(block_s: float, step_s: float, hidden_ratio: float) -> None:
    for time in ring_time(forward_hops(equal(4, 1.0), block_s=block_s), is_overlapped=True):
        assert time.elapsed_s == pytest.approx(step_s)
        assert time.communication_s == pytest.approx(3 * block_s)
        assert time.hidden_ratio == pytest.approx(hidden_ratio)


def test_without_overlap_all_is_waited_for() -> None:
    for time in ring_time(forward_hops(equal(4, 1.0), block_s=0.5), is_overlapped=False):
        assert time.elapsed_s == pytest.approx(4 + 3 * 0.5)
        assert time.hidden_ratio == 0


def test_backward_waits_for_gradients_that_come_home() -> None:
    # Hops: 2 | 3 beside the block, 3 | 2 + 1 and 3 | 1 beside gradients; then 1 for the way home.
    hops = backward_hops(equal(3, 2.5), block_s=3.0, gradients_s=1.0)
    assert [hop.transfer_s for hop in hops] == [3.0, 4.0, 1.0, 1.0]
    for time in ring_time(hops, is_overlapped=True):
        assert time.elapsed_s == pytest.approx(3.0 + 4.0 + 2.5 + 1.0)
        assert time.hidden_s == pytest.approx(2.5 + 2.5 + 1.0)
        assert time.communication_s == pytest.approx(9.0)


def test_two_ranks_pass_on_once_and_twice() -> None:
    assert [hop.transfer_s for hop in forward_hops(equal(2, 1.0), block_s=3.0)] == [3.0, 0.0]
    hops = backward_hops(equal(2, 1.0), block_s=3.0, gradients_s=5.0)
    assert [hop.transfer_s for hop in hops] == [3.0, 5.0, 5.0]


def test_a_rank_alone_only_attends() -> None:
    hops = backward_hops([[2.0]], block_s=3.0, gradients_s=5.0)
    (time,) = ring_time(hops, is_overlapped=True)
    assert time == RingTime(elapsed_s=2.0, attention_s=2.0, communication_s=0.0, hidden_s=0.0)
    assert time.hidden_ratio is None


def test_a_busy_rank_holds_up_its_neighbours_and_not_yet_the_rank_across() -> None:
    hops = [
        Hop(attention_s=(5.0, 1.0, 1.0, 1.0), transfer_s=1.0),
        Hop(attention_s=(1.0, 1.0, 1.0, 1.0), transfer_s=1.0),
    ]
    assert [time.elapsed_s for time in ring_time(hops, is_overlapped=True)] == [6.0 + 0.0, 6.0, 2.0, 6.0]


def test_of_a_message_that_a_late_neighbour_sends_only_the_time_under_way_is_communication() -> None:
    # Rank 0 begins the second hop 3 s after rank 1, which has attended by then.
    hops = [Hop(attention_s=(4.0, 1.0), transfer_s=0.0), Hop(attention_s=(2.0, 2.0), transfer_s=1.0)]
    late, early = ring_time(hops, is_overlapped=True)
    assert (late.hidden_s, late.elapsed_s) == (1.0, 6.0)
    assert (early.hidden_s, early.elapsed_s, early.communication_s) == (0.0, 5.0, 1.0)
