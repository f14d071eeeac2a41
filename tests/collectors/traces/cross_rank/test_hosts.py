"""Ranks of one host have one clock, unless they cannot be on one host."""

from __future__ import annotations

from collectors.traces.cross_rank.clock_sync import clocks_of_hosts
from collectors.traces.cross_rank.matching import match
from collectors.traces.timeline import About, Timeline
from tests.collectors.traces.made.made_collectives import ran, rank_of


def _rank(rank: int, host: str | None, ahead_ns: int = 0) -> Timeline:
    spans = (ran(1_000 * step + ahead_ns, 1_000 * step + 500 + ahead_ns, sequence=step) for step in range(5))
    return rank_of(rank, spans, About(host=host))


def test_the_lowest_rank_of_a_host_owns_its_clock() -> None:
    timelines = [_rank(3, "nodeB"), _rank(0, "nodeA"), _rank(1, "nodeB"), _rank(2, "nodeA"), _rank(4, None)]
    owner, notes = clocks_of_hosts(timelines, match(timelines))
    assert owner == {0: 0, 1: 1, 2: 0, 3: 1, 4: 4}
    assert notes == (
        "ranks 0, 2 are on host nodeA: they share a clock",
        "ranks 1, 3 are on host nodeB: they share a clock",
    )


def test_ranks_of_one_name_that_leave_before_others_come_are_not_on_one_host() -> None:
    timelines = [_rank(0, "localhost"), _rank(1, "localhost", ahead_ns=5_000_000)]
    owner, (note,) = clocks_of_hosts(timelines, match(timelines))
    assert owner == {0: 0, 1: 1}
    assert note.startswith("ranks 0, 1 report host localhost, but on a single clock would leave collectives before")


def _two_ranks(impossible: int, of: int) -> list[Timeline]:
    """Ranks that say they are on one host; of so many collectives behind the first some end before rank 1 comes."""
    spans = [
        [
            ran(1_000 * step + (400 if rank and 0 < step <= impossible else 0), 1_000 * step + 300 + 200 * rank)
            for step in range(of + 1)
        ]
        for rank in (0, 1)
    ]
    return [rank_of(rank, of_rank, About(host="localhost")) for rank, of_rank in enumerate(spans)]


def test_a_few_collectives_that_cannot_be_tell_that_clocks_differ() -> None:
    timelines = _two_ranks(3, of=40)
    assert clocks_of_hosts(timelines, match(timelines))[0] == {0: 0, 1: 1}


def test_one_of_many_may_be_matched_wrongly() -> None:
    timelines = _two_ranks(2, of=40)
    assert clocks_of_hosts(timelines, match(timelines))[0] == {0: 0, 1: 0}


def test_a_host_of_one_rank_is_not_spoken_of() -> None:
    timelines = [_rank(0, "nodeA"), _rank(1, "nodeB")]
    assert clocks_of_hosts(timelines, match(timelines)) == ({0: 0, 1: 1}, ())
