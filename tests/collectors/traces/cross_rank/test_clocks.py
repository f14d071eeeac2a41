"""Clocks are brought together by the ends of collectives, which need not coincide."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.traces.cross_rank.clock_sync import Agreement, align
from collectors.traces.timeline import About, Call, Timeline
from tests.collectors.traces.made.generated import Told, generate
from tests.collectors.traces.made.made_collectives import ran, rank_of, ranks_of
from tests.support.timelines import Span

BROADCAST = Call(collective="broadcast", group="0")
UNIX_NS = 1_795_187_272_350_042_681


def _of_group(name: str, ranks: tuple[int, ...]) -> Call:
    return Call(collective="all_reduce", group=name, ranks=ranks)


def _ended(*end_ns: int, call: Call | None = None) -> list[Span]:
    """Collectives of one rank, after a first that no clock is compared by."""
    spans = (ran(end - 100, end, call) if call else ran(end - 100, end) for end in end_ns)
    return [ran(0, 1, call) if call else ran(0, 1), *spans]


@pytest.mark.parametrize("told", ["sequence", "group", "name"])
@settings(max_examples=20)
@given(seed=st.integers(0, 100_000))
def test_offsets_of_up_to_a_second_are_found_within_the_spread_of_ends(told: Told, seed: int) -> None:
    truth = generate(seed, told=told)
    alignment = align(truth.timelines)
    assert alignment.residual_ns is not None
    for rank, offset_ns in alignment.offset_ns.items():
        assert abs(offset_ns - truth.offset_ns(rank)) <= alignment.residual_ns
    assert all(one.widest_ns is not None and one.widest_ns <= 2 * 5_000 for one in alignment.agreements)


def test_offsets_are_exact_where_ends_coincide() -> None:
    truth = generate(1, spread_ns=0)
    alignment = align(truth.timelines)
    assert alignment.offset_ns == {rank: truth.offset_ns(rank) for rank in range(8)}
    assert alignment.residual_ns == 0
    for found, true in zip(alignment.applied(), truth.on_one_clock(), strict=True):
        assert (found.start_ns - true.start_ns == truth.ahead_ns[0]).all()


def test_a_single_end_that_is_far_off_moves_no_clock() -> None:
    far = [ran(0, 1), ran(10, 100), ran(200, 300), ran(400, 900_000)]
    near = [ran(0, 1), ran(5_010, 5_100), ran(5_200, 5_300), ran(5_400, 5_500)]
    assert align(ranks_of(far, near)).offset_ns == {0: 0, 1: -5_000}


def test_rooted_collectives_and_messages_and_the_first_are_left_out() -> None:
    send = Call(collective="send", group="0")
    ends_ns = ((10, 100), (5_010, 5_100), (10_010, 10_100))
    timelines = ranks_of(
        *(
            [
                ran(0, 1 + 70_000 * rank),
                ran(shown[0], shown[1] + 100_000 * rank, BROADCAST),
                ran(shown[0] + 100, shown[1] + 100),
                ran(shown[0] + 300_000, shown[1] + 300_000),
                ran(shown[0] + 400_000, shown[1] + 450_000 * (1 + rank), send),
            ]
            for rank, shown in enumerate(ends_ns)
        )
    )
    alignment = align(timelines)
    assert alignment.offset_ns == {0: 0, 1: -5_000, 2: -10_000}
    assert [one.collectives for one in alignment.agreements] == [2]


def test_groups_that_share_a_rank_connect_those_that_do_not_meet() -> None:
    one, other = _of_group("1", (0, 1)), _of_group("2", (1, 2))
    timelines = ranks_of(
        _ended(1_000, 2_000, call=one),
        [*_ended(4_000, 5_000, call=one), *_ended(6_000, 7_000, call=other)],
        _ended(96_000, 97_000, call=other),
    )
    alignment = align(timelines)
    assert alignment.connected == ((0, 1, 2),)
    assert alignment.offset_ns == {0: 0, 1: -3_000, 2: -93_000}


def test_groups_that_disagree_count_as_often_as_they_have_collectives() -> None:
    one, other = _of_group("1", (0, 1)), _of_group("2", (0, 1))
    first = [*_ended(10_000, call=one), *(ran(end - 9, end, other) for end in (30_000, 40_000, 50_000))]
    second = [*_ended(710_000, call=one), *(ran(end - 9, end, other) for end in (734_000, 744_000, 754_000))]
    assert align(ranks_of(first, second)).offset_ns == {0: 0, 1: -(1 * 700_000 + 3 * 704_000) // 4}


def test_ranks_that_no_collective_connects_are_left_as_they_are_and_said() -> None:
    one, other = _of_group("1", (0, 1)), _of_group("2", (2, 3))
    alignment = align(
        ranks_of(
            _ended(1_000, 2_000, call=one),
            _ended(51_000, 52_000, call=one),
            _ended(1_000, 2_000, call=other),
            _ended(71_000, 72_000, call=other),
        )
    )
    assert alignment.connected == ((0, 1), (2, 3))
    assert alignment.offset_ns == {0: 0, 1: -50_000, 2: 0, 3: -70_000}
    assert alignment.notes == ("no collective connects these sets of ranks, whose clocks are not compared: 0, 1; 2, 3",)


def test_clocks_no_further_apart_than_ends_are_taken_as_one() -> None:
    alignment = align(ranks_of(_ended(1_000, 2_000, 3_000, 4_000), _ended(1_004, 1_998, 3_006, 3_997)))
    assert alignment.offset_ns == {0: 0, 1: 0}
    assert [(one.residual_ns, one.widest_ns) for one in alignment.agreements] == [(3, 6)]
    assert "treated as the same clock" in alignment.notes[0]


def test_the_residual_of_a_single_collective_is_not_known() -> None:
    alignment = align(ranks_of(_ended(1_000), _ended(9_000)))
    assert alignment.offset_ns == {0: 0, 1: -8_000}
    assert alignment.residual_ns is None
    assert alignment.agreements[0].widest_ns is None


def test_a_lone_rank_keeps_its_clock() -> None:
    alignment = align([rank_of(3, _ended(1_000, 2_000))])
    assert (alignment.offset_ns, alignment.connected, alignment.notes) == ({3: 0}, ((3,),), ())


def test_offsets_are_whole_nanoseconds_whatever_the_moment() -> None:
    ends_ns = [UNIX_NS + number * 1_000_003 for number in range(5)]
    alignment = align(ranks_of(_ended(*ends_ns), _ended(*(end + 999_999_937 for end in ends_ns))))
    assert alignment.offset_ns == {0: 0, 1: -999_999_937}


def _on_hosts(hosts: Sequence[str | None], *ends_ns: Sequence[int]) -> list[Timeline]:
    """Ranks that come to each collective 100 ns before they leave it."""
    return [
        rank_of(rank, _ended(*of_rank), About(host=host))
        for rank, (host, of_rank) in enumerate(zip(hosts, ends_ns, strict=True))
    ]


def test_ranks_of_one_host_have_one_clock_however_their_ends_lie_apart() -> None:
    alignment = align(_on_hosts(("nodeA", "nodeA"), (1_000, 2_000, 3_000), (1_050, 2_050, 3_050)))
    assert alignment.offset_ns == {0: 0, 1: 0}
    assert alignment.residual_ns == 0
    assert alignment.notes == ("ranks 0, 1 are on host nodeA: they share a clock",)


def test_hosts_are_aligned_as_wholes_by_the_middle_of_their_ranks_ends() -> None:
    hosts = ("nodeA", "nodeB", "nodeA", "nodeB")
    ends_ns = ((1_000, 2_000, 3_000), (71_010, 72_010, 73_010), (1_040, 2_040, 3_040), (71_030, 72_034, 73_030))
    alignment = align(_on_hosts(hosts, *ends_ns))
    assert alignment.offset_ns == {0: 0, 1: -70_000, 2: 0, 3: -70_000}
    assert alignment.agreements == (
        Agreement(group="0", ranks=(0, 1, 2, 3), collectives=3, residual_ns=0, widest_ns=2),
    )


def test_hosts_that_are_not_named_are_not_one_host() -> None:
    assert align(_on_hosts((None, None), (1_000, 2_000), (9_000, 10_000))).offset_ns == {0: 0, 1: -8_000}


def test_a_host_connects_groups_that_share_no_rank() -> None:
    one, other = _of_group("1", (0, 1)), _of_group("2", (2, 3))
    spans = (
        _ended(1_000, 2_000, call=one),
        _ended(6_000, 7_000, call=one),
        _ended(3_000, 4_000, call=other),
        _ended(93_000, 94_000, call=other),
    )
    hosts = ("nodeA", "nodeB", "nodeB", "nodeC")
    alignment = align([rank_of(rank, spans[rank], About(host=hosts[rank])) for rank in range(4)])
    assert alignment.connected == ((0, 1, 2, 3),)
    assert alignment.offset_ns == {0: 0, 1: -5_000, 2: -5_000, 3: -95_000}


def test_clocks_that_count_from_different_years_are_aligned_to_the_nanosecond() -> None:
    ends_ns = [number * 1_000_003 for number in range(1, 6)]
    alignment = align(ranks_of(_ended(*ends_ns), _ended(*(UNIX_NS + end for end in ends_ns))))
    assert alignment.offset_ns == {0: 0, 1: -UNIX_NS}


def test_the_tables_show_offsets_and_residuals() -> None:
    timelines: list[Timeline] = ranks_of(_ended(1_000, 2_000), _ended(9_000, 10_002))
    clocks, residuals = align(timelines).tables()
    assert clocks.rows == ((0, 0), (1, -8_001))
    assert residuals.rows == (("0", 2, 2, 1, 1),)
