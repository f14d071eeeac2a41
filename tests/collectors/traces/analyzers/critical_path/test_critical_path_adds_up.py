"""Whatever traces hold, the parts of a critical path follow each other and add up to their steps."""

from __future__ import annotations

from itertools import pairwise
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.traces.analyzers.critical_path import CriticalPath, critical_path
from collectors.traces.timeline import SpanKind
from tests.collectors.traces.made.generated import Cause, generate
from tests.collectors.traces.made.small_traces import span
from tests.support.timelines import timeline_of

Event: TypeAlias = tuple[tuple[SpanKind, str], int, int, int, int | None]


@pytest.mark.parametrize("cause", ["compute", "data loading", "host", "copy", "an earlier collective"])
def test_parts_follow_each_other_and_add_up_to_each_step_of_eight_ranks(cause: Cause) -> None:
    found = critical_path(generate(3, straggler=5, cause=cause).timelines)
    assert len(found.steps) == 5
    for step in found.steps:
        assert step.parts[0].start_ns == step.start_ns
        assert step.parts[-1].end_ns == step.end_ns
        assert all(one.end_ns == other.start_ns for one, other in pairwise(step.parts))


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                ("compute", "aten::mm"),
                ("communication", "ncclDevKernel_AllReduce"),
                ("communication", "gloo:all_reduce"),
                ("copy", "Memcpy DtoH"),
                ("host", "c10d::allreduce_"),
                ("host", "written"),
                ("step", "observatory step"),
                ("launch", "cudaLaunchKernel"),
                ("launch", "cudaMemcpyAsync"),
                ("launch", "cudaStreamWaitEvent"),
                ("launch", "cudaStreamSynchronize"),
                ("wait", "Stream Sync"),
            ]
        ),
        st.integers(0, 300),
        st.integers(0, 100),
        st.integers(1, 3),
        st.one_of(st.none(), st.integers(0, 5)),
    ),
    max_size=25,
)


@given(ranks=st.lists(EVENTS, min_size=1, max_size=3), is_device=st.booleans())
@settings(deadline=None)
def test_whatever_the_traces_hold_parts_add_up_to_their_steps(ranks: list[list[Event]], is_device: bool) -> None:
    timelines = [
        timeline_of(
            (span(kind, name, start, start + lasts, stream, key) for (kind, name), start, lasts, stream, key in events),
            rank=rank,
            is_device=is_device,
        )
        for rank, events in enumerate(ranks)
    ]
    for step in critical_path(timelines).steps:
        assert sum(part.lasting_ns for part in step.parts) == step.step_ns
        assert all(one.end_ns == other.start_ns for one, other in pairwise(step.parts))


def _on_rank(found: CriticalPath, rank: int) -> int:
    return sum(part.lasting_ns for step in found.steps for part in step.parts if part.rank == rank)


def test_the_path_of_eight_ranks_lies_on_their_straggler() -> None:
    found = critical_path(generate(3, straggler=5, delay_ns=3_000_000).timelines)
    whole_ns = sum(step.step_ns for step in found.steps)
    assert _on_rank(found, 5) > whole_ns / 2
    assert all(_on_rank(found, rank) < _on_rank(found, 5) / 2 for rank in range(8) if rank != 5)
