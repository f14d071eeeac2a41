"""What runs is counted, added up and united by name and by kind."""

import pytest

from collectors.traces.analyzers.kernels import kernel_times
from collectors.traces.intervals import length_ns, union
from collectors.traces.timeline import SpanKind, Timeline
from tests.support.timelines import Span, timeline_of


def _timeline(rank: int, *spans: tuple[str, SpanKind, int, int]) -> Timeline:
    return timeline_of(
        [
            Span(name=name, kind=kind, start_ns=start_ns, end_ns=end_ns, stream=number)
            for number, (name, kind, start_ns, end_ns) in enumerate(spans)
        ],
        rank=rank,
        is_device=True,
    )


ONE = _timeline(
    2,
    ("cudaLaunchKernel", "launch", 0, 99),
    ("gemm", "compute", 0, 10),
    ("gemm", "compute", 6, 12),
    ("ncclKernel", "communication", 5, 9),
)
OTHER = _timeline(5, ("ncclKernel", "communication", 7, 17), ("gemm", "compute", 8, 10), ("Memcpy", "copy", 1, 3))


def test_by_name_ranks_are_together_and_the_longest_is_first() -> None:
    found = kernel_times([ONE, OTHER]).by_name
    assert [(time.name, time.kind, time.durations.count, time.durations.total_ns, time.union_ns) for time in found] == [
        ("gemm", "compute", 3, 18, 14),  # 0 to 12 on one rank and 8 to 10 on the other.
        ("ncclKernel", "communication", 2, 14, 14),
        ("Memcpy", "copy", 1, 2, 2),
    ]
    assert {time.rank for time in found} == {None}


def test_by_kind_ranks_are_apart() -> None:
    found = kernel_times([ONE, OTHER]).by_kind
    assert [(time.rank, time.kind, time.durations.total_ns, time.union_ns) for time in found] == [
        (2, "compute", 16, 12),
        (2, "communication", 4, 4),
        (5, "compute", 2, 2),
        (5, "communication", 10, 10),
        (5, "copy", 2, 2),
    ]


def test_shares_are_of_all_that_ran() -> None:
    found = kernel_times([ONE, OTHER])
    assert found.by_name[0].share == pytest.approx(18 / 34)
    assert sum(time.share for time in found.by_name) == pytest.approx(1)
    assert [time.share for time in found.by_kind if time.rank == 2] == pytest.approx([0.8, 0.2])


def test_a_name_of_two_kinds_is_two() -> None:
    found = kernel_times([_timeline(0, ("memory", "compute", 0, 3), ("memory", "copy", 0, 2))]).by_name
    assert [(time.name, time.kind) for time in found] == [("memory", "compute"), ("memory", "copy")]


def test_unions_of_unix_times_are_those_of_each_name_alone() -> None:
    now_ns = 1_700_000_000_000_000_000
    spans: list[tuple[str, SpanKind, int, int]] = [
        (f"kernel {number % 3}", "compute", now_ns + 7 * number, now_ns + 7 * number + 5 * (number % 5))
        for number in range(60)
    ]
    timeline = _timeline(0, *spans)
    for time in kernel_times([timeline]).by_name:
        assert time.name is not None
        chosen = timeline.name == timeline.names.index(time.name)
        assert time.union_ns == length_ns(union(timeline.start_ns[chosen], timeline.end_ns[chosen]))


def test_one_wrong_time_makes_no_union_wrong() -> None:
    now_ns = 1_700_000_000_000_000_000
    spans: list[tuple[str, SpanKind, int, int]] = [
        (f"kernel {number}", "compute", now_ns + number, now_ns + number + 5) for number in range(9)
    ]
    found = kernel_times([_timeline(0, ("kernel 0", "compute", 0, 5), *spans)]).by_name
    assert {time.name: time.union_ns for time in found} == {
        f"kernel {number}": 5 + 5 * (not number) for number in range(9)
    }


def test_names_that_each_run_from_the_first_moment_to_the_last_stay_apart() -> None:
    found = kernel_times([_timeline(0, ("one", "compute", 0, 9), ("other", "compute", 0, 9))]).by_name
    assert [time.union_ns for time in found] == [9, 9]


def test_where_nothing_runs_there_are_no_times() -> None:
    found = kernel_times([_timeline(0, ("cudaLaunchKernel", "launch", 0, 99))])
    assert (found.by_name, found.by_kind) == ((), ())
