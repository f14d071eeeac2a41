"""A collective that one trace lost moves none of those behind it."""

from __future__ import annotations

import numpy as np
import pytest

from collectors.traces.analyzers.collectives import collectives
from collectors.traces.cross_rank.matching import match
from collectors.traces.timeline import Timeline
from tests.collectors.traces.made.made_collectives import ran, ranks_of

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
