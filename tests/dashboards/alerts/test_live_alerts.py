"""The alerts on runs that go on, and on those that have failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.metrics import agent, rank, results
from collectors.metrics.metric import Metric
from tests.dashboards.alerts.drill import SCRAPED, Drill, Series, alert, joined, shown

pytestmark = pytest.mark.stack

RUN = {"run": "8f2c", "strategy": "ddp", "ranks": "2", "series": "0123456789ab"}
OWNER = {name: RUN[name] for name in ("strategy", "ranks", "series")} | {"device": "cuda", "precision": "bf16"}
GOES_ON = shown(agent.RUN_INFO, "1x200", **RUN, slot="0")


@pytest.fixture
def drill(tmp_path: Path) -> Drill:
    return Drill(group="runs", folder=tmp_path)


def _ranks(metric: Metric, *values: str, **labels: str) -> Series:
    return joined(*(shown(metric, one, **labels, rank=str(number), slot="0") for number, one in enumerate(values)))


def _told(name: str, **labels: str) -> list[dict[str, str]]:
    return [alert(name, **labels, run=RUN["run"])]


# Speed against the newest result.

STRAGGLER = results.RUN_STRAGGLER_RATIO.statistic("median")
KNOWN = shown(results.RUN_TOKENS_PER_SECOND_PER_DEVICE.statistic("low"), "100x200", **OWNER)
SLOW = {**_ranks(rank.TOKENS_PER_SECOND, "89x100 99x100", "89x100 99x100"), **KNOWN}


def test_a_run_is_slow_after_an_hour_and_no_more_when_it_is_fast_again(drill: Drill) -> None:
    drill.fires(joined(GOES_ON, SLOW), {50: [], 65: _told("RunSlow"), 112: []})


def test_it_says_how_slow_beside_which_result(drill: Drill) -> None:
    drill.says(
        joined(GOES_ON, SLOW),
        "RunSlow",
        70,
        RUN,
        summary="ddp on 2 ranks (run 8f2c) runs at 89% of its usual speed",
        description="Over the last 5 minutes ddp on 2 ranks (run 8f2c) reached 89% of the tokens per second and"
        " device of the newest result of its series 0123456789ab (low end of the interval). Over 60"
        " minutes it was also below 90%. Compare the ranks' step times and look for a throttled"
        " GPU. The run continues, so nothing is lost yet.",
    )


def test_a_run_just_fast_enough_is_not_slow(drill: Drill) -> None:
    drill.fires(joined(GOES_ON, KNOWN, _ranks(rank.TOKENS_PER_SECOND, "91x200", "90x200")), {100: []})


def test_a_run_that_was_slow_for_a_moment_is_not_slow(drill: Drill) -> None:
    series = _ranks(rank.TOKENS_PER_SECOND, "100x90 50x8 100x100", "100x90 50x8 100x100")
    drill.fires(joined(GOES_ON, KNOWN, series), {97: [], 150: []})


@pytest.mark.parametrize(
    "info",
    [
        shown(agent.RUN_INFO, "1x70 stale", **RUN, slot="0"),
        shown(agent.RUN_INFO, "_x40 1x160", **RUN, slot="0"),
        shown(agent.RUN_INFO, "1x200", **RUN, slot="1"),
        {},
    ],
    ids=["ended", "another run had the slot", "another slot", "no run"],
)
def test_steps_of_no_run_that_goes_on_are_nobodys(info: Series, drill: Drill) -> None:
    drill.fires(joined(info, SLOW), {80: []})


def test_a_run_without_a_result_is_not_slow(drill: Drill) -> None:
    drill.fires(joined(GOES_ON, _ranks(rank.TOKENS_PER_SECOND, "1x200", "1x200")), {100: []})


def test_an_agent_on_another_address_has_no_past(drill: Drill) -> None:
    rolled = {"instance": "node1-new:9464"}
    series = joined(
        shown(agent.RUN_INFO, "1x60 stale", **RUN, slot="0"),
        shown(agent.RUN_INFO, "_x61 1x100", **RUN, slot="0", **rolled),
        shown(rank.TOKENS_PER_SECOND, "_x61 50x100", rank="0", slot="0", **rolled),
        KNOWN,
    )
    drill.fires(series, {90: []})


# How a run's time divides.


def test_exposed_communication_is_told_above_its_level_and_until_it_is_less(drill: Drill) -> None:
    series = _ranks(rank.EXPOSED_COMMUNICATION_RATIO, "0.29x20 0.4x20 0.1x20", "0.3x20 0.3x20 0.1x20")
    drill.fires(joined(GOES_ON, series), {19: [], 30: _told("ExposedCommunicationHigh"), 50: []})


def test_waiting_for_batches_is_told_above_its_share_of_the_steps(drill: Drill) -> None:
    series = joined(
        _ranks(rank.PHASE_SECONDS, "0.09x20 0.2x20 0.01x20", "0.1x20 0.2x20 0.01x20", phase="data"),
        _ranks(rank.PHASE_SECONDS, "0.5x60", "0.5x60", phase="forward"),
        _ranks(rank.STEP_SECONDS, "1x60", "1x60"),
    )
    drill.fires(joined(GOES_ON, series), {19: [], 30: _told("InputBound"), 50: []})


def _computing(third: str, strategy: str = "ddp") -> Series:
    info = shown(agent.RUN_INFO, "1x60", **{**RUN, "strategy": strategy}, slot="0")
    return joined(info, _ranks(rank.COMPUTE_SECONDS, "0.4x60", "0.4x60", third))


def test_a_rank_that_computes_longer_than_its_peers_is_told(drill: Drill) -> None:
    told = _told("RankComputesLonger", rank="2")
    drill.fires(_computing("0.49x20 0.51x20 0.4x20"), {19: [], 30: told, 50: []})


def test_ranks_with_unequal_work_by_design_are_not_compared(drill: Drill) -> None:
    drill.fires(_computing("0.8x60", "gpipe"), {30: []})


# A run of so many ranks that only statistics over them, and the series of some, are shown.


def _over_ranks(metric: Metric, word: str, values: str, shown_rank: str, **labels: str) -> Series:
    """A statistic over all ranks beside the series of one rank that is unlike the others."""
    return joined(
        shown(metric.over_ranks(word), values, **labels, slot="0"),
        shown(metric, shown_rank, **labels, rank="7", slot="0"),
    )


@pytest.mark.parametrize(("mean", "of_rank", "is_told"), [("89x100", "150x100", True), ("150x100", "89x100", False)])
def test_a_run_of_many_ranks_is_slow_by_the_mean_of_all(mean: str, of_rank: str, is_told: bool, drill: Drill) -> None:
    series = _over_ranks(rank.TOKENS_PER_SECOND, "mean", mean, of_rank)
    drill.fires(joined(GOES_ON, KNOWN, series), {65: _told("RunSlow") * is_told})


@pytest.mark.parametrize(("mean", "of_rank", "is_told"), [("0.4x60", "0x60", True), ("0.1x60", "0.9x60", False)])
def test_exposed_communication_of_many_ranks_is_the_mean_of_all(
    mean: str, of_rank: str, is_told: bool, drill: Drill
) -> None:
    series = _over_ranks(rank.EXPOSED_COMMUNICATION_RATIO, "mean", mean, of_rank)
    drill.fires(joined(GOES_ON, series), {30: _told("ExposedCommunicationHigh") * is_told})


@pytest.mark.parametrize(("mean", "of_rank", "is_told"), [("0.2x60", "0x60", True), ("0.01x60", "0.9x60", False)])
def test_many_ranks_wait_for_batches_by_the_mean_of_all(mean: str, of_rank: str, is_told: bool, drill: Drill) -> None:
    series = joined(
        _over_ranks(rank.PHASE_SECONDS, "mean", mean, of_rank, phase="data"),
        _over_ranks(rank.STEP_SECONDS, "mean", "1x60", "1x60"),
    )
    drill.fires(joined(GOES_ON, series), {30: _told("InputBound") * is_told})


@pytest.mark.parametrize(("median", "is_told"), [("0.4x60", True), ("0.49x60", False)])
def test_a_rank_of_many_is_compared_with_the_median_of_all_not_of_those_shown(
    median: str, is_told: bool, drill: Drill
) -> None:
    """The exporter shows the slowest: beside each other, neither of them computes longer."""
    slowest = _ranks(rank.COMPUTE_SECONDS, "0.51x60", "0.51x60")
    series = joined(slowest, shown(rank.COMPUTE_SECONDS.over_ranks("p50"), median, slot="0"))
    told = [one for number in ("0", "1") for one in _told("RankComputesLonger", rank=number)]
    drill.fires(joined(GOES_ON, series), {30: told * is_told})


ENDED_S = -35 * 3600
"""A day and a half is over an hour after the tester's first moment, which is 0."""


