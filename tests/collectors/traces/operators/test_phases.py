"""Phases of steps by the names that torch gives, on timelines that were made by hand."""

from __future__ import annotations

import numpy as np

from collectors.traces.operators import PHASES, StepPhase, phases
from collectors.traces.timeline import SpanKind, Timeline
from tests.support.timelines import Span, timeline_of

BACKWARD = "autograd::engine::evaluate_function: MmBackward0"


def timeline(*spans: tuple[str, int, int], thread: int = 1, others: list[Span] | None = None) -> Timeline:
    """Those of one thread; a step is called so."""
    kinds: dict[str, SpanKind] = {"step": "step"}
    rows = [
        Span(name=name, kind=kinds.get(name, "host"), start_ns=start_ns, end_ns=end_ns, stream=thread)
        for name, start_ns, end_ns in spans
    ]
    return timeline_of([*rows, *(others or [])], rank=0, is_device=True)


def found(traced: Timeline) -> list[tuple[int, StepPhase]]:
    told = phases(traced)
    assert told is not None
    return [
        (start_ns, PHASES[phase]) for start_ns, phase in zip(told.start_ns.tolist(), told.phase.tolist(), strict=True)
    ]


STEP = (
    ("step", 0, 100),
    ("Optimizer.zero_grad#AdamW.zero_grad", 1, 3),
    ("aten::zero_", 2, 3),
    ("aten::linear", 10, 20),
    ("aten::addmm", 12, 18),
    ("aten::relu", 20, 25),
    (BACKWARD, 30, 40),
    ("aten::mm", 32, 38),
    (BACKWARD, 41, 50),
    ("Optimizer.step#AdamW.step", 60, 80),
    ("aten::add_", 62, 64),
)


def test_a_step_goes_forward_backward_and_updates() -> None:
    assert found(timeline(*STEP)) == [(0, "between"), (10, "forward"), (30, "backward"), (60, "optimizer")]


def test_the_next_step_begins_anew() -> None:
    later = [(name, start_ns + 100, end_ns + 100) for name, start_ns, end_ns in STEP[3:]]
    assert found(timeline(*STEP[:6], ("step", 100, 200), *later))[2:4] == [(100, "between"), (110, "forward")]


def test_each_microbatch_has_its_own_forward_and_backward() -> None:
    spans = [("aten::mm", 0, 1), (BACKWARD, 2, 3), ("aten::mm", 4, 5), (BACKWARD, 6, 7)]
    assert [phase for _, phase in found(timeline(*spans))] == ["forward", "backward", "forward", "backward"]


def test_operators_of_threads_that_run_no_step_are_no_forward() -> None:
    copied = Span(name="aten::copy_", kind="host", start_ns=55, end_ns=56, stream=2)
    assert (55, "forward") not in found(timeline(*STEP, others=[copied]))


def test_what_loads_data_does_not_go_forward() -> None:
    loading = ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 4, 8)
    assert found(timeline(*STEP, loading, ("aten::stack", 5, 6)))[:2] == [(0, "between"), (10, "forward")]


def test_where_nothing_goes_backward_there_are_no_phases() -> None:
    assert phases(timeline(("aten::mm", 0, 1))) is None


def test_a_moment_lies_in_the_last_stretch_that_began() -> None:
    told = phases(timeline(*STEP))
    assert told is not None
    assert told.at(np.array([-1, 0, 29, 30, 99])).tolist() == [-1, 0, 1, 2, 3]
