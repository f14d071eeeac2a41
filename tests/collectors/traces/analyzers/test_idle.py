"""Idle time is given per stretch of a trace, and its longest gaps are named."""

from collectors.traces.analyzers.idle import GAPS_SHOWN, Idle, idle
from collectors.traces.analyzers.summary import summary
from collectors.traces.timeline import Timeline
from tests.support.timelines import Span, timeline_of


def _launched(name: str, correlation: int, launch_ns: int, start_ns: int, end_ns: int) -> list[Span]:
    return [
        Span(
            name="cudaLaunchKernel",
            kind="launch",
            start_ns=launch_ns,
            end_ns=launch_ns + 1,
            stream=1,
            correlation=correlation,
        ),
        Span(name=name, kind="compute", start_ns=start_ns, end_ns=end_ns, stream=7, correlation=correlation),
    ]


def _step(number: int, start_ns: int, end_ns: int) -> Span:
    return Span(name=f"ProfilerStep#{number}", kind="step", start_ns=start_ns, end_ns=end_ns, stream=1)


def _device(*spans: Span) -> Timeline:
    return timeline_of(spans, rank=3, is_device=True)


TIMELINE = _device(
    _step(1, 0, 100),
    *_launched("gemm", 1, 10, 12, 60),
    *_launched("relu", 2, 20, 61, 90),
    _step(2, 100, 200),
    *_launched("gemm", 3, 150, 155, 190),
)


def _rows(found: Idle, name: str) -> list[dict[str, object]]:
    (table,) = (table for table in found.tables() if table.name == name)
    columns = [column.name for column in table.columns]
    return [dict(zip(columns, row, strict=True)) for row in table.rows]


def test_causes_are_given_for_the_trace_and_for_each_step() -> None:
    found = idle([TIMELINE])
    assert [(share.stretch.name, share.idle_ns, share.causes_ns["host_bound"]) for share in found.shares] == [
        ("trace", 66, 60),
        ("ProfilerStep#1", 23, 20),  # Until the launch of its first work, and after its last.
        ("ProfilerStep#2", 65, 60),
    ]
    assert [share.causes_ns["launch_gap"] for share in found.shares] == [6, 3, 5]


def test_idle_time_is_that_of_the_summary() -> None:
    of_summary = [(share.stretch, share.breakdown.idle_ns) for share in summary([TIMELINE]).shares]
    assert [(share.stretch, share.idle_ns) for share in idle([TIMELINE]).shares] == of_summary


def test_the_longest_gaps_come_first_with_what_is_on_both_sides() -> None:
    longest, *_, shortest = idle([TIMELINE]).longest
    assert (longest.rank, longest.start_ns, longest.end_ns) == (3, 90, 155)
    assert (longest.after, longest.before, longest.cause) == ("relu", "gemm", "host_bound")
    assert (shortest.after, shortest.before, shortest.cause) == ("gemm", "relu", "launch_gap")


def test_before_a_gap_stands_what_ended_last_and_not_what_started_last() -> None:
    spans = [
        Span(name=name, kind="compute", start_ns=start_ns, end_ns=end_ns, stream=stream)
        for name, start_ns, end_ns, stream in (("long", 0, 50, 7), ("short", 5, 20, 8), ("next", 60, 70, 8))
    ]
    (gap,) = idle([_device(*spans)]).longest
    assert (gap.after, gap.before) == ("long", "next")


def test_of_many_gaps_the_longest_are_shown() -> None:
    spans = [
        span
        for number in range(2 * GAPS_SHOWN)
        for span in _launched("gemm", number, 1000 * number, 1000 * number + number, 1000 * number + 500)
    ]
    found = idle([_device(*spans)])
    assert len(found.longest) == GAPS_SHOWN
    assert {gap.end_ns - gap.start_ns for gap in found.longest} == {500 + number for number in range(20, 40)}


def test_tables_count_from_the_first_work() -> None:
    found = idle([TIMELINE])
    first = _rows(found, "gaps")[0]
    assert (first["rank"], first["start"], first["length"]) == (3, 78, 65)
    (trace,) = _rows(found, "causes")
    assert (trace["idle"], trace["idle_share"], trace["other"]) == (66, 66 / 178, 0)
    assert [row["step"] for row in _rows(found, "steps")] == ["ProfilerStep#1", "ProfilerStep#2"]


def test_what_cannot_be_told_is_absent_and_said() -> None:
    spans = [
        Span(name="aten::mm", kind="compute", start_ns=start_ns, end_ns=start_ns + 5, stream=1) for start_ns in (0, 9)
    ]
    found = idle([timeline_of(spans, rank=1, is_device=False)])
    (trace,) = _rows(found, "causes")
    assert (trace["idle"], trace["host_bound"], trace["collective"], trace["other"]) == (4, None, None, 4)
    assert found.notes == ("rank 1: its trace has no device, so nothing is launched ahead, and other is the host",)


def test_gaps_before_work_of_unknown_launches_are_said() -> None:
    lost = Span(name="gemm", kind="compute", start_ns=210, end_ns=220, stream=7, correlation=9)
    spans = [*_launched("gemm", 1, 10, 12, 60), lost]
    assert idle([_device(*spans)]).notes == (
        "rank 3: the trace lacks the launch of the work that ends 1 of its gaps; they count as other",
    )


def test_a_rank_whose_trace_is_empty_is_said() -> None:
    found = idle([_device(_step(1, 0, 10))])
    assert (found.shares, found.longest) == ((), ())
    assert found.notes == ("rank 3: nothing computes, communicates or copies in its trace",)