def _result(ratio: float) -> Series:
    of_run = {**OWNER, "rank": "3", "cause": "compute"}
    return joined(
        shown(STRAGGLER, f"{ratio}x150", **of_run),
        shown(agent.RUN_LAST_COMPLETION, f"{ENDED_S}x150", **OWNER),
    )


@pytest.mark.parametrize(("ratio", "is_told"), [(0.06, True), (0.05, False)])
def test_a_straggler_of_a_fresh_result_is_told(ratio: float, is_told: bool, drill: Drill) -> None:
    drill.fires(_result(ratio), {30: [alert("Straggler", rank="3")] * is_told, 120: []})


def test_a_newer_result_without_a_straggler_counts_whoever_shows_it_and_after_it_is_gone(drill: Drill) -> None:
    newer = shown(agent.RUN_LAST_COMPLETION, "_x30 1800x30 stale", **OWNER, instance="node2:9464")
    drill.fires(joined(_result(0.2), newer), {29: [alert("Straggler", rank="3")], 50: [], 90: []})


def test_a_straggler_of_the_newest_result_is_told_beside_an_older_one_of_another_exporter(drill: Drill) -> None:
    older = {"instance": "node2:9464"}
    series = joined(
        shown(STRAGGLER, "0.2x60", **OWNER, rank="3", cause="compute"),
        shown(agent.RUN_LAST_COMPLETION, "600x60", **OWNER),
        shown(STRAGGLER, "0.3x60", **OWNER, rank="0", cause="copy", **older),
        shown(agent.RUN_LAST_COMPLETION, "0x60", **OWNER, **older),
    )
    drill.fires(series, {40: [alert("Straggler", rank="3")]})


