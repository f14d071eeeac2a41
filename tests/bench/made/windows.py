"""Windows of made-up ranks, one of which may come late to every all-reduce because it computes longer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from collectors.traces.event_names import STEP
from collectors.traces.timeline import Call, Timeline
from tests.support.timelines import Span, timeline_of

STEP_NS, TRANSFER_NS, COMPUTE_NS = 1_000_000, 100_000, 200_000
ELEMENTS = 1_000


def made_windows(late_by_step: Sequence[tuple[int, int]], *, ranks: int = 4, step_ns: int = STEP_NS) -> list[Timeline]:
    """One Timeline a rank: a step for each pair of the rank that is late in it and of how many nanoseconds.

    A step has one all-reduce of `ELEMENTS` floats, to which all other ranks come after `COMPUTE_NS`, and which ends on
    all ranks `TRANSFER_NS` after the last has come. The step before them has one that nobody is late to.
    """
    return [
        timeline_of(_spans(rank, [(0, 0), *late_by_step], ranks, step_ns), rank=rank, is_device=True)
        for rank in range(ranks)
    ]


def _spans(rank: int, late_by_step: Sequence[tuple[int, int]], ranks: int, step_ns: int) -> Iterator[Span]:
    call = Call(
        collective="all_reduce",
        group="0",
        ranks=tuple(range(ranks)),
        dtype="float32",
        given_elements=ELEMENTS,
        filled_elements=ELEMENTS,
    )
    for step, (late, late_ns) in enumerate(late_by_step):
        begin_ns = step * step_ns
        arrival_ns = begin_ns + COMPUTE_NS + (late_ns if rank == late else 0)
        end_ns = begin_ns + COMPUTE_NS + late_ns + TRANSFER_NS
        yield Span(name=STEP, kind="step", start_ns=begin_ns, end_ns=begin_ns + step_ns, stream=1)
        yield Span(name="gemm", kind="compute", start_ns=begin_ns, end_ns=arrival_ns, stream=7)
        yield Span(
            name="ncclDevKernel_AllReduce",
            kind="communication",
            start_ns=arrival_ns,
            end_ns=end_ns,
            stream=20,
            call=call,
            sequence=step,
        )
