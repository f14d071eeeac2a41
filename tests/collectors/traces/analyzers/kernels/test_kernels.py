"""The tables of kernels hold what was found, and notes say what was not."""

from collectors.traces.analyzers.kernels import Kernels, kernels
from tests.support.timelines import Span, timeline_of

SPANS = (
    Span(name="cudaLaunchKernel", kind="launch", start_ns=0, end_ns=2, stream=1, correlation=1),
    Span(name="gemm", kind="compute", start_ns=5, end_ns=9, stream=7, correlation=1),
    Span(name="cudaGraphLaunch", kind="launch", start_ns=3, end_ns=4, stream=1, correlation=2),
    Span(name="gemm", kind="compute", start_ns=9, end_ns=12, stream=7, correlation=2),
    Span(name="relu", kind="compute", start_ns=12, end_ns=13, stream=7, correlation=2),
    Span(name="cudaLaunchKernel", kind="launch", start_ns=15, end_ns=16, stream=1, correlation=3),
    Span(name="relu", kind="compute", start_ns=14, end_ns=15, stream=7, correlation=3),
    Span(name="Memset", kind="copy", start_ns=20, end_ns=21, stream=7, correlation=4),
)


def _rows(found: Kernels, name: str) -> list[dict[str, object]]:
    (table,) = (table for table in found.tables() if table.name == name)
    columns = [column.name for column in table.columns]
    return [dict(zip(columns, row, strict=True)) for row in table.rows]


def test_each_table_holds_its_figures_under_their_names() -> None:
    found = kernels([timeline_of(SPANS, rank=4, is_device=True)])
    assert [
        (row["kind"], row["name"], row["count"], row["total"], row["union"]) for row in _rows(found, "kernels")
    ] == [
        ("compute", "gemm", 2, 7, 7),
        ("compute", "relu", 2, 2, 2),
        ("copy", "Memset", 1, 1, 1),
    ]
    assert [(row["rank"], row["kind"], row["count"]) for row in _rows(found, "kinds")] == [
        (4, "compute", 4),
        (4, "copy", 1),
    ]
    assert [(row["rank"], row["kind"], row["total"]) for row in _rows(found, "launch_delays")] == [
        (4, "compute", 5),
        (4, "graph", 6),
    ]
    assert [(row["stream"], row["longest"]) for row in _rows(found, "queues")] == [("all", 2), (7, 2)]


def test_a_queue_of_one_of_several_devices_is_named_with_it() -> None:
    spans = [
        Span(name="cudaLaunchKernel", kind="launch", start_ns=0, end_ns=2, stream=1, correlation=1),
        Span(name="gemm", kind="compute", start_ns=5, end_ns=9, stream=(3 << 32) + 7, correlation=1),
    ]
    found = kernels([timeline_of(spans, rank=0, is_device=True)])
    assert [row["stream"] for row in _rows(found, "queues")] == ["all", "7 of GPU 3"]


def test_what_has_no_delay_is_said() -> None:
    assert kernels([timeline_of(SPANS, rank=4, is_device=True)]).notes == (
        "rank 4: the trace lacks the launches of 1 of its spans; delays and queues leave them out",
        "rank 4: 1 launches come after their work by the trace's clocks; delays and queues leave them out",
        "rank 4: graphs launched 2 spans; the delay of a graph is that of the first of them",
    )


def test_a_trace_without_a_device_has_operators_and_no_launches() -> None:
    spans = [Span(name="aten::mm", kind="compute", start_ns=0, end_ns=9, stream=1)]
    found = kernels([timeline_of(spans, rank=0, is_device=False)])
    assert [row["name"] for row in _rows(found, "kernels")] == ["aten::mm"]
    assert (_rows(found, "launch_delays"), _rows(found, "queues")) == ([], [])
    (note,) = found.notes
    assert note.startswith("rank 0: its trace has no device")


def test_a_trace_in_which_nothing_ran_is_said_to_be_that_and_no_more() -> None:
    spans = [Span(name="ProfilerStep#1", kind="step", start_ns=0, end_ns=9, stream=1)]
    found = kernels([timeline_of(spans, rank=2, is_device=is_device) for is_device in (False, True)])
    assert found.notes == ("rank 2: nothing computes, communicates or copies in its trace",) * 2