# Runs that stand still, and runs that failed.


def _progress(values: str) -> Series:
    return shown(agent.RUN_LAST_PROGRESS, values, run=RUN["run"], slot="0")


def test_a_run_that_stands_still_is_told_until_it_moves(drill: Drill) -> None:
    drill.fires(joined(GOES_ON, _progress("0x20 1260x10")), {11: [], 14: _told("RunStalled"), 22: []})


def test_a_run_that_stood_still_and_ended_is_told_no_more(drill: Drill) -> None:
    ended = shown(agent.RUN_INFO, "1x15 stale", **RUN, slot="0")
    drill.fires(joined(ended, _progress("0x15 stale")), {14: _told("RunStalled"), 18: []})


def _limit(values: str) -> Series:
    return shown(agent.RUN_STALL_LIMIT, values, run=RUN["run"], slot="0")


@pytest.mark.parametrize(("limit_s", "is_told"), [(300, True), (1200, False)])
def test_a_watched_run_stalls_by_the_limit_that_its_own_steps_gave(limit_s: int, is_told: bool, drill: Drill) -> None:
    told = _told("RunStalled") * is_told
    series = joined(GOES_ON, _progress("0x19 1200x20"), _limit(f"{limit_s}x60"))
    drill.fires(series, {4: [], 9: told, 19: told, 22: []})


def test_a_watched_run_that_ended_is_told_no_more(drill: Drill) -> None:
    ended = shown(agent.RUN_INFO, "1x10 stale", **RUN, slot="0")
    series = joined(ended, _progress("0x10 stale"), _limit("300x10 stale"))
    drill.fires(series, {9: _told("RunStalled"), 13: []})


def test_a_limit_of_one_run_is_no_other_s(drill: Drill) -> None:
    other = shown(agent.RUN_STALL_LIMIT, "9000x60", run="other", slot="1")
    drill.fires(joined(GOES_ON, _progress("0x60"), other), {11: [], 14: _told("RunStalled")})


def test_of_a_watched_run_it_says_where_its_stacks_are(drill: Drill) -> None:
    watched = RUN | {"strategy": "watched"}
    drill.says(
        joined(shown(agent.RUN_INFO, "1x200", **watched, slot="0"), _progress("0x30"), _limit("300x30")),
        "RunStalled",
        20,
        watched,
        summary="watched on 2 ranks (run 8f2c) has made no progress for 20m 0s",
        description="watched on 2 ranks (run 8f2c) is active, but none of its ranks has finished a step for 20m 0s."
        " The run's folder has the stacks of its ranks (watch_rank*.stacks.txt). If the job uses torch.distributed,"
        " `observatory analyse flight-recorder 8f2c` compares what each rank entered. The watch does not end the job.",
    )


