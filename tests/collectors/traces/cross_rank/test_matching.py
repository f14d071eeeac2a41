"""Events of several ranks are matched as they belong together, and what is not matched says why."""

from __future__ import annotations

import pytest

from collectors.traces.cross_rank.matching import Matching, match
from collectors.traces.timeline import About, Call, Timeline
from tests.collectors.traces.made.generated import Told, Truth, generate
from tests.collectors.traces.made.made_collectives import ALL_REDUCE, ran, rank_of, ranks_of


def _reasons(matching: Matching) -> set[tuple[int, str]]:
    return {(one.rank, one.reason) for one in matching.unmatched}


def _arrivals(truth: Truth, timelines: tuple[Timeline, ...]) -> list[tuple[str, tuple[tuple[int, int], ...]]]:
    """What was matched: collective and arrivals, each on the true clock."""
    found = [
        (
            one.collective,
            tuple(
                (rank, int(timelines[rank].start_ns[row]) - truth.ahead_ns[rank])
                for rank, row in zip(one.ranks, one.rows, strict=True)
            ),
        )
        for one in match(timelines).matched
    ]
    return sorted(found)


def _true_arrivals(truth: Truth) -> list[tuple[str, tuple[tuple[int, int], ...]]]:
    return sorted((one.collective, tuple(sorted(one.arrival_ns.items()))) for one in truth.collectives)


@pytest.mark.parametrize("told", ["sequence", "group", "name"])
@pytest.mark.parametrize("seed", range(3))
def test_all_collectives_of_eight_ranks_are_matched_as_they_happened(seed: int, told: Told) -> None:
    truth = generate(seed, told=told)
    assert _arrivals(truth, truth.timelines) == _true_arrivals(truth)


@pytest.mark.parametrize("told", ["sequence", "group", "name"])
def test_a_trace_that_begins_later_finds_its_place(told: Told) -> None:
    truth = generate(4, told=told, first_step={2: 1, 5: 2})
    begun_ns = {rank: min(span.start_ns for span in spans) for rank, spans in truth.spans.items()}
    held = [true for true in _true_arrivals(truth) if all(arrival_ns >= begun_ns[rank] for rank, arrival_ns in true[1])]
    assert len(held) < len(truth.collectives)
    assert _arrivals(truth, truth.timelines) == held


def test_a_shift_that_was_found_is_said() -> None:
    notes = match(generate(4, told="group", first_step={2: 1}).timelines).notes
    assert any(
        "group 0: rank 2's trace begins 4 collectives after the earliest, by the numbers of its steps" in note
        for note in notes
    )


def test_numbers_match_what_threads_began_in_another_order() -> None:
    matching = match(
        ranks_of(
            [ran(0, 9, sequence=1), ran(1, 5, sequence=2)],
            [ran(0, 5, sequence=2), ran(1, 9, sequence=1)],
        )
    )
    assert [(one.sequence, one.rows) for one in matching.matched] == [(1, (0, 1)), (2, (1, 0))]


def test_kernels_of_one_number_are_matched_in_their_order() -> None:
    matching = match(ranks_of(*([ran(0, 1, sequence=3), ran(2, 4, sequence=3), ran(5, 6, sequence=4)] for _ in "ab")))
    assert [(one.sequence, one.rows) for one in matching.matched] == [(3, (0, 0)), (3, (1, 1)), (4, (2, 2))]


@pytest.mark.parametrize(
    "other",
    [
        Call(collective="broadcast", group="0"),
        Call(collective="all_reduce", group="0", dtype="float32"),
        Call(collective="all_reduce", group="0", given_elements=8),
    ],
)
def test_one_number_of_unlike_collectives_is_no_match(other: Call) -> None:
    matching = match(ranks_of([ran(0, 9, sequence=1)], [ran(0, 9, other, sequence=1)]))
    assert matching.matched == ()
    reason = "other ranks have a different collective at its place in process group 0"
    assert _reasons(matching) == {(0, reason), (1, reason)}


def test_an_all_to_all_may_give_another_size_on_each_rank() -> None:
    calls = [Call(collective="all_to_all", group="0", given_elements=size, filled_elements=9) for size in (3, 5)]
    assert len(match(ranks_of(*([ran(0, 9, call)] for call in calls))).matched) == 1


