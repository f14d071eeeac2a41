"""On real traces the parts of a critical path add up to its steps, and ranks that are waited for are on it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from collectors.traces.analyzers.critical_path import critical_path
from collectors.traces.dependency_graph.graph import replay
from collectors.traces.dependency_graph.rank_graph import common_steps, joined_graph
from collectors.traces.reading.reader import read_trace
from collectors.traces.timeline import Timeline

TRACES = Path(__file__).parents[5] / "../shared/data/traces"
ALONE = ("resnet_mi300x_rank0_of_8", "nccl_a100_rank0_of_2", "a100_rank3_of_8")
TOGETHER = tuple(f"dlrm_v100_rank{rank}" for rank in range(8))


def _read(*names: str) -> list[Timeline]:
    if not TRACES.exists():
        pytest.skip(f"{TRACES} is not here")
    return [read_trace(TRACES / f"{name}.json.gz") for name in names]


@pytest.mark.parametrize("names", [*((name,) for name in ALONE), TOGETHER], ids=[*ALONE, "dlrm_v100"])
def test_parts_follow_each_other_from_the_start_of_each_step_to_its_end(names: tuple[str, ...]) -> None:
    steps = critical_path(_read(*names)).steps
    assert steps
    for step in steps:
        assert (step.parts[0].start_ns, step.parts[-1].end_ns) == (step.start_ns, step.end_ns)
        assert all(one.end_ns == other.start_ns for one, other in pairwise(step.parts))


@pytest.mark.parametrize("name", ALONE)
def test_steps_that_follow_each_other_are_no_longer_together_whatever_is_free(name: str) -> None:
    steps = critical_path(_read(name)).steps
    whole_ns = sum(step.step_ns for step in steps)
    assert all(sum(step.free_ns[kind] for step in steps) <= whole_ns for kind in steps[0].free_ns)


@pytest.mark.parametrize("names", [(name,) for name in (*ALONE, *TOGETHER)] + [TOGETHER])
def test_no_step_costs_more_whatever_is_free(names: tuple[str, ...]) -> None:
    for step in critical_path(_read(*names)).steps:
        assert max(step.free_ns.values()) <= step.step_ns


def test_free_communication_leaves_each_step_the_computation_of_its_path() -> None:
    # Its device is a step behind its host, so that what it has left to do before the first step is communication too.
    steps = critical_path(_read("resnet_mi300x_rank0_of_8")).steps
    assert all(step.free_ns["communication"] >= step.spent_ns("compute") > 0 for step in steps)


@pytest.mark.parametrize("name", ALONE)
def test_the_graph_replays_to_the_times_that_were_recorded(name: str) -> None:
    ranks = _read(name)
    graph = joined_graph(ranks, (), common_steps(ranks).marks).graph
    assert (replay(graph) == graph.time_ns).all()


def test_steps_that_the_host_sets_the_pace_of_are_made_of_the_host() -> None:
    # Its device computes for 116 of 667 ms, and is idle for most of the rest.
    for step in critical_path(_read("nccl_a100_rank0_of_2")).steps:
        assert step.spent_ns("host") + step.spent_ns("launch") > 0.99 * step.step_ns


def test_steps_that_communication_sets_the_pace_of_are_made_of_it() -> None:
    # Its host is a step ahead of the device, where a collective of 15 ms covers nearly all of each step.
    for step in critical_path(_read("resnet_mi300x_rank0_of_8")).steps:
        assert step.spent_ns("communication") > 0.8 * step.step_ns
        assert step.spent_ns("host") == 0


def test_where_nearly_all_communication_is_waiting_the_path_is_hardly_communication() -> None:
    (together,) = critical_path(_read(*TOGETHER)).steps
    assert together.spent_ns("communication") < 0.01 * together.step_ns
    (alone,) = critical_path(_read(TOGETHER[0])).steps
    assert alone.spent_ns("communication") > 0.2 * alone.step_ns
