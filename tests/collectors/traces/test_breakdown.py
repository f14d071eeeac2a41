"""The division of a step is exact on steps that were made by hand."""

import pytest

from collectors.catalogue import communication as metrics
from collectors.traces.breakdown import Breakdown, breakdowns, why_no_communication
from collectors.traces.spans import Kind, Span, Timeline, timeline_of


def _timeline(*spans: tuple[Kind, int, int], is_device: bool = True) -> Timeline:
    return timeline_of(
        [
            Span(name=f"{kind} {number % 2}", kind=kind, start_ns=start, end_ns=end, stream=number)
            for number, (kind, start, end) in enumerate(spans)
        ],
        rank=0,
        is_device=is_device,
    )


def test_each_share_of_a_step_is_what_it_is_by_hand() -> None:
    timeline = _timeline(
        ("step", 0, 100),
        ("compute", 0, 30),
        ("compute", 20, 40),  # Overlaps with the first on another stream: counts once.
        ("communication", 35, 60),
        ("copy", 55, 70),
        ("host", 0, 100),
    )
    assert breakdowns(timeline) == [
        Breakdown(
            step=0,
            step_ns=100,
            compute_ns=40,
            communication_ns=25,
            overlap_ns=5,
            exposed_communication_ns=20,
            exposed_copy_ns=10,
            idle_ns=30,
            collectives_ns={"other": (25, 5)},
        )
    ]


def test_a_span_over_the_edge_of_two_steps_counts_in_each_with_its_part() -> None:
    timeline = _timeline(("step", 0, 50), ("step", 50, 100), ("compute", 40, 70))
    assert [found.compute_ns for found in breakdowns(timeline)] == [10, 20]


def test_what_lies_outside_of_steps_counts_nowhere() -> None:
    timeline = _timeline(("compute", 0, 9), ("step", 10, 20), ("compute", 30, 40))
    assert [found.compute_ns for found in breakdowns(timeline)] == [0]


def test_without_communication_it_is_absent_and_the_names_that_were_seen_are_said() -> None:
    timeline = _timeline(("step", 0, 10), ("compute", 0, 5), ("compute", 5, 6), ("compute", 6, 7))
    (found,) = breakdowns(timeline)
    assert (found.communication_ns, found.overlap_ns, found.exposed_communication_ns) == (None, None, None)
    assert why_no_communication(timeline) == ("no communication kernels found; names seen: compute 1, compute 0")
    known = {sample.metric for sample in found.samples()}
    assert known == {
        metrics.TRACED_STEP_SECONDS.name,
        metrics.COMPUTE_SECONDS.name,
        metrics.EXPOSED_COPY_SECONDS.name,
        metrics.IDLE_SECONDS.name,
    }


def test_a_step_without_communication_beside_one_with_has_none_and_not_zero() -> None:
    timeline = _timeline(("step", 0, 10), ("step", 10, 20), ("communication", 2, 4), ("compute", 0, 20))
    assert [found.communication_ns for found in breakdowns(timeline)] == [2, None]


def test_on_the_host_copies_are_no_share_of_their_own() -> None:
    (found,) = breakdowns(_timeline(("step", 0, 10), ("compute", 0, 5), is_device=False))
    assert found.exposed_copy_ns is None
    assert found.idle_ns == 5


def test_samples_are_seconds_and_ratios_of_what_they_say() -> None:
    timeline = _timeline(
        ("step", 0, 1_000_000_000), ("compute", 0, 400_000_000), ("communication", 300_000_000, 500_000_000)
    )
    (found,) = breakdowns(timeline)
    values = {sample.metric: sample.value for sample in found.samples()}
    assert values[metrics.COMMUNICATION_SECONDS.name] == 0.2
    assert values[metrics.OVERLAP_RATIO.name] == pytest.approx(0.5)
    assert values[metrics.EXPOSED_COMMUNICATION_RATIO.name] == pytest.approx(0.1)
    assert values[metrics.IDLE_SECONDS.name] == 0.5


def test_each_collective_has_its_own_overlap() -> None:
    spans: tuple[tuple[str, Kind, int, int], ...] = (
        ("observatory step", "step", 0, 100),
        ("aten::mm", "compute", 0, 40),
        ("gloo:send", "communication", 30, 50),
        ("gloo:recv", "communication", 45, 60),  # Of the same message: the overlap counts once.
        ("gloo:all_reduce", "communication", 60, 80),
    )
    timeline = timeline_of(
        [Span(name=name, kind=kind, start_ns=start, end_ns=end, stream=0) for name, kind, start, end in spans],
        rank=0,
        is_device=False,
    )
    (found,) = breakdowns(timeline)
    assert found.collectives_ns == {"all_reduce": (20, 0), "send": (30, 10)}
    ratios = [sample for sample in found.samples() if sample.metric == metrics.COLLECTIVE_OVERLAP_RATIO.name]
    assert ratios == [
        metrics.COLLECTIVE_OVERLAP_RATIO.at(0, collective="all_reduce"),
        metrics.COLLECTIVE_OVERLAP_RATIO.at(10 / 30, collective="send"),
    ]


def test_a_collective_that_a_step_holds_none_of_is_absent_there() -> None:
    timeline = _timeline(("step", 0, 10), ("step", 10, 20), ("communication", 12, 14))
    assert [found.collectives_ns for found in breakdowns(timeline)] == [{}, {"other": (2, 0)}]
