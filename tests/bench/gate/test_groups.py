"""Alerts are grouped by what they share, and by nothing that all figures of the night share."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bench.gate.groups import group_alerts
from bench.gate.verdicts import SeriesKey, Verdict
from collectors.metrics.gate import Outcome
from collectors.metrics.results import RUN_PEAK_MEMORY_BYTES, RUN_STEP_SECONDS


def _verdict(case: str, outcome: Outcome, **changes: Any) -> Verdict:
    fields: dict[str, Any] = {"strategy": "ddp", "shape": "2 x 16", "ranks": 2, "hosts": ("a",), "commit": "c" * 40}
    key = SeriesKey(suite="nightly", case=case, series="s", metric=RUN_STEP_SECONDS.name)
    return Verdict(
        run=f"run-{case}",
        suite_run="night",
        started_ns=1,
        number=1,
        outcome=outcome,
        reason="",
        value=1.0,
        **({"key": key} | fields | changes),
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


def test_how_probable_a_group_is_by_chance_is_fishers_test() -> None:
    """Four of 24 figures are worse, all of the four with the host: one of C(24, 4) = 10,626 ways."""
    sick = [_verdict(f"sick{number}", "confirmed", hosts=("b",)) for number in range(4)]
    well = [_verdict(f"well{number}", "same", hosts=("c",)) for number in range(20)]
    (group,) = group_alerts([*sick, *well])
    assert group.shared == ("host", "b")
    assert group.p_value == pytest.approx(1 / 10_626)


def test_a_group_tells_how_many_figures_with_it_are_well() -> None:
    """Five of 25 are worse, all among the seven with the host: C(7, 5) of C(25, 5) = 53,130 ways."""
    sick = [_verdict(f"sick{number}", "confirmed", hosts=("b",)) for number in range(5)]
    well = [_verdict(f"well{number}", "same", hosts=("b" if number < 2 else "c",)) for number in range(20)]
    (group,) = group_alerts([*sick, *well])
    assert (group.shared, group.others) == (("host", "b"), 2)
    assert group.p_value == pytest.approx(21 / 53_130)


@pytest.mark.parametrize(
    ("shared", "changes"),
    [
        (("shape", "9 x 9"), {"shape": "9 x 9"}),
        (("ranks", "8"), {"ranks": 8}),
        (("commit", "d" * 12), {"commit": "d" * 40}),
        (("host", "b"), {"hosts": ("a", "b")}),
    ],
)
def test_each_attribute_can_be_what_alerts_share(shared: tuple[str, str], changes: dict[str, Any]) -> None:
    sick = [_verdict(f"sick{number}", "lasting", **changes) for number in range(3)]
    well = [_verdict(f"well{number}", "same") for number in range(20)]
    assert [group.shared for group in group_alerts([*sick, *well])] == [shared]


def test_figures_of_one_case_share_the_case() -> None:
    sick = [_verdict("ddp", "regression", ranks=number) for number in range(3)]
    well = [_verdict(f"well{number}", "same") for number in range(20)]
    assert [group.shared for group in group_alerts([*sick, *well])] == [("case", "ddp")]


def test_one_figure_of_several_cases_is_a_group() -> None:
    key = SeriesKey(suite="nightly", case="", series="s", metric=RUN_PEAK_MEMORY_BYTES.name)
    sick = [
        _verdict(case, "regression", ranks=number, key=msgspec.structs.replace(key, case=case))
        for number, case in enumerate(("ddp", "fsdp", "tp"))
    ]
    well = [_verdict(f"well{number}", "same") for number in range(20)]
    assert [group.shared for group in group_alerts([*sick, *well])] == [("metric", RUN_PEAK_MEMORY_BYTES.name)]


def test_no_shape_and_no_commit_are_nothing_to_share() -> None:
    sick = [_verdict(f"sick{number}", "regression", ranks=number, shape="", commit=None) for number in range(3)]
    well = [_verdict(f"well{number}", "same") for number in range(20)]
    assert [group.shared for group in group_alerts([*sick, *well])] == [None] * 3


def test_two_alerts_among_fourteen_figures_may_share_a_host_by_chance() -> None:
    """One of C(14, 2) = 91 ways is more than a hundredth; of 15 figures it is one of 105."""
    sick = [_verdict(f"sick{number}", "regression", ranks=number, hosts=("b",)) for number in range(2)]
    well = [_verdict(f"well{number}", "same", ranks=9) for number in range(13)]
    assert [group.shared for group in group_alerts([*sick, *well[1:]])] == [None, None]
    (group,) = group_alerts([*sick, *well])
    assert group.shared == ("host", "b")


def test_only_more_than_half_of_the_figures_and_more_than_two_are_a_group_of_the_suite() -> None:
    alerts = [_verdict(f"sick{number}", "confirmed", ranks=number) for number in range(5)]
    well = [_verdict(f"well{number}", "same", ranks=number) for number in range(5)]
    assert [group.shared for group in group_alerts([*alerts, *well])] == [None] * 5
    (group,) = group_alerts([*alerts, *well[1:]])
    assert (group.shared, group.others, group.p_value) == (("suite", "nightly"), 4, 1.0)
    assert [group.shared for group in group_alerts(alerts[:2])] == [None, None]
    assert [group.shared for group in group_alerts(alerts[:3])] == [("suite", "nightly")]
