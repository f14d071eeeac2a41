"""When a limit is sure, what else it may be, and what the one line for alerts says of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.analysis.diagnose.observed import NodeLoad, Observed
from bench.analysis.diagnose.rule import LONGEST_LINE, diagnose, likely_limit
from bench.results.estimate import Estimate, estimate, estimate_share
from collectors.metrics import results
from tests.bench.made.diagnosed import FAST, case_of, observed_of
from tests.bench.made.scaled import SPREAD, Made

EVEN = Made(step_s=0.1, compute_s=0.6 * 0.1, exposed_s=0.02, idle_s=0.02)


def _with_shares(run: Observed, **shares: tuple[float, ...]) -> Observed:
    """The run with these shares of its traced step in its trials."""
    others = [
        one for one in run.estimates if one.metric != results.RUN_TRACED_RATIO.name or one.labels["part"] not in shares
    ]
    made: list[Estimate] = [
        estimate_share(results.RUN_TRACED_RATIO, ratios, part=part) for part, ratios in shares.items()
    ]
    return replace(run, estimates=(*others, *made))


def test_of_two_costs_that_take_turns_neither_is_sure() -> None:
    run = _with_shares(
        observed_of(case_of(), EVEN, link=FAST), exposed_communication=(0.3, 0.1, 0.2), idle=(0.1, 0.3, 0.19)
    )
    found = diagnose(run)
    assert not found.is_sure
    assert "more trials would decide" in found.reason
    assert found.command.endswith("--trials 6")
    assert likely_limit(found).startswith("likely ")


def test_a_cost_that_exceeds_the_other_in_each_trial_is_sure_although_their_intervals_overlap() -> None:
    """What disturbs a trial disturbs both: the differences are what counts."""
    run = _with_shares(
        observed_of(case_of(), EVEN, link=FAST),
        compute=(0.3, 0.3, 0.3),
        exposed_communication=(0.40, 0.30, 0.35),
        idle=(0.30, 0.21, 0.25),
    )
    found = diagnose(run)
    first, second = (one.share for one in found.findings if one.kind in ("exposed_communication", "host"))
    assert first is not None
    assert second is not None
    assert first.low is not None
    assert second.high is not None
    assert first.low < second.high
    assert (found.limit.kind, found.is_sure) == ("exposed_communication", True)


def test_a_cost_whose_lead_may_be_chance_is_not_sure() -> None:
    """It leads in two trials of three and by the medians; the interval of its lead holds 0."""
    run = _with_shares(
        observed_of(case_of(), EVEN, link=FAST),
        compute=(0.25, 0.25, 0.25),
        exposed_communication=(0.40, 0.32, 0.36),
        idle=(0.25, 0.34, 0.30),
    )
    verdict = diagnose(run)
    assert (verdict.limit.kind, verdict.is_sure) == ("exposed_communication", False)
    assert "it may be host, 30 % of the step" in verdict.reason
    assert verdict.limit.share is not None
    assert verdict.limit.share.low is not None
    assert verdict.limit.share.low > 0.1  # That is no other doubt.


def test_a_cost_whose_interval_is_wider_than_itself_is_not_sure() -> None:
    """It leads in each trial, fills more than half of the step, and its interval stays above a tenth."""
    run = _with_shares(
        observed_of(case_of(), EVEN, link=FAST),
        exposed_communication=(0.70, 0.45, 0.55),
        compute=(0.1, 0.1, 0.1),
        idle=(0.1, 0.1, 0.1),
    )
    verdict = diagnose(run)
    share = verdict.limit.share
    assert verdict.limit.kind == "exposed_communication"
    assert share is not None
    assert share.low is not None
    assert share.low > 0.1
    assert not verdict.is_sure
    assert "its interval is wider than the share itself; more trials would decide" in verdict.reason


def test_a_step_whose_interval_is_wider_than_itself_says_so() -> None:
    run = observed_of(case_of(), EVEN, link=FAST)
    others = tuple(each for each in run.estimates if each.metric != results.RUN_MEAN_STEP_SECONDS.name)
    for steps_s, is_said in (((0.1, 0.2, 0.5), True), ((0.1, 0.1, 0.11), False)):
        facts = diagnose(replace(run, estimates=(*others, estimate(results.RUN_MEAN_STEP_SECONDS, steps_s)))).facts
        assert ("unsure: the interval is wider than the step itself" in facts[0]) is is_said


def test_one_trial_is_not_sure_below_half_of_the_step() -> None:
    found = diagnose(observed_of(case_of(), Made(step_s=0.1, compute_s=0.06, exposed_s=0.04), trials=1, link=FAST))
    assert (found.limit.kind, found.is_sure) == ("exposed_communication", False)
    assert "one trial has no interval" in found.reason
    found = diagnose(observed_of(case_of(), Made(step_s=0.1, compute_s=0.04, exposed_s=0.06), trials=1, link=FAST))
    assert found.is_sure


def test_what_no_trace_tells_may_be_larger() -> None:
    found = diagnose(observed_of(case_of(), Made(step_s=0.1, compute_s=0.04, exposed_s=0.02), link=FAST))
    assert (found.limit.kind, found.is_sure) == ("exposed_communication", False)
    assert "40 % of the step is unattributed" in found.reason


def test_computing_on_a_node_whose_cores_others_take_is_doubted() -> None:
    made = Made(step_s=0.1, compute_s=0.097, exposed_s=0.003)
    mfu = estimate_share(results.RUN_MEASURED_MFU, [0.6 * factor for factor in SPREAD])
    node = NodeLoad(host="node0", cpu_pressure_ratio=0.9)
    found = diagnose(observed_of(case_of(), made, mfu, link=FAST, nodes=(node,)))
    assert (found.limit.kind, found.is_sure) == ("compute", False)
    assert "on node0 tasks waited for a CPU 90 % of the time" in found.reason


def test_a_cost_that_the_page_shows_as_a_tenth_is_one() -> None:
    run = observed_of(case_of(), Made(step_s=0.1, compute_s=0.09004, exposed_s=0.00996), link=FAST)
    found = diagnose(run)
    assert found.limit.kind == "exposed_communication"
    assert not found.reason.startswith("no cost takes")


def test_an_interrupted_run_is_diagnosed_by_the_trials_that_it_has() -> None:
    run = observed_of(case_of(), Made(step_s=0.1, compute_s=0.04, exposed_s=0.06), link=FAST)
    found = diagnose(replace(run, outcome="interrupted", cause=("interrupted",)))
    assert (found.limit.kind, found.root_cause) == ("exposed_communication", ("interrupted",))


def test_a_run_without_a_trial_has_no_limit() -> None:
    run = replace(observed_of(case_of(), EVEN), outcome="interrupted", estimates=(), trials_done=0)
    found = diagnose(run)
    assert found.limit.kind == "unknown"
    assert found.reason == "no trial was completed"
    assert not found.is_sure
    assert likely_limit(found) == "limit unknown: no trial was completed"


@pytest.mark.parametrize("bandwidth", [1e3, 1e9])
def test_a_share_is_never_above_the_step(bandwidth: float) -> None:
    """A trace may be longer than the steps it was taken from, and a law longer than both."""
    speed = estimate(results.RUN_TRACED_BUS_BANDWIDTH, [bandwidth] * 3, collective="all_reduce")
    link = replace(FAST, bandwidth_bytes_per_second=bandwidth)
    made = Made(step_s=0.1, compute_s=0.09, exposed_s=0.09, profiler_s=0.2)
    found = diagnose(observed_of(case_of(), made, speed, link=link))
    for one in found.findings:
        assert one.share is None or 0 <= one.share.value <= 1
        assert one.expected is None or 0 <= one.expected <= 1
    assert len(likely_limit(found)) <= LONGEST_LINE
