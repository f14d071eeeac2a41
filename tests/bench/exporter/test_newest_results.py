"""Results that are shown are those of the newest run of each series that ended well, whatever becomes of the store."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from bench.analysis.estimate import estimate
from bench.case import ONE_RUN, Case, Purpose, SuiteMember
from bench.exporter.latest_results import NewestResults
from bench.rank.messages import Outcome
from bench.runs.history import History
from bench.runs.summary import Summary, series_of
from collectors.metrics.agent import RESULT_INFO, RUN_LAST_COMPLETION, RUN_LAST_FAILURE
from collectors.metrics.metric import Metric
from collectors.metrics.results import RUN_PHASE_SECONDS, RUN_SCALING_EFFICIENCY, RUN_STEP_SECONDS
from tests.bench.made.examples import make_case, make_machine, make_summary

SECOND_NS = 1_000_000_000


class Notices(list[str]):
    """Hears and keeps."""

    def __call__(self, text: str) -> None:
        self.append(text)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'history.sqlite'}"


@pytest.fixture
def notices() -> Notices:
    return Notices()


@pytest.fixture
def newest(url: str, notices: Notices) -> NewestResults:
    return NewestResults(url, on_notice=notices)


def _add(url: str, *summaries: Summary) -> None:
    with History(url) as history:
        for summary in summaries:
            history.add(summary, make_machine())


def _summary(run: str, started_s: int, case: Case | None = None, **changes: Any) -> Summary:
    if case is not None:
        changes["case"] = case
    return make_summary(run, started_ns=started_s * SECOND_NS, **changes)


def _shown(newest: NewestResults, metric: Metric) -> list[tuple[float, dict[str, str]]]:
    return [
        (sample.value, {**sample.labels, **owner}) for sample, owner in newest.samples() if sample.metric == metric.name
    ]


def _runs(newest: NewestResults) -> list[str]:
    return sorted(labels["run"] for _, labels in _shown(newest, RESULT_INFO))


def test_each_estimate_is_shown_with_its_interval_and_the_runs_labels(url: str, newest: NewestResults) -> None:
    summary = _summary("a", 10)
    _add(url, summary)
    newest.ask()
    owner = {
        "strategy": "ddp",
        "ranks": "2",
        "device": "cpu",
        "precision": "fp32",
        "series": series_of(summary.case, summary.hardware),
    }
    step, phase = summary.estimates
    (efficiency,) = summary.scaling
    for metric, found, labels in (
        (RUN_STEP_SECONDS, (step.median, step.low, step.high), {}),
        (RUN_PHASE_SECONDS, (phase.median, phase.low, phase.high), {"phase": "forward"}),
        (
            RUN_SCALING_EFFICIENCY,
            (efficiency.ratio.value, efficiency.ratio.low, efficiency.ratio.high),
            {"scaling": "weak", "baseline": "unknown"},
        ),
    ):
        bounds = zip(found, ("median", "low", "high"), strict=True)
        assert _shown(newest, metric) == [(value, {**labels, **owner, "bound": bound}) for value, bound in bounds]
    assert _shown(newest, RUN_LAST_COMPLETION) == [(19.0, owner)]
    assert _shown(newest, RESULT_INFO) == [(1, {"series": owner["series"], "run": "a", "strategy": "ddp"})]


@pytest.mark.parametrize(
    ("marks", "baseline"),
    [
        ({"is_beside": True}, "beside"),
        ({"is_beside": False}, "history"),
        ({"is_beside": False, "is_told": True}, "told"),
        ({"is_beside": None}, "unknown"),
    ],
)
def test_an_efficiency_says_where_its_baseline_is_from(
    marks: dict[str, Any], baseline: str, url: str, newest: NewestResults
) -> None:
    summary = _summary("a", 10)
    _add(url, replace(summary, scaling=tuple(replace(found, **marks) for found in summary.scaling)))
    newest.ask()
    shown = _shown(newest, RUN_SCALING_EFFICIENCY)
    assert {(labels["scaling"], labels["baseline"]) for _, labels in shown} == {("weak", baseline)}


@pytest.mark.parametrize(("ranks", "is_shown"), [(1, True), (2, False)])
def test_an_efficiency_against_several_ranks_beside_the_run_is_not_shown(
    ranks: int, is_shown: bool, url: str, newest: NewestResults
) -> None:
    case = make_case("ddp", ranks=4, batch=4)
    scaling = replace(make_summary().scaling[0], scaling="strong", is_beside=True, baseline_ranks=ranks)
    _add(url, _summary("a", 10, case, scaling=(scaling,)))
    newest.ask()
    assert _runs(newest) == ["a"]
    assert bool(_shown(newest, RUN_SCALING_EFFICIENCY)) is is_shown


def test_one_trial_has_a_median_and_no_bounds(url: str, newest: NewestResults) -> None:
    _add(url, _summary("a", 10, estimates=(estimate(RUN_STEP_SECONDS, (0.5,)),), scaling=()))
    newest.ask()
    assert [(value, labels["bound"]) for value, labels in _shown(newest, RUN_STEP_SECONDS)] == [(0.5, "median")]


def test_of_a_series_the_newest_run_that_ended_well_is_shown(url: str, newest: NewestResults) -> None:
    other = make_case("single", ranks=1, batch=4)
    _add(
        url,
        _summary("old", 10),
        _summary("new", 20),
        _summary("failed", 30, outcome="failed"),
        _summary("other", 5, case=other),
    )
    newest.ask()
    assert _runs(newest) == ["new", "other"]


def test_a_run_that_is_ad_hoc_is_never_its_series_newest_result(url: str, newest: NewestResults) -> None:
    usual = make_case(trials=3, steps=20, warm_up=5, trace_steps=3)
    _add(
        url,
        _summary("usual", 10, case=usual, purpose=ONE_RUN),
        _summary("quick", 20, case=replace(usual, trials=1, steps=1, warm_up=0), purpose=ONE_RUN),
        _summary("noted", 30, case=usual, purpose=Purpose(note="with the window open")),
        _summary("alone in its series", 40, case=make_case("single", 1, 4, steps=1), purpose=ONE_RUN),
    )
    newest.ask()
    assert _runs(newest) == ["usual"]
    _add(url, _summary("more of it", 50, case=replace(usual, trials=5, steps=40), purpose=ONE_RUN))
    newest.ask()
    assert _runs(newest) == ["more of it"]
    _add(url, _summary("quick each night", 60, case=replace(usual, steps=10), purpose=Purpose(origin="nightly")))
    newest.ask()
    assert _runs(newest) == ["quick each night"]


def test_a_run_that_is_added_later_takes_its_series_over_unless_it_is_older(url: str, newest: NewestResults) -> None:
    _add(url, _summary("a", 10))
    newest.ask()
    _add(url, _summary("adopted late", 5))
    newest.ask()
    assert _runs(newest) == ["a"]
    _add(url, _summary("b", 20))
    newest.ask()
    assert _runs(newest) == ["b"]


def test_a_store_that_is_not_there_yet_is_said_and_found_later(
    url: str, newest: NewestResults, notices: Notices
) -> None:
    newest.ask()
    assert newest.samples() == ()
    assert len(notices) == 1
    assert notices[0].startswith("no results are shown yet: store sqlite:")
    _add(url, _summary("a", 10))
    newest.ask()
    assert _runs(newest) == ["a"]


def test_results_stay_when_the_store_goes_away(
    url: str, newest: NewestResults, notices: Notices, tmp_path: Path
) -> None:
    _add(url, _summary("a", 10))
    newest.ask()
    (tmp_path / "history.sqlite").unlink()
    newest.ask()
    assert _runs(newest) == ["a"]
    assert [notice.partition(":")[0] for notice in notices] == ["results are no longer updated"]


def test_a_result_of_a_newer_version_is_named_and_the_others_are_shown(
    url: str, newest: NewestResults, notices: Notices
) -> None:
    _add(url, _summary("a", 10), _summary("newer", 5, case=make_case("single", ranks=1, batch=4)))
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE runs SET summary_json = '{\"schema_version\": 99}' WHERE id = 'newer'"))
    engine.dispose()
    for _ in range(2):
        newest.ask()
        assert _runs(newest) == ["a"]
    assert len(notices) == 1
    assert "run newer" in notices[0]
    assert "schema version 99" in notices[0]


@pytest.mark.parametrize("outcome", ["failed", "timed_out", "interrupted"])
def test_a_series_whose_newest_run_has_no_result_says_so_until_one_ends_well(
    outcome: Outcome, url: str, newest: NewestResults
) -> None:
    _add(url, _summary("a", 10), _summary("b", 20, outcome=outcome, ended_ns=25 * SECOND_NS))
    newest.ask()
    ((ended_s, labels),) = _shown(newest, RUN_LAST_FAILURE)
    assert (ended_s, labels["run"], labels["outcome"], labels["strategy"]) == (25, "b", outcome, "ddp")
    assert _runs(newest) == ["a"]
    _add(url, _summary("c", 30))
    newest.ask()
    assert _shown(newest, RUN_LAST_FAILURE) == []


def test_a_failed_case_of_a_suite_or_an_ad_hoc_run_is_told_elsewhere(url: str, newest: NewestResults) -> None:
    member = SuiteMember(suite="night", id="20261123-010203-night-abc123", case="ddp")
    _add(
        url,
        _summary("a", 10, outcome="failed", purpose=Purpose(member=member)),
        _summary("b", 10, outcome="failed", purpose=Purpose(note="trying")),
    )
    newest.ask()
    assert _shown(newest, RUN_LAST_FAILURE) == []
