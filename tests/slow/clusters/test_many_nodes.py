"""One runner of 512 and of 1,024 nodes: no link is lost, each byte is there once, and a node costs what it costs of 64.

The agents are made ones in two processes, whose CPU time is not the runner's; what is beyond them is real.
"""

from __future__ import annotations

import functools
import resource

import pytest

from tests.benchmarks.scale import RANKS, Figures, Plan, measured

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(600)]

BEATS, BEAT_S = 8, 2.0
MOST_BYTES = 500e6


@functools.cache
def _of(nodes: int) -> Figures:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip(f"the hard limit of open files is {hard}")
    return measured(Plan(nodes=nodes, beats=BEATS, beat_s=BEAT_S))


@pytest.mark.parametrize("nodes", [512, 1024])
def test_no_link_is_lost_and_each_byte_is_there_once(nodes: int) -> None:
    figures = _of(nodes)
    assert (figures.outcome, figures.left_out) == ("done", {})
    assert (figures.wrong, figures.notes) == ((), ())
    assert figures.logs == nodes * RANKS


@pytest.mark.parametrize("nodes", [512, 1024])
def test_the_runner_keeps_up_with_the_progress_of_its_nodes(nodes: int) -> None:
    assert _of(nodes).queued_beats <= 2


def test_the_runner_of_1024_nodes_has_the_threads_of_one_of_64_and_less_than_half_a_gigabyte() -> None:
    assert _of(1024).threads == _of(64).threads
    assert _of(1024).rss_bytes < MOST_BYTES


@pytest.mark.parametrize("nodes", [512, 1024])
def test_a_node_costs_the_runner_no_more_than_one_of_64_does(nodes: int) -> None:
    assert _of(nodes).cpu_s / nodes <= 1.5 * _of(64).cpu_s / 64


def test_a_case_that_was_half_collected_continues_and_its_folder_is_listed_once() -> None:
    figures = measured(Plan(nodes=128, beats=3, resumes=True))
    assert (figures.outcome, figures.wrong, figures.notes) == ("done", (), ())
    assert figures.listed == 1


def test_a_node_that_says_everything_a_beat_late_is_waited_for() -> None:
    figures = measured(Plan(nodes=64, beats=20, late=5))
    assert (figures.outcome, figures.wrong, figures.notes) == ("done", (), ())


def test_no_link_is_lost_when_the_network_drops_and_heals_for_all_nodes_at_once() -> None:
    figures = measured(Plan(nodes=64, beats=6, stops_s=3.0))
    assert (figures.outcome, figures.wrong, figures.notes) == ("done", (), ())


def test_an_agent_of_another_version_is_named_and_the_others_run() -> None:
    figures = measured(Plan(nodes=512, beats=2, stranger=300))
    assert list(figures.left_out) == ["node300"]
    assert "this agent has version another" in figures.left_out["node300"]
    assert (figures.outcome, figures.notes) == ("done", ())