def test_a_run_that_moves_by_one_agents_account_moves(drill: Drill) -> None:
    other = shown(agent.RUN_LAST_PROGRESS, "0+60x60", run=RUN["run"], slot="0", instance="node2:9464")
    drill.fires(joined(GOES_ON, _progress("0x60"), other), {30: []})


def test_it_says_for_how_long_it_stands_still(drill: Drill) -> None:
    drill.says(
        joined(GOES_ON, _progress("0x30")),
        "RunStalled",
        20,
        RUN,
        summary="ddp on 2 ranks (run 8f2c) has made no progress for 20m 0s",
        description="ddp on 2 ranks (run 8f2c) is active, but none of its ranks has finished a step for 20m 0s."
        " One rank hangs and the others wait for it: run `py-spy dump` on each node; the rank that"
        " entered the fewest collectives is the one that hangs. The trial ends at its time limit.",
    )


@pytest.mark.parametrize(("outcome", "is_told"), [("failed", True), ("timed_out", True), ("interrupted", False)])
def test_a_run_that_failed_is_told_once_by_two_agents_and_for_a_day_and_a_half(
    outcome: str, is_told: bool, drill: Drill
) -> None:
    of_run = {**OWNER, "run": RUN["run"], "outcome": outcome}
    series = joined(
        shown(agent.RUN_LAST_FAILURE, f"{ENDED_S}x150", **of_run),
        shown(agent.RUN_LAST_FAILURE, f"{ENDED_S}x150", **of_run, instance="node2:9464"),
    )
    drill.fires(series, {30: _told("RunFailed") * is_told, 120: []})


def test_a_run_that_failed_is_told_by_the_name_of_its_series(drill: Drill) -> None:
    of_run = {**OWNER, "name": "ddp on 2, 8b, bf16, cuda", "run": RUN["run"], "outcome": "failed"}
    drill.says(
        shown(agent.RUN_LAST_FAILURE, "0x60", **of_run),
        "RunFailed",
        30,
        of_run,
        summary="ddp on 2, 8b, bf16, cuda (run 8f2c, series 0123456789ab): failed 30m 0s ago",
        description="The newest run of ddp on 2, 8b, bf16, cuda (run 8f2c, series 0123456789ab) ended as failed"
        " 30m 0s ago. `observatory show 8f2c` reports why, and which rank failed first. The alert"
        " ends a quarter of an hour after a run of the series succeeds.",
    )


def test_a_failure_after_which_a_run_ended_well_is_told_no_more(drill: Drill) -> None:
    series = shown(agent.RUN_LAST_FAILURE, "0x20 stale", **OWNER, run=RUN["run"], outcome="failed")
    drill.fires(series, {10: _told("RunFailed"), 30: _told("RunFailed"), 37: []})


def test_an_exporter_that_is_started_again_tells_nothing_anew(drill: Drill) -> None:
    of_run = {**OWNER, "rank": "3", "cause": "compute"}
    values = "0x20 stale _x4 0x30"
    series = joined(
        shown(agent.RUN_LAST_FAILURE, values, **OWNER, run=RUN["run"], outcome="failed"),
        shown(agent.RUN_LAST_COMPLETION, values, **OWNER),
        shown(STRAGGLER, values.replace("0x", "0.2x"), **of_run),
    )
    told = [*_told("RunFailed"), alert("Straggler", rank="3")]
    drill.fires(series, dict.fromkeys(range(19, 29), told))


@pytest.mark.parametrize(("completed_s", "is_told"), [(1800, False), (300, True)], ids=["later", "before"])
def test_a_failure_that_another_exporter_shows_as_made_good_is_told_no_more(
    completed_s: int, is_told: bool, drill: Drill
) -> None:
    series = joined(
        shown(agent.RUN_LAST_FAILURE, "600x90", **OWNER, run=RUN["run"], outcome="failed"),
        shown(agent.RUN_LAST_COMPLETION, f"_x30 {completed_s}x30 stale", **OWNER, instance="node2:9464"),
    )
    drill.fires(series, {29: _told("RunFailed"), 50: _told("RunFailed") * is_told, 80: _told("RunFailed") * is_told})


def test_what_nobody_shows_is_told_by_nobody(drill: Drill) -> None:
    drill.fires(shown(agent.AGENT_BEATS, "0+60x60", **SCRAPED), {30: []})
