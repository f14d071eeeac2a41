"""The change of a step is divided into parts that add up to it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from collectors.traces.analyzers.diff import ItemChange, NothingToCompare, StepDifference, difference
from collectors.traces.analyzers.step_division import Item
from collectors.traces.breakdown import breakdowns
from collectors.traces.reading.reader import read_trace
from collectors.traces.timeline import Call, SpanKind, Timeline
from tests.support.timelines import Span, timeline_of

TRACES = Path(__file__).parents[5] / "../shared/data/traces"
DIVISIONS = (("parts",), ("kernels", "idle"), ("kernels", "causes"), ("shapes", "idle"))
"""Each covers the whole step."""

Row = tuple[str, SpanKind, int, int]


def timeline(*rows: Row, rank: int = 0) -> Timeline:
    """Computation on stream 1 and the rest on stream 2 of a device whose host waits for it at the end of each step."""
    return timeline_of(
        [
            Span(name=name, kind=kind, start_ns=start_ns, end_ns=end_ns, stream=1 if kind == "compute" else 2)
            for name, kind, start_ns, end_ns in rows
        ],
        rank=rank,
        is_device=True,
    )


BEFORE: tuple[Row, ...] = (
    ("step", "step", 0, 100),
    ("gemm", "compute", 0, 40),
    ("ncclDevKernel_AllReduce", "communication", 30, 60),
    ("relu", "compute", 60, 80),
)
AFTER: tuple[Row, ...] = (
    ("step", "step", 0, 150),
    ("gemm", "compute", 0, 30),
    ("gemm", "compute", 30, 60),
    ("ncclDevKernel_AllReduce", "communication", 60, 100),
    ("gelu", "compute", 100, 110),
    ("Memcpy DtoH", "copy", 105, 120),
)


def changes(found: Sequence[ItemChange]) -> dict[str, int]:
    return {change.item.name or change.item.part: change.change_ns for change in found}


def assert_adds_up(found: StepDifference) -> None:
    for names in DIVISIONS:
        together = [change for name in names for change in getattr(found, name)]
        assert sum(change.before_ns for change in together) == found.before.step_ns
        assert sum(change.after_ns for change in together) == found.after.step_ns
        assert sum(change.change_ns for change in together) == found.change_ns
    for change in found.kernels:
        assert change.count_effect_ns + change.duration_effect_ns + change.hiding_effect_ns == change.change_ns


def test_a_step_that_the_loop_did_not_come_to_changes_nothing() -> None:
    found = difference([timeline(*BEFORE)], [timeline(*BEFORE, ("left open", "step", 100, 110))])
    assert (found.change_ns, found.after.steps) == (0, 1)
    assert not any(changes(found.kernels).values())


def test_the_parts_of_a_change_are_what_they_are_by_hand() -> None:
    found = difference([timeline(*BEFORE)], [timeline(*AFTER)])
    assert found.change_ns == 50
    assert changes(found.parts) == {"exposed_communication": 20, "compute": 10, "exposed_copies": 10, "idle": 10}
    assert changes(found.kernels) == {
        "gemm": 20,
        "ncclDevKernel_AllReduce": 20,
        "gelu": 10,
        "Memcpy DtoH": 10,
        "relu": -20,
    }
    assert_adds_up(found)


def test_what_is_new_and_what_is_gone_is_named() -> None:
    found = difference([timeline(*BEFORE)], [timeline(*AFTER)])
    seen = {change.item.name: change.seen for change in found.kernels}
    assert seen == {
        "gemm": "both",
        "ncclDevKernel_AllReduce": "both",
        "gelu": "new",
        "Memcpy DtoH": "new",
        "relu": "gone",
    }


def test_a_kernel_that_runs_twice_and_a_collective_that_is_hidden_no_more_are_told_apart() -> None:
    found = difference([timeline(*BEFORE)], [timeline(*AFTER)])
    effects = {
        change.item.name: (change.count_effect_ns, change.duration_effect_ns, change.hiding_effect_ns)
        for change in found.kernels
    }
    # From 1 of 40 to 2 of 30: one more at 35, 10 shorter for 1.5 of them.
    assert effects["gemm"] == (35, -15, 0)
    # 10 longer, and 10 that gemm had covered.
    assert effects["ncclDevKernel_AllReduce"] == (0, 10, 10)


@pytest.mark.parametrize("is_back", [False, True])
def test_the_greatest_share_comes_first_also_where_the_step_became_shorter(is_back: bool) -> None:
    sides = [timeline(*BEFORE)], [timeline(*AFTER)]
    found = difference(*(reversed(sides) if is_back else sides))
    shares = [found.share(change) for change in found.kernels]
    assert [share for share in shares if share is not None] == sorted((share or 0.0 for share in shares), reverse=True)
    assert shares[0] == pytest.approx(20 / 50)


def test_two_like_traces_differ_in_nothing_and_have_no_shares() -> None:
    found = difference([timeline(*BEFORE)], [timeline(*BEFORE)])
    assert {change.change_ns for change in (*found.parts, *found.kernels, *found.idle)} == {0}
    assert {found.share(change) for change in found.parts} == {None}


def test_a_step_is_the_mean_of_all_whole_steps_and_ranks() -> None:
    two = timeline(
        ("step", "step", 0, 100), ("gemm", "compute", 0, 40), ("step", "step", 100, 180), ("gemm", "compute", 100, 160)
    )
    other = timeline(("step", "step", 0, 110), ("gemm", "compute", 0, 100), rank=1)
    found = difference([two, other], [timeline(*BEFORE)])
    assert found.before.step_ns == ((100 + 80) / 2 + 110) / 2
    assert found.parts[-1].item == Item(part="compute")
    assert found.parts[-1].before_ns == ((40 + 60) / 2 + 100) / 2
    assert found.notes[:2] == (
        "before: the mean of 3 whole steps of 2 ranks",
        "after: the mean of 1 whole step of 1 rank",
    )
    assert_adds_up(found)


def test_without_a_whole_step_on_one_side_whole_traces_are_compared_and_that_is_said() -> None:
    found = difference([timeline(*BEFORE[1:], rank=3)], [timeline(*AFTER)])
    assert (found.before.step_ns, found.after.step_ns) == (80, 120)
    assert "no whole step in the trace of rank 3 before: whole traces are compared, not steps" in found.notes


def test_a_rank_on_which_nothing_ran_is_left_out_and_named() -> None:
    found = difference([timeline(rank=5), timeline(*BEFORE)], [timeline(*AFTER)])
    assert found.before.ranks == (0,)
    assert "before: rank 5 is left out: nothing ran" in found.notes


def test_where_nothing_ran_at_all_there_is_nothing_to_compare() -> None:
    with pytest.raises(NothingToCompare, match=r"^after: no trace of the 1 holds a span that computes"):
        difference([timeline(*BEFORE)], [timeline()])


def test_collectives_are_told_by_name_and_size() -> None:
    def reduced(elements: int, end_ns: int) -> Timeline:
        call = Call(collective="all_reduce", group="0", given_elements=elements, dtype="float")
        kernel = Span(name="nccl", kind="communication", start_ns=0, end_ns=end_ns, stream=1, call=call)
        return timeline_of([kernel], rank=0, is_device=True)

    found = difference([reduced(8, 10)], [reduced(16, 25)])
    assert [(change.item.collective, change.item.shape, change.change_ns) for change in found.collectives] == [
        ("all_reduce", "16 float", 25),
        ("all_reduce", "8 float", -10),
    ]


def test_every_table_has_a_cell_for_each_column_and_the_first_ones_add_up() -> None:
    tables = {table.name: table for table in difference([timeline(*BEFORE)], [timeline(*AFTER)]).tables()}
    assert tables["step"].rows == ((100, 150, 50),)
    for table in tables.values():
        assert all(len(row) == len(table.columns) for row in table.rows)
    shares = [row[-1] for row in tables["parts"].rows]
    assert sum(share for share in shares if isinstance(share, float)) == pytest.approx(1)


def test_random_traces_of_ranks_add_up_to_the_nanosecond() -> None:
    chance = random.Random(8)
    kinds: tuple[SpanKind, ...] = ("compute", "communication", "copy")

    def drawn(rank: int) -> Timeline:
        rows: list[Row] = [("step", "step", start_ns, start_ns + 997) for start_ns in range(0, 3 * 997, 997)]
        for _ in range(60):
            start_ns = chance.randrange(3000)
            rows.append((f"k{chance.randrange(9)}", chance.choice(kinds), start_ns, start_ns + chance.randrange(80)))
        return timeline(*rows, rank=rank)

    for ranks in (1, 3, 7):
        assert_adds_up(difference([drawn(rank) for rank in range(ranks)], [drawn(rank) for rank in range(8)]))


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"no real traces in {TRACES}")
def test_real_ranks_against_each_other_change_as_their_breakdowns_do() -> None:
    ranks = [read_trace(TRACES / f"dlrm_v100_rank{rank}.json.gz") for rank in range(8)]
    found = difference(ranks[:4], ranks[4:])
    assert_adds_up(found)
    (*before,), (*after,) = ([breakdowns(rank)[0] for rank in side] for side in (ranks[:4], ranks[4:]))
    assert found.change_ns == sum(one.step_ns for one in after) / 4 - sum(one.step_ns for one in before) / 4
    assert {change.item.part: change.change_ns for change in found.parts} == {
        part: sum(getattr(one, field) for one in after) / 4 - sum(getattr(one, field) for one in before) / 4
        for part, field in (
            ("compute", "compute_ns"),
            ("exposed_communication", "exposed_communication_ns"),
            ("exposed_copies", "exposed_copy_ns"),
            ("idle", "idle_ns"),
        )
    }
