"""A collective that one trace lost moves none of those behind it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.traces.analyzers.collectives import collectives
from collectors.traces.cross_rank.matching import match
from collectors.traces.timeline import Timeline
from tests.collectors.traces.made.made_collectives import ran, rank_of, ranks_of
from tests.support.timelines import Span

US = 1000
RANKS, COUNT = 3, 47


def _ranks(lost: dict[int, tuple[int, ...]], seed: int = 1, ahead_us: int = 500) -> list[Timeline]:
    """Collectives at uneven times, in which rank 1 comes last by 20 us; rank 2's clock is ahead."""
    random = np.random.default_rng(seed)
    end_us = np.cumsum(random.integers(300, 900, COUNT))
    return ranks_of(
        *(
            [
                ran(
                    int(end + ahead_us * (rank == 2) - 40 + 20 * (rank == 1)) * US,
                    int(end + ahead_us * (rank == 2)) * US + int(random.integers(0, 2000)),
                )
                for number, end in enumerate(end_us)
                if number not in lost.get(rank, ())
            ]
            for rank in range(RANKS)
        )
    )


@pytest.mark.parametrize(
    "lost", [{}, {1: (3,)}, {0: (20,)}, {2: (44,)}, {1: (10,), 2: (30,)}, {1: (12, 13)}, {0: (0,)}]
)
@pytest.mark.parametrize("seed", [1, 2])
def test_all_but_the_lost_are_matched(lost: dict[int, tuple[int, ...]], seed: int) -> None:
    timelines = _ranks(lost, seed)
    matching = match(timelines)
    assert len(matching.matched) == COUNT - len({number for of_rank in lost.values() for number in of_rank})
    for one in matching.matched:
        rows = zip(one.ranks, one.rows, strict=True)
        ends_us = [int(timelines[rank].end_ns[row]) // US - 500 * (rank == 2) for rank, row in rows]
        assert max(ends_us) - min(ends_us) <= 3


def test_waiting_is_what_it_is_without_the_loss() -> None:
    whole, lossy = collectives(_ranks({})), collectives(_ranks({1: (5,)}))
    waits_us = [
        sum(sum(time.wait_ns) for time in found.times if not time.matched.is_first) / len(found.times) / US
        for found in (whole, lossy)
    ]
    assert waits_us[1] == pytest.approx(waits_us[0], rel=0.05)
    assert any("1 collective of rank 0 is missing from the trace of rank 1" in note for note in lossy.matching.notes)


def _matched_right(lost: dict[int, tuple[int, ...]], seed: int, *, count: int, jitter_us: int) -> tuple[int, int]:
    """How many collectives of two ranks matched, and how many of these are one; rank 1's clock is ahead."""
    random = np.random.default_rng(seed)
    end_us = np.cumsum(random.integers(300, 900, count))
    kept = [[number for number in range(count) if number not in lost.get(rank, ())] for rank in range(2)]
    timelines = ranks_of(
        *(
            [
                ran(
                    int(end_us[number] + 500 * rank - 40) * US,
                    int(end_us[number] + 500 * rank) * US + int(random.integers(0, jitter_us * US)),
                )
                for number in kept[rank]
            ]
            for rank in range(2)
        )
    )
    matched = match(timelines).matched
    right = sum(len({kept[rank][row] for rank, row in zip(one.ranks, one.rows, strict=True)}) == 1 for one in matched)
    return len(matched), right


@given(data=st.data(), seed=st.integers(0, 10_000), count=st.integers(16, 60))
def test_two_or_three_losses_in_one_rank_are_mended_wherever_they_are(
    data: st.DataObject, seed: int, count: int
) -> None:
    lost = tuple(data.draw(st.sets(st.integers(0, count - 1), min_size=2, max_size=3)))
    rank = data.draw(st.integers(0, 1))
    assert _matched_right({rank: lost}, seed, count=count, jitter_us=2) == (count - len(lost),) * 2


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("jitter_us", [2, 100])
def test_where_both_ranks_lost_some_none_is_matched_with_another(seed: int, jitter_us: int) -> None:
    """Ends that lie 100 us apart are gloo's. What stands between two losses may be left out, and is not guessed."""
    random = np.random.default_rng(1000 + seed)
    lost = {rank: tuple(random.integers(0, 40, 2).tolist()) for rank in range(2)}
    matched, right = _matched_right(lost, seed, count=40, jitter_us=jitter_us)
    assert matched - right <= (jitter_us > 2)
    assert right >= 28


def test_where_nothing_tells_which_was_lost_none_is_matched_and_the_reason_is_said() -> None:
    ends_us = range(500, 24_000, 500)
    whole, lossy = ([ran((end - 40) * US, end * US) for end in ends_us] for _ in range(2))
    del lossy[20]
    matching = match(ranks_of(whole, lossy))
    assert matching.matched == ()
    reason = "a trace of process group 0 lost some, so it could be any of several collectives of another rank"
    assert {one.reason for one in matching.unmatched if one.rank == 1} == {reason}
    assert matching.notes[-1].endswith(
        "46 collectives of rank 1 could be any of several of rank 0, since a trace lost some; left out of all figures"
    )


def test_numbers_of_steps_tell_where_ends_do_not() -> None:
    """The step in which one is missing is left out; in all others the collectives are told by their order."""
    random = np.random.default_rng(5)
    steps = []
    for rank in range(2):
        spans = []
        for step in range(6):
            begin = step * 10_000
            spans.append(
                Span(
                    name=f"ProfilerStep#{step}", kind="step", stream=1, start_ns=begin * US, end_ns=(begin + 9_900) * US
                )
            )
            for number in range(4):
                if (rank, step, number) != (1, 2, 1):
                    late_us = int(random.integers(0, 1900))
                    spans.append(ran((begin + 2000 * number) * US, (begin + 2000 * number + late_us) * US))
        steps.append(rank_of(rank, spans))
    matched = match(steps).matched
    assert len(matched) == 20
    assert all(one.rows[0] - one.rows[1] == (one.rows[0] > 12) for one in matched)
