"""Verdicts on what levers change, from made ratios and made summaries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest

from bench.results.estimate import Estimate, EstimatedRatio, estimate, estimate_share
from bench.store.summary import Summary
from bench.suite.file import Lever, read_suite
from bench.suite.form.tables import Claim
from bench.suite.levers import Judgement, judge_levers, judge_ratio
from collectors.metrics.results import RUN_OVERLAP_RATIO, RUN_PEAK_MEMORY_BYTES, RUN_STEP_SECONDS
from tests.bench.made.examples import make_summary

CLAIM = Claim(metric=RUN_STEP_SECONDS.name, low=1.25, high=1.40, text="about a third more time")
PLAIN_S = (1.00, 1.01, 0.99, 1.00, 1.00)


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeCase:
    """How a case of a suite run ended."""

    name: str
    outcome: str | None = "done"
    reason: str | None = None
    summary: Summary | None = None


def _ratio(value: float, low: float | None, high: float | None, trials: int = 5) -> EstimatedRatio:
    return EstimatedRatio(value=value, low=low, high=high, numerator_trials=trials, denominator_trials=trials)


@pytest.mark.parametrize(
    ("value", "low", "high", "verdict"),
    [
        (1.33, 1.30, 1.36, "as claimed"),
        (1.33, 1.25, 1.40, "as claimed"),  # As wide as what is claimed.
        (1.25, 1.20, 1.30, "as claimed"),  # At its end, and both sides of it are allowed.
        (1.40, 1.36, 1.44, "as claimed"),
        (1.33, 1.20, 1.50, "unsure"),  # Wider than what is claimed.
        (1.41, 1.39, 1.43, "unsure"),  # Outside, and perhaps not.
        (1.24, 1.22, 1.25, "unsure"),
        (1.45, 1.40, 1.50, "unsure"),  # It touches what is claimed.
        (1.45, 1.41, 1.50, "more"),
        (1.10, 1.00, 1.24, "less"),
        (1.10, 1.00, 1.25, "unsure"),
        (9.00, 2.00, 40.0, "more"),  # However wide.
    ],
)
def test_a_ratio_is_judged_by_its_interval(value: float, low: float, high: float, verdict: str) -> None:
    found, reason = judge_ratio(_ratio(value, low, high), CLAIM)
    assert found == verdict
    assert (reason is not None) == (verdict == "unsure")


@pytest.mark.parametrize(
    ("value", "verdict"), [(1.25, "as claimed"), (1.40, "as claimed"), (1.2499, "less"), (1.4001, "more")]
)
def test_a_ratio_of_equal_trials_is_exact(value: float, verdict: str) -> None:
    assert judge_ratio(_ratio(value, None, None), CLAIM) == (verdict, None)


@pytest.mark.parametrize("value", [0.5, 1.33, 9.0])
def test_one_trial_tells_nothing(value: float) -> None:
    assert judge_ratio(_ratio(value, None, None, trials=1), CLAIM) == ("unsure", "one trial has no interval")


def test_an_exact_claim_is_borne_out_by_exact_trials_only() -> None:
    half = msgspec.structs.replace(CLAIM, low=0.5, high=0.5)
    assert judge_ratio(_ratio(0.5, None, None), half)[0] == "as claimed"
    assert judge_ratio(_ratio(0.5, 0.49, 0.51), half)[0] == "unsure"


def test_a_claim_that_begins_at_nothing_says_at_most() -> None:
    at_most = msgspec.structs.replace(CLAIM, low=0.0, high=0.5)
    assert judge_ratio(_ratio(0.3, 0.1, 0.6), at_most)[0] == "as claimed"
    assert judge_ratio(_ratio(0.6, 0.51, 0.7), at_most)[0] == "more"


def _case(name: str, *found: Estimate) -> FakeCase:
    return FakeCase(name=name, summary=make_summary(f"run-{name}", estimates=found))


def _steps(*trials_s: float) -> Estimate:
    return estimate(RUN_STEP_SECONDS, trials_s)


def _judged(off: FakeCase | None, on: FakeCase | None, claim: Claim = CLAIM) -> Judgement:
    lever = Lever(name="checkpointing", off="plain", on="checkpointed", claims=(claim,))
    (found,) = judge_levers([lever], [case for case in (off, on) if case is not None])
    return found


def test_a_lever_is_judged_by_its_two_cases() -> None:
    plain, checkpointed = _steps(*PLAIN_S), _steps(*(1.33 * step_s for step_s in PLAIN_S))
    found = _judged(_case("plain", plain), _case("checkpointed", checkpointed))
    assert (found.off, found.on, found.verdict, found.reason) == (plain, checkpointed, "as claimed", None)
    assert found.ratio is not None
    assert found.ratio.value == pytest.approx(1.33)


def test_the_lever_on_is_divided_by_the_lever_off() -> None:
    double = tuple(2 * step_s for step_s in PLAIN_S)
    assert _judged(_case("plain", _steps(*PLAIN_S)), _case("checkpointed", _steps(*double))).verdict == "more"
    assert _judged(_case("plain", _steps(*double)), _case("checkpointed", _steps(*PLAIN_S))).verdict == "less"


def test_each_claim_of_each_lever_is_judged_in_order() -> None:
    claims = (CLAIM, msgspec.structs.replace(CLAIM, low=0.9, high=1.1, text="no more time"))
    levers = [Lever(name=name, off="plain", on="on", claims=claims) for name in ("first", "second")]
    found = judge_levers(levers, [_case("plain", _steps(*PLAIN_S)), _case("on", _steps(*PLAIN_S))])
    assert [(one.lever.name, one.verdict) for one in found] == [
        ("first", "less"),
        ("first", "as claimed"),
        ("second", "less"),
        ("second", "as claimed"),
    ]


def test_a_claim_is_about_the_series_with_its_labels() -> None:
    def both(resident: float, tensors: float) -> tuple[Estimate, Estimate]:
        return (
            estimate(RUN_PEAK_MEMORY_BYTES, (resident, resident), account="resident"),
            estimate(RUN_PEAK_MEMORY_BYTES, (tensors, tensors), account="live_tensors"),
        )

    claim = msgspec.structs.replace(
        CLAIM, metric=RUN_PEAK_MEMORY_BYTES.name, labels={"account": "live_tensors"}, low=0.3, high=0.4
    )
    found = _judged(_case("plain", *both(100, 100)), _case("checkpointed", *both(99, 35)), claim)
    assert (found.verdict, found.ratio and found.ratio.value) == ("as claimed", 0.35)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (None, "checkpointed did not run"),
        (FakeCase(name="checkpointed", outcome=None), "checkpointed did not run"),
        (
            FakeCase(name="checkpointed", outcome="skipped", reason="it needs 8 GPUs, 0 are here"),
            "checkpointed skipped: it needs 8 GPUs, 0 are here",
        ),
        (FakeCase(name="checkpointed", outcome="timed_out"), "checkpointed timed out"),
        (FakeCase(name="checkpointed"), "the run of checkpointed is no longer on this machine"),
        (
            replace(_case("checkpointed", _steps(*PLAIN_S)), outcome="failed", reason="rank 1 was killed"),
            "checkpointed failed: rank 1 was killed",
        ),
        (
            _case("checkpointed"),
            "checkpointed has no observatory_run_step_seconds; `observatory show run-checkpointed --details` shows what"
            " is absent",
        ),
    ],
)
def test_a_claim_whose_case_has_no_figure_is_absent_with_the_reason(case: FakeCase | None, reason: str) -> None:
    found = _judged(_case("plain", _steps(*PLAIN_S)), case)
    assert (found.verdict, found.reason, found.ratio, found.off, found.on) == (None, reason, None, None, None)


def test_a_metric_that_is_absent_is_named_with_its_labels() -> None:
    claim = msgspec.structs.replace(CLAIM, metric=RUN_PEAK_MEMORY_BYTES.name, labels={"account": "allocator"})
    found = _judged(_case("plain"), _case("checkpointed"), claim)
    assert found.reason is not None
    assert found.reason.startswith("plain has no observatory_run_peak_memory_bytes of account allocator; ")


def test_a_metric_that_may_be_0_has_no_ratio_where_it_is() -> None:
    claim = msgspec.structs.replace(CLAIM, metric=RUN_OVERLAP_RATIO.name)
    off, on = estimate_share(RUN_OVERLAP_RATIO, (0.0, 0.0)), estimate_share(RUN_OVERLAP_RATIO, (0.5, 0.6))
    found = _judged(_case("plain", off), _case("checkpointed", on), claim)
    assert (found.verdict, found.reason) == (None, "plain has 0 of it, so no ratio is defined")


def test_a_suite_says_which_device_a_claim_is_about(tmp_path: Path) -> None:
    path = tmp_path / "night.toml"
    path.write_text(
        """
        schema_version = 1
        [case.plain]
        strategy = "single"
        block = "one"
        [case.bf16]
        strategy = "single"
        precision = "bf16"
        block = "one"
        [lever.bf16]
        off = "plain"
        on = "bf16"
        [[lever.bf16.claims]]
        metric = "observatory_run_step_seconds"
        low = 0.33
        high = 0.5
        text = "on tensor cores"
        device = "cuda"
        """
    )
    (lever,) = read_suite(path).levers
    assert [claim.device for claim in lever.claims] == ["cuda"]


def test_a_claim_about_gpus_is_not_judged_on_a_cpu() -> None:
    cases = _case("plain", _steps(*PLAIN_S)), _case("checkpointed", _steps(*PLAIN_S))
    assert _judged(*cases, msgspec.structs.replace(CLAIM, device="cpu")).verdict == "less"
    found = _judged(*cases, msgspec.structs.replace(CLAIM, device="cuda"))
    assert (found.verdict, found.reason) == (None, "it is claimed for cuda, and plain ran on cpu")