def test_groups_of_one_name_are_told_apart_by_their_ranks() -> None:
    calls = [Call(collective="all_reduce", group="1", ranks=ranks) for ranks in ((0, 1), (2, 3))]
    matching = match(ranks_of(*([ran(rank, 9, calls[rank // 2])] for rank in range(4))))
    assert [one.ranks for one in matching.matched] == [(0, 1), (2, 3)]


def test_the_ranks_of_a_group_may_be_told_apart_from_its_collectives() -> None:
    about = About(groups={"0": (0, 1, 2)})
    matching = match([rank_of(rank, [ran(0, 9)], about) for rank in (0, 2)])
    assert [(one.ranks, one.missing) for one in matching.matched] == [((0, 2), (1,))]


def _of_size(size: int | None, group: str | None = "1", collective: str = "all_reduce") -> Call:
    return Call(collective=collective, group=group, group_size=size)


@pytest.mark.parametrize("group", ["1", None])
@pytest.mark.parametrize("sequence", [None, 7])
def test_where_a_group_has_more_ranks_than_traces_some_are_missing(group: str | None, sequence: int | None) -> None:
    matching = match(ranks_of(*([ran(0, 9, _of_size(8, group), sequence)] for _ in "ab")))
    assert [(one.group_size, one.missing, one.missing_count) for one in matching.matched] == [(8, (), 6)]
    assert matching.tables()[0].rows == (("all_reduce", group, 2, 8, 1),)


def test_where_a_group_has_as_many_ranks_as_traces_none_is_missing() -> None:
    (one,) = match(ranks_of(*([ran(0, 9, _of_size(2))] for _ in "ab"))).matched
    assert (one.group_size, one.missing_count) == (2, 0)


@pytest.mark.parametrize("group", ["1", None])
@pytest.mark.parametrize("is_numbered", [False, True])
def test_more_traces_than_a_group_has_ranks_are_of_several_groups(group: str | None, *, is_numbered: bool) -> None:
    spans = [ran(10 * place, 10 * place + 9, _of_size(2, group), place if is_numbered else None) for place in range(4)]
    matching = match(ranks_of(*(spans for _ in "abcd")))
    assert matching.matched == ()
    title = "an unknown process group" if group is None else "process group 1"
    reason = f"{title} has 2 ranks and 4 traces hold it: which are together is unknown"
    assert _reasons(matching) == {(rank, reason) for rank in range(4)}


def test_groups_without_a_name_are_told_apart_by_their_size() -> None:
    spans = [[ran(0, 9, _of_size(2, None)), ran(20, 29, _of_size(4, None))] for _ in "ab"]
    assert [(one.group_size, one.rows) for one in match(ranks_of(*spans)).matched] == [(2, (0, 0)), (4, (1, 1))]


def test_a_call_that_does_not_tell_the_size_is_of_the_group_that_others_tell() -> None:
    (one,) = match(ranks_of([ran(0, 9, _of_size(3))], [ran(0, 9, _of_size(None))])).matched
    assert (one.ranks, one.group_size, one.missing_count) == ((0, 1), 3, 1)


def test_a_group_of_another_size_is_not_the_one_whose_ranks_are_told() -> None:
    about = About(groups={"1": (0, 1)})
    matching = match([rank_of(rank, [ran(0, 9, _of_size(8))], about) for rank in (0, 1)])
    assert [(one.group_size, one.missing_count) for one in matching.matched] == [(8, 6)]


def test_a_group_of_one_rank_is_matched_with_nobody() -> None:
    assert _reasons(match(ranks_of(*([ran(0, 9, _of_size(1))] for _ in "ab")))) == {
        (rank, "its process group has no other rank") for rank in (0, 1)
    }


def test_the_size_of_a_group_is_that_of_its_ranks_where_they_are_told() -> None:
    call = Call(collective="all_reduce", group="1", ranks=(0, 1, 5), group_size=3)
    (one,) = match(ranks_of(*([ran(0, 9, call)] for _ in "ab"))).matched
    assert (one.group_size, one.missing, one.missing_count) == (3, (5,), 1)


def test_ranks_of_a_group_without_a_name_that_never_agree_are_not_matched() -> None:
    calls = [Call(collective="all_reduce", ranks=(0, 1), given_elements=size) for size in (8, 16)]
    matching = match(ranks_of(*([ran(10 * place, 10 * place + 5, call) for place in range(5)] for call in calls)))
    assert matching.matched == ()
    reason = "ranks do not have the collectives of a process group without a name in one order"
    assert _reasons(matching) == {(0, reason), (1, reason)}


def test_ranks_of_a_group_without_a_name_are_not_guessed_where_they_are_told() -> None:
    call = Call(collective="all_reduce", ranks=(0, 1))
    matching = match(ranks_of(*([ran(10 * place, 10 * place + 5, call) for place in range(5)] for _ in "ab")))
    assert len(matching.matched) == 5
    assert matching.notes == ()


def test_groups_that_are_not_told_are_told_apart_by_when_they_met() -> None:
    call = Call(collective="all_gather")
    apart_ns = (0, 0, 300_000, 300_000)
    timelines = ranks_of(
        *(
            [
                ran(
                    step * 10**6 + (step % 3) * apart_ns[rank],
                    step * 10**6 + (step % 3) * apart_ns[rank] + 40_000,
                    call,
                )
                for step in range(9)
            ]
            for rank in range(4)
        )
    )
    matching = match(timelines)
    assert {one.ranks for one in matching.matched} == {(0, 1), (2, 3)}
    assert len(matching.matched) == 18
    assert matching.notes[-1].startswith("the traces name no process groups")


def test_without_calls_kernels_are_matched_by_what_their_names_say() -> None:
    names = ["ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclDevKernel_AllGather_RING_LL"]
    timelines = ranks_of(*([ran(0, 1, None, name=names[0]), ran(2, 3, None, name=names[1])] for _ in "ab"))
    assert [one.collective for one in match(timelines).matched] == ["all_reduce", "all_gather"]


def test_what_cannot_be_matched_says_why() -> None:
    message, alone = Call(collective="send", group="0"), Call(collective="all_reduce", group="7", ranks=(0,))
    far = Call(collective="all_reduce", group="8", ranks=(0, 5))
    half = Call(collective="all_reduce", group="9", ranks=(0, 1))
    matching = match(
        ranks_of([ran(0, 1, message), ran(2, 3, alone), ran(4, 5, far), ran(6, 7, half), ran(8, 9)], [ran(8, 9)])
    )
    assert len(matching.matched) == 1
    assert _reasons(matching) == {
        (0, "a message from one rank to another, and the trace does not say which"),
        (0, "its process group has no other rank"),
        (0, "no other rank's trace holds the same of process group 8"),
        (0, "rank 1's trace holds nothing of process group 9"),
    }


def test_a_told_group_in_another_order_is_not_matched() -> None:
    kinds = [Call(collective=name, group="0") for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast")]
    one = [ran(10 * place, 10 * place + 5, kinds[place % 2]) for place in range(4)]
    other = [ran(10 * place, 10 * place + 5, kinds[2 + place % 2]) for place in range(4)]
    matching = match(ranks_of(one, other))
    assert matching.matched == ()
    reason = "ranks do not have the collectives of process group 0 in one order"
    assert _reasons(matching) == {(0, reason), (1, reason)}


def test_the_first_of_each_rank_is_marked() -> None:
    pairs = [Call(collective="all_gather", group=str(first), ranks=(first, first + 1)) for first in (0, 2)]
    matching = match(ranks_of(*([ran(0, 1, pairs[rank // 2]), ran(2, 3)] for rank in range(4))))
    assert {(one.group, one.is_first) for one in matching.matched} == {("0", True), ("2", True), ("0", False)}
    assert [one.is_first for one in match(ranks_of(*([ran(0, 1), ran(2, 3)] for _ in "ab"))).matched] == [True, False]


def test_two_traces_of_one_rank_are_refused() -> None:
    timelines = [rank_of(1, [ran(0, 1)]), rank_of(1, [ran(0, 1)]), rank_of(0, [ran(0, 1)])]
    with pytest.raises(ValueError, match=r"^rank 1 has more than one trace; give one of each rank$"):
        match(timelines)


def test_a_trace_without_communication_matches_nothing() -> None:
    assert match([rank_of(0, []), rank_of(1, [])]) == Matching(matched=(), unmatched=())


def test_the_tables_count_what_matched_and_what_did_not() -> None:
    send = Call(collective="send", group="0")
    matched, unmatched = match(ranks_of([ran(0, 1), ran(2, 3, send)], [ran(0, 1)])).tables()
    assert matched.rows == (("all_reduce", ALL_REDUCE.group, 2, 2, 1),)
    assert [(row[0], row[2]) for row in unmatched.rows] == [(0, 1)]
