"""The division of every rank's time is exact, as union and as sum, and lists what no step holds."""

from hypothesis import given
from hypothesis import strategies as st

from collectors.traces.analyzers.summary import TraceSummary, summary
from collectors.traces.timeline import SpanKind, Timeline
from tests.support.timelines import Span, timeline_of

NOW_NS = 1_700_000_000_000_000_000


def _timeline(*spans: tuple[SpanKind, int, int], rank: int = 0, is_device: bool = True) -> Timeline:
    return timeline_of(
        [
            Span(
                name=f"ProfilerStep#{number}" if kind == "step" else f"{kind} {number}",
                kind=kind,
                start_ns=NOW_NS + start,
                end_ns=NOW_NS + end,
                stream=number,
            )
            for number, (kind, start, end) in enumerate(spans)
        ],
        rank=rank,
        is_device=is_device,
    )


def _rows(found: TraceSummary, name: str) -> list[dict[str, object]]:
    (table,) = (table for table in found.tables() if table.name == name)
    columns = [column.name for column in table.columns]
    return [dict(zip(columns, row, strict=True)) for row in table.rows]


TIMELINE = _timeline(
    ("step", 10, 60),
    ("compute", 0, 30),
    ("compute", 20, 40),
    ("communication", 35, 60),
    ("copy", 55, 70),
    ("compute", 90, 100),
    rank=2,
)


def test_a_whole_trace_lasts_from_its_first_work_to_its_last() -> None:
    (row,) = _rows(summary([TIMELINE]), "traces")
    assert row == {
        "rank": 2,
        "span": 100,
        "compute": 50,
        "communication": 25,
        "overlap": 5,
        "exposed_communication": 20,
        "exposed_copies": 10,
        "idle": 20,
        "overlap_share": 0.2,
        "exposed_share": 0.2,
        "idle_share": 0.2,
        "compute_work": 60,  # Two streams compute at once: time is less than work.
        "communication_work": 25,
        "copy_work": 15,
    }


def test_time_that_no_step_holds_is_listed_beside_the_steps() -> None:
    rows = _rows(summary([TIMELINE]), "steps")
    assert [(row["step"], row["part"], row["start"], row["span"], row["compute"]) for row in rows] == [
        ("before ProfilerStep#0", "partial", 0, 10, 10),
        ("ProfilerStep#0", "step", 10, 50, 30),
        ("after ProfilerStep#0", "partial", 60, 40, 10),
    ]
    assert [row["why"] for row in rows] == ["no step holds it", None, "no step holds it"]
    assert [row["compute_work"] for row in rows] == [10, 40, 10]


def test_each_collective_of_a_trace_has_its_overlap() -> None:
    (row,) = _rows(summary([TIMELINE]), "collectives")
    assert row == {"rank": 2, "collective": "other", "time": 25, "overlap": 5, "overlap_share": 0.2}


def test_communication_without_computation_beside_it_has_no_overlap_and_that_is_known() -> None:
    (row,) = _rows(summary([_timeline(("communication", 0, 5), ("compute", 5, 9))]), "traces")
    assert (row["overlap"], row["overlap_share"]) == (0, 0.0)


def test_what_a_stretch_holds_none_of_is_zero_where_the_trace_has_some() -> None:
    spans: tuple[tuple[SpanKind, int, int], ...] = (
        ("step", 0, 10),
        ("communication", 2, 4),
        ("step", 10, 20),
        ("compute", 12, 15),
    )
    one, other = _rows(summary([_timeline(*spans)]), "steps")
    names = ("compute", "communication", "overlap", "exposed_communication", "exposed_copies")
    assert [one[name] for name in (*names, "exposed_share")] == [0, 2, 0, 2, 0, 0.2]
    assert [other[name] for name in (*names, "exposed_share")] == [3, 0, 0, 0, 0, 0.0]
    works = ("compute_work", "communication_work", "copy_work")
    assert [[row[name] for name in works] for row in (one, other)] == [[0, 2, 0], [3, 0, 0]]
    # A share of nothing is no number.
    assert other["overlap_share"] is None


def test_ranks_stand_in_the_order_in_which_they_are_given() -> None:
    other = _timeline(("compute", 0, 5), rank=0)
    assert [row["rank"] for row in _rows(summary([TIMELINE, other]), "traces")] == [2, 0]


def test_what_is_not_there_is_absent_with_its_reason() -> None:
    found = summary([_timeline(("compute", 0, 5), rank=1, is_device=False)])
    (row,) = _rows(found, "traces")
    assert [row[name] for name in ("communication", "overlap_share", "exposed_copies", "copy_work")] == [None] * 4
    assert found.notes == (
        "rank 1: no communication kernels found; names seen: compute 0",
        "rank 1: its trace has no device: operators of the host compute, and copies are among them",
        "rank 1: no step is marked in its trace",
    )


def test_a_rank_whose_trace_is_empty_is_said() -> None:
    found = summary([_timeline(("host", 0, 5), rank=1)])
    assert (found.shares, found.notes) == ((), ("rank 1: nothing computes, communicates or copies in its trace",))


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 50)), min_size=1, max_size=12))
def test_work_in_a_step_is_the_sum_of_what_lies_in_it(spans: list[tuple[int, int]]) -> None:
    found = summary(
        [_timeline(("step", 30, 70), *(("compute", start, start + lasts) for start, lasts in spans), ("copy", 35, 36))]
    )
    (share,) = (share for share in found.shares if share.stretch.part == "step")
    expected = sum(max(0, min(start + lasts, 70) - max(start, 30)) for start, lasts in spans)
    assert share.work_ns.get("compute", 0) == expected
    assert share.work_ns["copy"] == 1
