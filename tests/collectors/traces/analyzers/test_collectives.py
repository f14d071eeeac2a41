"""The time in collectives divides into waiting and transferring, exactly where clocks are one."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.traces.analyzers.collectives import Collectives, RankWaits, collectives
from collectors.traces.reading.reader import read_trace
from collectors.traces.timeline import About, Call
from tests.collectors.traces.made.generated import Told, generate
from tests.collectors.traces.made.made_collectives import ran, rank_of, ranks_of
from tests.collectors.traces.made.simulated import TrueCollective

TRACES = Path(__file__).parents[4] / "../shared/data/traces"
REDUCE = Call(collective="all_reduce", group="0", dtype="bfloat16", given_elements=500_000, filled_elements=500_000)


def _truly(true: TrueCollective) -> tuple[dict[int, int], dict[int, int]]:
    """Wait and transfer by rank."""
    last_ns = max(true.arrival_ns.values())
    return (
        {rank: last_ns - arrival_ns for rank, arrival_ns in true.arrival_ns.items()},
        {rank: end_ns - last_ns for rank, end_ns in true.end_ns.items()},
    )


def _by_group(found: Collectives) -> dict[tuple[str | None, int], tuple[dict[int, int], dict[int, int]]]:
    """Wait and transfer by rank, of each group's collectives in order."""
    counted: dict[str | None, int] = {}
    by_group = {}
    for time in found.times:
        number = counted.setdefault(time.matched.group, 0)
        counted[time.matched.group] += 1
        ranks = time.matched.ranks
        by_group[time.matched.group, number] = (
            dict(zip(ranks, time.wait_ns, strict=True)),
            dict(zip(ranks, time.transfer_ns, strict=True)),
        )
    return by_group


@pytest.mark.parametrize("told", ["sequence", "group"])
@pytest.mark.parametrize("seed", range(3))
def test_on_one_clock_wait_and_transfer_of_eight_ranks_are_exact(seed: int, told: Told) -> None:
    truth = generate(seed, told=told)
    found = _by_group(collectives(truth.on_one_clock()))
    assert found == {(true.group, true.sequence): _truly(true) for true in truth.collectives}


@pytest.mark.parametrize("seed", range(3))
def test_on_unlike_clocks_wait_and_transfer_are_known_within_the_residual(seed: int) -> None:
    truth = generate(seed)
    result = collectives(truth.timelines)
    found = _by_group(result)
    residual_ns = result.alignment.residual_ns
    assert residual_ns is not None
    assert residual_ns <= 5_000
    assert len(found) == len(truth.collectives)
    for true in truth.collectives:
        parts = zip(found[true.group, true.sequence], _truly(true), strict=True)
        for found_ns, true_ns in parts:
            assert all(abs(found_ns[rank] - true_ns[rank]) <= residual_ns for rank in true_ns)


@pytest.mark.parametrize("seed", range(3))
def test_wait_and_transfer_add_up_to_the_time_in_collectives_whatever_the_clocks(seed: int) -> None:
    truth = generate(seed, steps=2, told="name")
    for time in collectives(truth.timelines).times:
        for rank, row, parts_ns in zip(
            time.matched.ranks,
            time.matched.rows,
            map(sum, zip(time.wait_ns, time.transfer_ns, strict=True)),
            strict=True,
        ):
            assert parts_ns == truth.timelines[rank].end_ns[row] - truth.timelines[rank].start_ns[row]


def test_eight_real_ranks_spend_most_of_their_collectives_waiting() -> None:
    paths = [TRACES / f"dlrm_v100_rank{rank}.json.gz" for rank in range(8)]
    if not paths[0].exists():
        pytest.skip(f"{paths[0]} is not here")
    found = collectives([read_trace(path) for path in paths])
    assert found.waiting_ratio_with_first == pytest.approx(0.965, abs=0.0005)
    assert found.waiting_ratio == pytest.approx(0.927, abs=0.0005)
    assert sorted((one.collective, one.count) for one in found.figures) == [("all_reduce", 3), ("all_to_all", 4)]
    residual_ns = found.alignment.residual_ns
    assert residual_ns is not None
    assert 1_000 <= residual_ns <= 7_000


def _two_steps() -> Collectives:
    """Two ranks, of which rank 1 comes 500 ns late to the first collective, and 60 and 20 ns to the others."""
    return collectives(
        ranks_of(
            [ran(0, 600, REDUCE), ran(1_000, 1_100, REDUCE), ran(2_000, 2_060, REDUCE)],
            [ran(500, 600, REDUCE), ran(1_060, 1_100, REDUCE), ran(2_020, 2_060, REDUCE)],
        )
    )


def test_the_first_collective_of_a_rank_counts_in_one_of_two_shares() -> None:
    found = _two_steps()
    assert found.waiting_ratio == 80 / (100 + 40 + 60 + 40)
    assert found.waiting_ratio_with_first == 580 / (240 + 700)


def test_figures_are_medians_of_means_over_ranks_by_kind_and_size() -> None:
    (one,) = _two_steps().figures
    assert (one.collective, one.group, one.ranks, one.size_bytes, one.count) == ("all_reduce", "0", 2, 1_000_000, 2)
    # Of 60 and 20 ns that rank 0 waits, rank 1 waits none: 30 and 10 in the mean.
    assert (one.wait_ns, one.transfer_ns) == (20, 40)
    assert one.algorithm_bandwidth_bytes_per_second == pytest.approx(1_000_000 / 40e-9)
    assert one.bus_bandwidth_bytes_per_second == one.algorithm_bandwidth_bytes_per_second


