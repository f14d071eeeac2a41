"""Alerts are grouped by what they share, and by nothing that all figures of the night share."""

from __future__ import annotations

from typing import Any

from bench.gate.groups import group_alerts
from bench.gate.verdicts import SeriesKey, Verdict
from collectors.metrics.gate import Outcome
from collectors.metrics.results import RUN_STEP_SECONDS


def _verdict(case: str, outcome: Outcome, **changes: Any) -> Verdict:
    fields: dict[str, Any] = {"strategy": "ddp", "shape": "2 x 16", "ranks": 2, "hosts": ("a",), "commit": "c" * 40}
    return Verdict(
        key=SeriesKey(suite="nightly", case=case, series="s", metric=RUN_STEP_SECONDS.name),
        run=f"run-{case}",
        suite_run="night",
        started_ns=1,
        number=1,
        outcome=outcome,
        reason="",
        value=1.0,
        **(fields | changes),
    )


def test_alerts_of_one_host_are_one_group_that_names_it() -> None:
    sick = [_verdict(f"sick{number}", "confirmed", hosts=("a", "b")) for number in range(4)]
    well = [_verdict(f"well{number}", "same", hosts=("a", "c")) for number in range(20)]
    (group,) = group_alerts([*sick, *well])
    assert group.shared == ("host", "b")
    assert group.alerts == tuple(sick)
    assert group.others == 0


def test_what_all_figures_share_explains_nothing() -> None:
    alerts = [_verdict(f"sick{number}", "regression", ranks=number) for number in range(2)]
    well = [_verdict(f"well{number}", "same", ranks=number) for number in range(20)]
    groups = group_alerts([*alerts, *well])
    assert [group.shared for group in groups] == [None, None]


def test_two_causes_are_two_groups() -> None:
    fsdp = [_verdict(f"fsdp{number}", "confirmed", strategy="fsdp") for number in range(5)]
    host = [_verdict(f"host{number}", "confirmed", hosts=("z",), ranks=9) for number in range(4)]
    well = [_verdict(f"well{number}", "same", ranks=9) for number in range(30)]
    groups = group_alerts([*fsdp, *host, *well])
    assert {group.shared: len(group.alerts) for group in groups} == {("strategy", "fsdp"): 5, ("host", "z"): 4}


def test_most_figures_at_once_are_one_group_of_the_suite() -> None:
    alerts = [_verdict(f"sick{number}", "confirmed", ranks=number) for number in range(20)]
    (group,) = group_alerts([*alerts, _verdict("well", "same")])
    assert group.shared == ("suite", "nightly")
    assert len(group.alerts) == 20


def test_a_lone_alert_is_in_no_group_with_others() -> None:
    (group,) = group_alerts([_verdict("sick", "creep"), *[_verdict(f"w{n}", "same") for n in range(9)]])
    assert group.shared is None


def test_suspicions_and_improvements_are_no_alerts() -> None:
    assert group_alerts([_verdict("one", "suspicion"), _verdict("two", "improvement")]) == ()
