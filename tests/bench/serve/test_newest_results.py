"""Results that are shown are those of the newest run of each series that ended well, whatever becomes of the store."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from bench.case import ONE_RUN, Case, Purpose, SuiteMember
from bench.rank.messages import TrialOutcome
from bench.results.estimate import Estimate, estimate, estimate_share
from bench.serve.history_source import HistorySource
from bench.serve.latest_results import NewestResults
from bench.store.history import History
from bench.store.summary import Summary, series_of
from collectors.metrics.agent import (
    RESULT_INFO,
    RUN_LAST_COMPLETION,
    RUN_LAST_FAILURE,
    SERIES_NEWEST_RUN,
    USUAL_EFFICIENCY,
    USUAL_STEP_SECONDS,
)
from collectors.metrics.metric import QUANTILES, STATISTICS, Metric
from collectors.metrics.probes import RUN_PAIR_BANDWIDTH
from collectors.metrics.results import (
    RUN_BUBBLE_RATIO,
    RUN_HELD_UP_RATIO,
    RUN_MEMORY_ACCOUNT_BYTES,
    RUN_PHASE_SECONDS,
    RUN_SCALING_EFFICIENCY,
    RUN_STEP_SECONDS,
    RUN_STRAGGLER_RATIO,
)
from tests.bench.made.examples import make_case, make_machine, make_summary
from tests.collectors.knocking import Notices
from workloads.cost_models.shape import PRESETS

SECOND_NS = 1_000_000_000


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'history.sqlite'}"


@pytest.fixture
def notices() -> Notices:
    return Notices()


@pytest.fixture
def newest(url: str, notices: Notices) -> HistorySource:
    return HistorySource(url, [NewestResults(on_notice=notices)], on_notice=notices)


def _add(url: str, *summaries: Summary) -> None:
    with History(url) as history:
        for summary in summaries:
            history.add(summary, make_machine())


def _summary(run: str, started_s: int, case: Case | None = None, **changes: Any) -> Summary:
    if case is not None:
        changes["case"] = case
    return make_summary(run, started_ns=started_s * SECOND_NS, **changes)


def _shown(newest: HistorySource, metric: Metric) -> list[tuple[float, dict[str, str]]]:
    return [
        (sample.value, {**sample.labels, **owner}) for sample, owner in newest.samples() if sample.metric == metric.name
    ]


def _runs(newest: HistorySource) -> list[str]:
    return sorted(labels["run"] for _, labels in _shown(newest, RESULT_INFO))


def test_each_estimate_is_shown_with_its_interval_and_the_runs_labels(url: str, newest: HistorySource) -> None:
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
        for which, value in zip(STATISTICS, found, strict=True):
            assert _shown(newest, metric.statistic(which)) == [(value, {**labels, **owner})]
    assert _shown(newest, RUN_LAST_COMPLETION) == [(19.0, owner)]


def _info(newest: HistorySource) -> dict[str, str]:
    ((value, told),) = _shown(newest, RESULT_INFO)
    assert value == 1
    return told


def test_a_result_tells_what_it_measured_and_with_what(url: str, newest: HistorySource) -> None:
    case = make_case("ddp", model=replace(PRESETS["tiny"], width=64))
    member = SuiteMember(suite="night", id="20261123-010203-night-abc123", case="ddp[ranks=2]")
    _add(url, _summary("a", 10, case, purpose=Purpose(origin="nightly", member=member), commit="f00d"))
    newest.ask()
    assert _info(newest) == {
        "series": series_of(case, make_summary().hardware),
        "run": "a",
        "name": "ddp on 2, tiny width=64, fp32, cpu, bucket_mb=25.0",
        "strategy": "ddp",
        "ranks": "2",
        "device": "cpu",
        "shape": "tiny width=64",
        "precision": "fp32",
        "options": "bucket_mb=25.0",
        "suite": "night",
        "case": "ddp[ranks=2]",
        "commit": "f00d",
        "torch": make_summary().torch_version,
        "driver": "",
        "nccl": "",
        "gpu": "",
    }


def test_a_result_of_gpus_tells_their_names_and_versions(url: str, newest: HistorySource) -> None:
    summary = _summary("a", 10, make_case(device="cuda", backend="nccl"), hardware="2 x NVIDIA H100")
    with History(url) as history:
        history.add(summary, replace(make_machine(), driver_version="580.65", nccl_version="2.28.9"))
    newest.ask()
    told = _info(newest)
    assert (told["gpu"], told["driver"], told["nccl"]) == ("2 x NVIDIA H100", "580.65", "2.28.9")


def test_the_same_case_on_other_gpus_has_another_name(url: str, newest: HistorySource) -> None:
    case = make_case("fsdp", device="cuda", backend="nccl")
    _add(url, *(_summary(gpu, 10, case, hardware=f"2 x {gpu}") for gpu in ("A100", "H100")))
    newest.ask()
    names = {labels["name"].rpartition(", ")[2] for _, labels in _shown(newest, RESULT_INFO)}
    assert names == {"2 x A100", "2 x H100"}


def test_only_options_that_differ_from_their_defaults_are_told(url: str, newest: HistorySource) -> None:
    usual = make_case("gpipe", ranks=2)
    _add(url, _summary("a", 10, replace(usual, options={**usual.options, "microbatches": 3, "gone": True})))
    newest.ask()
    assert _info(newest)["options"] == "microbatches=3, gone=true"
    assert _info(newest)["name"].endswith(", cpu, microbatches=3, gone=true")


def test_a_machine_that_cannot_be_read_hides_no_result(url: str, newest: HistorySource, notices: Notices) -> None:
    _add(url, _summary("a", 10))
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE runs SET machine_json = '{}'"))
    engine.dispose()
    newest.ask()
    assert _runs(newest) == ["a"]
    assert [notice.partition(":")[0] for notice in notices] == ["the machine of run a is not shown"]


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
    marks: dict[str, Any], baseline: str, url: str, newest: HistorySource
) -> None:
    summary = _summary("a", 10)
    _add(url, replace(summary, scaling=tuple(replace(found, **marks) for found in summary.scaling)))
    newest.ask()
    shown = _shown(newest, RUN_SCALING_EFFICIENCY.statistic("median"))
    assert {(labels["scaling"], labels["baseline"]) for _, labels in shown} == {("weak", baseline)}


@pytest.mark.parametrize(("ranks", "is_shown"), [(1, True), (2, False)])
def test_an_efficiency_against_several_ranks_beside_the_run_is_not_shown(
    ranks: int, is_shown: bool, url: str, newest: HistorySource
) -> None:
    case = make_case("ddp", ranks=4, batch=4)
    scaling = replace(make_summary().scaling[0], scaling="strong", is_beside=True, baseline_ranks=ranks)
    _add(url, _summary("a", 10, case, scaling=(scaling,)))
    newest.ask()
    assert _runs(newest) == ["a"]
    assert bool(_shown(newest, RUN_SCALING_EFFICIENCY.statistic("median"))) is is_shown


def test_one_trial_has_a_median_and_no_bounds(url: str, newest: HistorySource) -> None:
    _add(url, _summary("a", 10, estimates=(estimate(RUN_STEP_SECONDS, (0.5,)),), scaling=()))
    newest.ask()
    shown = [[value for value, _ in _shown(newest, RUN_STEP_SECONDS.statistic(which))] for which in STATISTICS]
    assert shown == [[0.5], [], []]


def test_what_is_measured_and_what_is_expected_are_metrics_of_their_own(url: str, newest: HistorySource) -> None:
    bubbles = (
        estimate(RUN_BUBBLE_RATIO, (0.3,), account="measured"),
        estimate(RUN_BUBBLE_RATIO, (0.2,), account="expected"),
        estimate(RUN_MEMORY_ACCOUNT_BYTES, (7.0,), part="total", account="paper"),
        estimate(RUN_MEMORY_ACCOUNT_BYTES, (5.0,), part="gradients", account="paper"),
    )
    _add(url, _summary("a", 10, estimates=bubbles, scaling=()))
    newest.ask()
    shown = {sample.metric: (sample.value, sample.labels) for sample, _ in newest.samples() if "run_" in sample.metric}
    assert shown["observatory_run_bubble_measured_median_ratio"] == (0.3, {})
    assert shown["observatory_run_bubble_expected_median_ratio"] == (0.2, {})
    assert shown["observatory_run_memory_account_total_paper_median_bytes"] == (7.0, {})
    assert shown["observatory_run_memory_account_paper_median_bytes"] == (5.0, {"part": "gradients"})


def _of_ranks(ranks: int) -> tuple[Estimate, ...]:
    """Rank 0 holds up 1 %, rank 1 2 % and so on, as far as 100 ranks go."""
    held_up = (estimate_share(RUN_HELD_UP_RATIO, ((rank + 1) / 100,), rank=str(rank)) for rank in range(ranks))
    return (*held_up, estimate_share(RUN_STRAGGLER_RATIO, (0.1,), rank="7", cause="copy"))


def _shown_ranks(newest: HistorySource, metric: Metric) -> set[int]:
    return {int(labels["rank"]) for _, labels in _shown(newest, metric.statistic("median"))}


def test_of_many_ranks_the_worst_are_shown_and_quantiles_over_all(url: str, newest: HistorySource) -> None:
    _add(url, _summary("a", 10, estimates=_of_ranks(99), scaling=()))
    newest.ask()
    assert _shown_ranks(newest, RUN_HELD_UP_RATIO) == set(range(91, 99))
    found = {word: _shown(newest, RUN_HELD_UP_RATIO.quantile(word)) for word in QUANTILES}
    # 99 shares from 0.01 to 0.99: the median is 0.5, and the quantile q lies at 0.01 + 0.98 q.
    for word, quantile in QUANTILES.items():
        ((value, labels),) = found[word]
        assert value == pytest.approx(0.01 + 0.98 * quantile)
        assert "rank" not in labels
    assert _shown_ranks(newest, RUN_STRAGGLER_RATIO) == {7}


def test_of_pairs_the_slowest_are_the_worst(url: str, newest: HistorySource) -> None:
    pairs = tuple(
        estimate(RUN_PAIR_BANDWIDTH, (1e9 * (one + 1),), pair=f"{one}-{one + 1}", size=size)
        for one in range(20)
        for size in ("1024", "4096")
    )
    _add(url, _summary("a", 10, estimates=pairs, scaling=()))
    newest.ask()
    shown = _shown(newest, RUN_PAIR_BANDWIDTH.statistic("median"))
    assert {labels["pair"] for _, labels in shown} == {f"{one}-{one + 1}" for one in range(8)}
    assert len(shown) == 16
    assert len(_shown(newest, RUN_PAIR_BANDWIDTH.quantile("p50"))) == 2


def test_of_few_ranks_all_are_shown_and_no_quantile(url: str, newest: HistorySource) -> None:
    _add(url, _summary("a", 10, estimates=_of_ranks(16), scaling=()))
    newest.ask()
    assert _shown_ranks(newest, RUN_HELD_UP_RATIO) == set(range(16))
    assert _shown(newest, RUN_HELD_UP_RATIO.quantile("p90")) == []


def test_of_a_series_the_newest_run_that_ended_well_is_shown(url: str, newest: HistorySource) -> None:
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


def test_a_run_that_is_ad_hoc_is_never_its_series_newest_result(url: str, newest: HistorySource) -> None:
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


def test_a_run_that_is_added_later_takes_its_series_over_unless_it_is_older(url: str, newest: HistorySource) -> None:
    _add(url, _summary("a", 10))
    newest.ask()
    _add(url, _summary("adopted late", 5))
    newest.ask()
    assert _runs(newest) == ["a"]
    _add(url, _summary("b", 20))
    newest.ask()
    assert _runs(newest) == ["b"]


def test_a_store_that_is_not_there_yet_is_said_and_found_later(
    url: str, newest: HistorySource, notices: Notices
) -> None:
    newest.ask()
    assert newest.samples() == ()
    assert len(notices) == 1
    assert notices[0].startswith("no results are shown yet: store sqlite:")
    _add(url, _summary("a", 10))
    newest.ask()
    assert _runs(newest) == ["a"]


def test_results_stay_when_the_store_goes_away(
    url: str, newest: HistorySource, notices: Notices, tmp_path: Path
) -> None:
    _add(url, _summary("a", 10))
    newest.ask()
    (tmp_path / "history.sqlite").unlink()
    newest.ask()
    assert _runs(newest) == ["a"]
    assert [notice.partition(":")[0] for notice in notices] == ["results are no longer updated"]


def test_a_result_of_a_newer_version_is_named_and_the_others_are_shown(
    url: str, newest: HistorySource, notices: Notices
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
    outcome: TrialOutcome, url: str, newest: HistorySource
) -> None:
    _add(url, _summary("a", 10), _summary("b", 20, outcome=outcome, ended_ns=25 * SECOND_NS))
    newest.ask()
    ((ended_s, labels),) = _shown(newest, RUN_LAST_FAILURE)
    assert (ended_s, labels["run"], labels["outcome"], labels["strategy"]) == (25, "b", outcome, "ddp")
    assert labels["name"].startswith("ddp on ")
    assert _runs(newest) == ["a"]
    _add(url, _summary("c", 30))
    newest.ask()
    assert _shown(newest, RUN_LAST_FAILURE) == []


def test_a_failed_case_of_a_suite_or_an_ad_hoc_run_is_told_elsewhere(url: str, newest: HistorySource) -> None:
    member = SuiteMember(suite="night", id="20261123-010203-night-abc123", case="ddp")
    _add(
        url,
        _summary("a", 10, outcome="failed", purpose=Purpose(origin="nightly", member=member)),
        _summary("b", 10, outcome="failed", purpose=Purpose(note="trying")),
    )
    newest.ask()
    assert _shown(newest, RUN_LAST_FAILURE) == []


# What is usual, and how the newest run ended.

DAY_S = 86_400


def _night(day: int, step_s: float, run: str = "", **changes: Any) -> Summary:
    """A run at noon of a day whose step is as long as this, and whose efficiency is a tenth of it."""
    (scaling,) = make_summary().scaling
    ratio = replace(scaling.ratio, value=step_s / 10)
    made = {"estimates": (estimate(RUN_STEP_SECONDS, (step_s,)),), "scaling": (replace(scaling, ratio=ratio),)}
    return _summary(run or f"night-{day}", day * DAY_S + 43_200, **{**made, **changes})


def _usual_s(newest: HistorySource) -> list[float]:
    return [value for value, _ in _shown(newest, USUAL_STEP_SECONDS)]


def test_what_is_usual_is_the_median_of_the_nights_before_the_newest(url: str, newest: HistorySource) -> None:
    _add(url, *(_night(day, step_s) for day, step_s in enumerate((1.0, 2.0, 4.0, 9.0))))
    newest.ask()
    ((step_s, owner),) = _shown(newest, USUAL_STEP_SECONDS)
    assert step_s == 2.0
    assert owner == {label: _shown(newest, RUN_LAST_COMPLETION)[0][1][label] for label in USUAL_STEP_SECONDS.labels}
    ((efficiency, labels),) = _shown(newest, USUAL_EFFICIENCY)
    assert efficiency == pytest.approx(0.2)
    assert labels == {**owner, "scaling": "weak", "baseline": "unknown"}


def test_runs_of_one_night_count_as_one(url: str, newest: HistorySource) -> None:
    many = (_night(1, step_s, f"of-one-night-{step_s}") for step_s in (7.0, 8.0, 9.0))
    _add(url, _night(0, 1.0), *many, _night(2, 3.0), _night(3, 5.0), _night(3, 6.0, "later-that-day"))
    newest.ask()
    assert _usual_s(newest) == [3.0]  # Of 1, 8 and 3; the newest night, which has two runs, is not in it.


def test_fourteen_nights_that_ran_are_usual_and_what_lies_before_is_not(url: str, newest: HistorySource) -> None:
    _add(url, *(_night(day, 100.0) for day in range(9)), *(_night(day, 1.0) for day in range(20, 55, 5)))
    newest.ask()
    assert _usual_s(newest) == [100.0]  # Eight of 100 s and six of 1 s before the newest.
    for day in range(60, 75):  # Each is read when it comes, as by an exporter that goes on.
        _add(url, _night(day, 2.0))
        newest.ask()
    assert _usual_s(newest) == [2.0]


def test_each_of_fourteen_nights_counts_for_what_is_usual_and_no_other(url: str, newest: HistorySource) -> None:
    _add(url, *(_night(day, float(day)) for day in range(1, 21)))
    newest.ask()
    assert _usual_s(newest) == [12.5]  # The median of 6 to 19.


def test_of_what_was_measured_otherwise_nothing_is_usual(url: str, newest: HistorySource) -> None:
    longer = make_case(steps=50)
    rerun = SuiteMember(suite="night", id="20261123-010203-night-abc123", case="ddp", is_rerun=True)
    _add(
        url,
        _night(1, 1.0, "longer", case=longer),
        _night(2, 1.0, "failed", outcome="failed"),
        _night(3, 1.0, "rerun", purpose=Purpose(origin="nightly", member=rerun)),
        _night(4, 5.0),
    )
    newest.ask()
    assert _runs(newest) == ["night-4"]
    assert _usual_s(newest) == []


def test_each_series_says_how_its_newest_run_ended(url: str, newest: HistorySource) -> None:
    member = SuiteMember(suite="night", id="20261123-010203-night-abc123", case="ddp")
    other = make_case("single", ranks=1, batch=4)
    _add(
        url,
        _summary("well", 10),
        _summary("late", 20, outcome="timed_out", purpose=Purpose(origin="nightly", member=member)),
        _summary("other", 5, case=other),
    )
    newest.ask()
    ends = {labels["run"]: labels["outcome"] for _, labels in _shown(newest, SERIES_NEWEST_RUN)}
    assert ends == {"late": "timed_out", "other": "done"}
