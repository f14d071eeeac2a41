"""The alerts on agents, as Prometheus evaluates them minute by minute."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.metrics.agent import (
    AGENT_AGE_SECONDS,
    AGENT_BEATS,
    AGENT_COLLECTOR,
    AGENT_MISSED_BEATS,
    RANK_INFO,
)
from tests.stack.alerts.rehearsal import SCRAPED, Rehearsal, shown

pytestmark = pytest.mark.stack

UP = f'up{{job="{SCRAPED["job"]}",instance="{SCRAPED["instance"]}"}}'
BEATS = shown(AGENT_BEATS, "0+60x10 stale")


def test_an_agent_that_answers_no_more_is_told_after_five_minutes(tmp_path: Path) -> None:
    gone = Rehearsal(series={**BEATS, UP: "1x10 0x20"}, folder=tmp_path)
    gone.fires(at_minutes=14)
    gone.fires(("NodeAgentGone", ""), at_minutes=17)


def test_a_node_that_is_gone_is_told_with_the_run_and_the_ranks_that_were_on_it(tmp_path: Path) -> None:
    of_run = {"run": "8f2c", "host": "node1", "slot": "0"}
    series = {
        **BEATS,
        UP: "1x10 0x20",
        **shown(RANK_INFO, "1x10 stale", rank="0", **of_run),
        **shown(RANK_INFO, "1x10 stale", rank="1", **of_run),
        # This run had ended well before.
        **shown(RANK_INFO, "1x6 stale", rank="0", **{**of_run, "run": "older"}),
        # And this rank is of another node.
        **shown(RANK_INFO, "1x30", rank="2", **of_run, instance="node2:9464"),
    }
    Rehearsal(series=series, folder=tmp_path).says(
        "NodeAgentGone",
        {
            "summary": "node1:9464 is no longer monitored: no response for at least 5 minutes",
            "description": "`observatory serve` at node1:9464 has not responded for five minutes and is still"
            " listed as a target. The node, its network or the agent is down, and no other alert"
            " covers this node now. Last seen there: run 8f2c, ranks: 0, 1. Next: `observatory"
            " show 8f2c`.",
        },
        at_minutes=20,
        severity="critical",
    )


def test_an_agent_that_was_taken_off_the_list_is_not_missed(tmp_path: Path) -> None:
    Rehearsal(series={**BEATS, UP: "1x10 stale"}, folder=tmp_path).fires(at_minutes=17)


def test_a_target_that_never_was_an_agent_is_none_of_ours(tmp_path: Path) -> None:
    Rehearsal(series={UP: "0x30"}, folder=tmp_path).fires(at_minutes=17)


def test_an_agent_that_misses_a_third_of_its_beats_is_late(tmp_path: Path) -> None:
    series = {**shown(AGENT_BEATS, "0+40x40"), **shown(AGENT_MISSED_BEATS, "0+20x40")}
    late = Rehearsal(series=series, folder=tmp_path)
    late.fires(("NodeAgentLate", ""), at_minutes=30)
    late.says(
        "NodeAgentLate",
        {
            "summary": "The agent at node1:9464 misses 33.33% of its beats",
            "description": "In the last 10 minutes the agent at node1:9464 took no reading at 33.33% of its"
            " beats, so the node's series are older than they should be.",
        },
        at_minutes=30,
        severity="warning",
    )


def test_an_agent_that_misses_a_tenth_of_its_beats_is_not(tmp_path: Path) -> None:
    series = {**shown(AGENT_BEATS, "0+54x40"), **shown(AGENT_MISSED_BEATS, "0+6x40")}
    Rehearsal(series=series, folder=tmp_path).fires(at_minutes=30)


@pytest.mark.parametrize(("state", "told"), [("late", True), ("failed", True), ("answering", False)])
def test_a_collector_that_does_not_answer_is_told(state: str, told: bool, tmp_path: Path) -> None:
    series = shown(AGENT_COLLECTOR, "1x30", collector="nvml", state=state)
    Rehearsal(series=series, folder=tmp_path).fires(*[("NodeCollectorStale", "")] * told, at_minutes=20)


def test_a_watch_that_stands_still_is_told_though_nothing_is_late(tmp_path: Path) -> None:
    series = {
        **shown(AGENT_COLLECTOR, "1x30", collector="nvml", state="answering"),
        **shown(AGENT_AGE_SECONDS, "0+60x30", collector="nvml"),
    }
    Rehearsal(series=series, folder=tmp_path).fires(("NodeCollectorStale", ""), at_minutes=20)


@pytest.mark.parametrize(
    ("ages", "said"),
    [("0+30x30", ": its series are 10m 0s old"), (None, "")],
    ids=["of a known age", "that never answered"],
)
def test_a_collector_that_fails_is_told_once_with_the_age_of_what_is_shown(
    ages: str | None, said: str, tmp_path: Path
) -> None:
    series = shown(AGENT_COLLECTOR, "1x30", collector="nvml", state="failed")
    if ages is not None:
        series |= shown(AGENT_AGE_SECONDS, ages, collector="nvml")
    stale = Rehearsal(series=series, folder=tmp_path)
    stale.fires(("NodeCollectorStale", ""), at_minutes=20)
    stale.says(
        "NodeCollectorStale",
        {
            "summary": f"The collector nvml at node1:9464 does not respond{said}",
            "description": "For five minutes the collector nvml of the agent at node1:9464 has been late, or"
            " has failed. Its series are old or absent, and alerts on them do not fire.",
        },
        at_minutes=20,
        severity="warning",
        collector="nvml",
    )