def test_each_rank_has_its_sums() -> None:
    assert _two_steps().ranks == (
        RankWaits(rank=0, collective="all_reduce", count=2, wait_ns=80, transfer_ns=80),
        RankWaits(rank=1, collective="all_reduce", count=2, wait_ns=0, transfer_ns=80),
    )


def test_ranks_without_a_trace_are_named() -> None:
    about = About(groups={"0": (0, 1, 2)})
    spans = [ran(0, 1, REDUCE), ran(2, 3, REDUCE)]
    found = collectives([rank_of(rank, spans, about) for rank in (0, 1)])
    assert found.notes[0].startswith("the traces of ranks 2 are missing, and one of these may come last")
    assert found.figures[0].ranks == 3
    assert found.figures[0].bus_bandwidth_bytes_per_second is None


@pytest.mark.parametrize("group", ["0", None])
def test_where_a_group_has_more_ranks_than_traces_nothing_is_told_as_whole(group: str | None) -> None:
    call = Call(collective="all_reduce", group=group, group_size=8, dtype="float32", given_elements=4)
    found = collectives(ranks_of(*([ran(0, 1, call), ran(2, 3, call)] for _ in "ab")))
    (one,) = found.figures
    assert (one.ranks, one.algorithm_bandwidth_bytes_per_second, one.bus_bandwidth_bytes_per_second) == (8, None, None)
    assert found.notes[0] == (
        "only some ranks of process groups have a trace (2 of 8), and another may come last: waits may be longer"
        " than shown and transfers shorter, and bandwidths are left out"
    )


@pytest.mark.parametrize(("size", "is_said"), [(2, False), (None, True)])
def test_where_the_world_is_larger_than_the_traces_untold_sizes_are_said(size: int | None, *, is_said: bool) -> None:
    call = Call(collective="all_reduce", group="0", group_size=size)
    spans = [ran(0, 1, call), ran(2, 3, call)]
    notes = collectives([rank_of(rank, spans, About(world_size=8)) for rank in (0, 1)]).notes
    assert is_said == any("do not say how many ranks a process group has" in note for note in notes)


def test_a_rooted_collective_has_no_bandwidth_and_says_why() -> None:
    call = Call(collective="broadcast", group="0", dtype="float32", given_elements=100_000_000)
    spans = [
        [ran(step + arrived, step + left, call) for step in (0, 200_000)]
        for arrived, left in [(100, 100_000), (200, 100_050), (99_900, 100_060)]
    ]
    found = collectives(ranks_of(*spans))
    assert [
        (one.algorithm_bandwidth_bytes_per_second, one.bus_bandwidth_bytes_per_second) for one in found.figures
    ] == [(None, None)]
    (notes,) = (table.notes for table in found.tables() if table.name == "collectives")
    assert notes[-1].startswith("bandwidths of broadcast are absent: data of a rooted collective moves before the last")


def test_collectives_of_several_groups_are_in_order_of_time() -> None:
    one, other = (Call(collective="all_reduce", group=name) for name in "ab")
    spans = [ran(0, 9, one), ran(10, 19, other), ran(20, 29, one), ran(30, 39, other)]
    assert [time.matched.group for time in collectives(ranks_of(spans, spans)).times] == ["a", "b", "a", "b"]


def test_ends_before_the_last_arrival_are_said_to_be_wrong() -> None:
    call = Call(collective="all_reduce", group="0")
    one = [ran(0, 1, call), ran(100, 110, call), ran(200, 210, call), ran(300, 310, call), ran(400, 90_000, call)]
    other = [ran(0, 1, call), ran(100, 110, call), ran(200, 210, call), ran(300, 310, call), ran(95_000, 95_010, call)]
    found = collectives(ranks_of(one, other))
    assert found.notes == (
        "1 of 4 collectives seem to end on a rank before the last has arrived: clocks or groups differ from what"
        " is assumed",
        *found.alignment.notes,
    )


def test_one_rank_alone_has_no_collective_times() -> None:
    found = collectives([rank_of(0, [ran(0, 1), ran(2, 3)])])
    assert (found.times, found.waiting_ratio, found.waiting_ratio_with_first) == ((), None, None)
    assert found.notes == ("no collective was found on two ranks or more, apart from each rank's first",)


def test_what_matching_and_clocks_assume_is_said_of_all_tables() -> None:
    sets = [[ran(0, 1, Call(collective="all_reduce", group=name)), ran(2, 3)] for name in "aabb"]
    found = collectives(ranks_of(*sets))
    assert set(found.notes) >= {*found.matching.notes, *found.alignment.notes}
    assert found.alignment.notes
    assert not {note for table in found.tables() for note in table.notes} & set(found.alignment.notes)


def test_the_tables_show_shares_figures_and_sums() -> None:
    shares, figures, by_rank, *_ = _two_steps().tables()
    assert [row[:2] for row in shares.rows] == [("without each rank's first", 2), ("all", 3)]
    assert [row[:5] for row in figures.rows] == [("all_reduce", "0", 2, 1_000_000, 2)]
    assert by_rank.rows == ((0, "all_reduce", 2, 80, 80), (1, "all_reduce", 2, 0, 80))
