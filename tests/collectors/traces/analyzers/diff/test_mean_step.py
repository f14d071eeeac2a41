"""The mean over steps and ranks is in whole nanoseconds, which add up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from collectors.traces.analyzers.diff import mean_step
from collectors.traces.analyzers.step_division import Item
from collectors.traces.steps import StepInterval
from collectors.traces.timeline import Timeline
from tests.support.timelines import Span, timeline_of


def rank(number: int, *lengths_ns: int) -> tuple[Timeline, list[StepInterval]]:
    """Steps of which each is one kernel of this length, with a nanosecond before each."""
    spans, steps, now_ns = [], [], 0
    for length_ns in lengths_ns:
        end_ns = now_ns + 1 + length_ns
        spans.append(Span(name=f"gemm {length_ns % 3}", kind="compute", start_ns=now_ns + 1, end_ns=end_ns, stream=1))
        steps.append(StepInterval(part="step", name="step", start_ns=now_ns, end_ns=end_ns))
        now_ns = end_ns
    return timeline_of(spans, rank=number, is_device=False), steps


def test_each_rank_counts_alike_however_many_steps_it_has() -> None:
    found = mean_step([rank(0, 300), rank(1, 90, 120, 90)])
    assert (found.ranks, found.steps, found.step_ns) == ((0, 1), 4, 201)
    (gemm,) = (amount for item, amount in found.amounts.items() if item.part == "compute")
    assert (gemm.exposed_ns, gemm.work_ns, gemm.count) == (200, 200, 1)


@given(st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=4), min_size=1, max_size=3))
def test_whole_nanoseconds_add_up_to_the_rounded_step(lengths: list[list[int]]) -> None:
    ranks = [rank(number, *lengths_ns) for number, lengths_ns in enumerate(lengths)]
    found = mean_step(ranks)
    exact_ns = sum(sum(lengths_ns) / len(lengths_ns) for lengths_ns in lengths) / len(lengths) + 1
    assert abs(found.step_ns - exact_ns) <= 0.5 + 1e-9
    assert sum(amount.exposed_ns for amount in found.amounts.values()) == found.step_ns
    for amount in found.amounts.values():
        assert -1 < amount.exposed_ns - amount.work_ns < 1


def test_what_only_one_rank_runs_counts_with_its_share() -> None:
    found = mean_step([rank(0, 3), rank(1, 1)])
    assert found.amounts[Item(part="compute", name="gemm 0", operator="gemm 0")].count * 2 == 1
