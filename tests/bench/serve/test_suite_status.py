"""Suites at /metrics are the history's: the newest runs as they are, and counts that never fall."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from bench.case import Purpose, SuiteMember
from bench.rank.messages import FailureCause
from bench.serve.history_source import HistorySource
from bench.serve.suite_status import ALL_READ_S, LEFT_OUT_S, NEWEST_READ, SuiteStatus
from bench.store.history import History
from bench.store.suite_record import SuiteRecord
from bench.store.summary import Summary
from collectors.metrics.metric import Metric
from collectors.metrics.registry import SHOWN
from collectors.metrics.suites import (
    SUITE_CASE_FAILURE,
    SUITE_CASE_INFO,
    SUITE_CASES,
    SUITE_LAST_CASES,
    SUITE_LAST_END,
    SUITE_LAST_PROGRESS,
    SUITE_LAST_START,
    SUITE_PERIOD,
    SUITE_RUNS,
)
from collectors.prometheus.exposition import Exporter
from tests.bench.made.examples import make_machine, make_summary

SECOND_NS = 1_000_000_000


class FakeClock:
    """Stands where it is put."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'history.sqlite'}"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def notices() -> list[str]:
    return []


@pytest.fixture
def status(url: str, clock: FakeClock, notices: list[str]) -> HistorySource:
    return HistorySource(url, [SuiteStatus(clock_s=clock)], on_notice=notices.append)


def _record(run: str = "a", suite: str = "nightly", *, started_s: int = 10, **changes: Any) -> SuiteRecord:
    """A run of three cases that took a minute and ended well."""
    usual: dict[str, Any] = {
        "progress_ns": (started_s + 60) * SECOND_NS,
        "ended_ns": (started_s + 60) * SECOND_NS,
        "outcome": "done",
        "cases": {"done": 3},
        "total": 3,
        "folder": f"/runs/suites/{run}",
    }
    return SuiteRecord(id=run, suite=suite, started_ns=started_s * SECOND_NS, **{**usual, **changes})


def _active(run: str = "a", suite: str = "nightly", **changes: Any) -> SuiteRecord:
    """A run of three cases whose second one runs."""
    usual = {"ended_ns": None, "outcome": "running", "cases": {"done": 1}, "running": ("ddp",)}
    return _record(run, suite, **{**usual, **changes})


def _save(url: str, *records: SuiteRecord) -> None:
    with History(url) as history:
        for record in records:
            history.save_suite(record)


def _shown(status: HistorySource, metric: Metric) -> dict[tuple[str, ...], float]:
    """The values of a metric by those of its labels."""
    samples = [sample for sample, owner in status.samples() if sample.metric == metric.name and not owner]
    return {tuple(sample.labels[label] for label in metric.labels): sample.value for sample in samples}


def _positive(status: HistorySource, metric: Metric) -> dict[tuple[str, ...], float]:
    return {labels: value for labels, value in _shown(status, metric).items() if value}


def test_an_ended_run_is_shown_with_how_its_cases_ended(url: str, status: HistorySource) -> None:
    _save(url, _record(outcome="failed", cases={"done": 1, "failed": 1, "skipped": 1}))
    status.ask()
    of_run = ("nightly", "a")
    assert _shown(status, SUITE_LAST_CASES) == {(*of_run, outcome): 1 for outcome in ("done", "failed", "skipped")}
    assert _shown(status, SUITE_LAST_START) == {("nightly",): 10}
    assert _shown(status, SUITE_LAST_END) == {("nightly",): 70}
    assert _shown(status, SUITE_LAST_PROGRESS) == {of_run: 70}
    assert _shown(status, SUITE_CASE_INFO) == {}


def test_each_case_that_failed_is_shown_with_its_run_its_rank_and_its_cause(url: str, status: HistorySource) -> None:
    def run(name: str, case: str, **changes: Any) -> Summary:
        member = SuiteMember(suite="nightly", id="a", case=case)
        return make_summary(name, purpose=Purpose(member=member), **changes)

    killed = FailureCause(
        kind="killed", rank=1, step=3, text="rank 1 was killed\nby SIGKILL; its last lines are in /r/rank1.err"
    )
    with History(url) as history:
        for one in (
            run("r1", "ddp", outcome="failed", cause=killed),
            run("r2", "fsdp", outcome="timed_out"),
            run("r3", "single"),
            run("r4", "drill"),
            # This one failed as its suite expects.
            run("r5", "hung", outcome="timed_out"),
        ):
            history.add(one, make_machine())
    failed = ("ddp", "fsdp", "drill")
    _save(url, _record(outcome="failed", cases={"done": 2, "failed": 3}, total=5, failed=failed))
    status.ask()
    of_run = ("nightly", "a")
    assert _shown(status, SUITE_CASE_FAILURE) == {
        (*of_run, "ddp", "r1", "failed", "1", "rank 1 was killed by SIGKILL"): 1,
        (*of_run, "fsdp", "r2", "timed_out", "", ""): 1,
        (*of_run, "drill", "r4", "failed", "", ""): 1,
    }
    _save(url, _record("b", started_s=200))
    status.ask()
    assert _shown(status, SUITE_CASE_FAILURE) == {}


def test_cases_that_an_ended_run_never_ended_are_missing(url: str, status: HistorySource) -> None:
    _save(url, _record(outcome="interrupted", cases={"done": 1}))
    status.ask()
    assert _shown(status, SUITE_LAST_CASES)["nightly", "a", "missing"] == 2


def test_a_run_that_goes_on_is_shown_with_what_runs_and_what_waits(url: str, status: HistorySource) -> None:
    _save(url, _active())
    status.ask()
    of_run = ("nightly", "a")
    assert _shown(status, SUITE_LAST_CASES) == {(*of_run, outcome): 1 for outcome in ("done", "running", "waiting")}
    assert _shown(status, SUITE_LAST_PROGRESS) == {of_run: 70}
    assert _shown(status, SUITE_CASE_INFO) == {(*of_run, "ddp"): 1}
    assert _shown(status, SUITE_LAST_END) == {}


def test_between_two_cases_none_runs_and_the_run_goes_on(url: str, status: HistorySource) -> None:
    _save(url, _active(running=()))
    status.ask()
    assert _shown(status, SUITE_LAST_CASES)["nightly", "a", "running"] == 0
    assert _shown(status, SUITE_LAST_CASES)["nightly", "a", "waiting"] == 2


def test_of_each_suite_the_newest_ended_run_is_shown_beside_those_that_go_on(url: str, status: HistorySource) -> None:
    _save(
        url,
        _record("old", started_s=10),
        _record("new", started_s=100),
        _active("one node's", started_s=200),
        _active("another node's", started_s=210),
        _record("smoke", "smoke", started_s=50),
    )
    status.ask()
    assert set(_shown(status, SUITE_LAST_PROGRESS)) == {
        ("nightly", "new"),
        ("nightly", "one node's"),
        ("nightly", "another node's"),
        ("smoke", "smoke"),
    }
    assert _shown(status, SUITE_LAST_START) == {("nightly",): 210, ("smoke",): 50}


def test_a_run_whose_runner_died_goes_on_until_its_suite_is_begun_anew(url: str, status: HistorySource) -> None:
    _save(url, _active("dead", started_s=10))
    status.ask()
    assert set(_shown(status, SUITE_LAST_PROGRESS)) == {("nightly", "dead")}
    _save(url, _active("anew", started_s=1000))
    status.ask()
    assert set(_shown(status, SUITE_LAST_PROGRESS)) == {("nightly", "anew")}


def test_a_period_is_that_of_the_newest_run(url: str, status: HistorySource) -> None:
    _save(url, _record("a", started_s=10, period_s=3600.0), _record("s", "smoke"))
    status.ask()
    assert _shown(status, SUITE_PERIOD) == {("nightly",): 3600}
    _save(url, _record("b", started_s=20, period_s=None))
    status.ask()
    assert _shown(status, SUITE_PERIOD) == {}


def test_runs_and_cases_are_counted_over_the_history(url: str, status: HistorySource) -> None:
    failed = {"done": 1, "failed": 1, "skipped": 1}
    _save(url, _record("a"), _record("b", outcome="failed", cases=failed), _active("c"), _record("s", "smoke"))
    status.ask()
    assert _positive(status, SUITE_RUNS) == {("nightly", "done"): 1, ("nightly", "failed"): 1, ("smoke", "done"): 1}
    assert _positive(status, SUITE_CASES) == {
        ("nightly", "done"): 5,
        ("nightly", "failed"): 1,
        ("nightly", "skipped"): 1,
        ("smoke", "done"): 3,
    }


def test_a_count_begins_at_zero_so_that_its_first_growth_is_seen(url: str, status: HistorySource) -> None:
    _save(url, _active(cases={}))
    status.ask()
    assert _shown(status, SUITE_RUNS)["nightly", "failed"] == 0
    assert _shown(status, SUITE_CASES)["nightly", "timed_out"] == 0


def test_a_failed_case_that_is_repeated_well_was_both(url: str, status: HistorySource) -> None:
    for record in (
        _record(outcome="failed", cases={"done": 2, "failed": 1}),
        _active(cases={"done": 2}),
        _record(cases={"done": 3}),
    ):
        _save(url, record)
        status.ask()
    assert _positive(status, SUITE_RUNS) == {("nightly", "done"): 1, ("nightly", "failed"): 1}
    assert _positive(status, SUITE_CASES) == {("nightly", "done"): 3, ("nightly", "failed"): 1}
    assert _positive(status, SUITE_LAST_CASES) == {("nightly", "a", "done"): 3}


def test_an_old_run_that_was_resumed_is_found_in_time(url: str, status: HistorySource, clock: FakeClock) -> None:
    _save(url, _active("old", started_s=1), *(_record(f"r{one}", "smoke", started_s=one) for one in range(2, 99)))
    assert NEWEST_READ < 97
    status.ask()
    _save(url, _record("old", started_s=1))
    clock.now_s = ALL_READ_S - 1
    status.ask()
    assert _positive(status, SUITE_RUNS) == {("smoke", "done"): 97}
    clock.now_s = ALL_READ_S
    status.ask()
    assert _positive(status, SUITE_RUNS) == {("smoke", "done"): 97, ("nightly", "done"): 1}


def test_where_the_store_is_gone_ends_stay_and_what_runs_is_soon_unknown(
    url: str, status: HistorySource, clock: FakeClock, notices: list[str], tmp_path: Path
) -> None:
    _save(url, _record("ended", started_s=10), _active("active", started_s=100))
    status.ask()
    (tmp_path / "history.sqlite").unlink()
    clock.now_s = LEFT_OUT_S - 1
    status.ask()
    assert set(_shown(status, SUITE_LAST_PROGRESS)) == {("nightly", "ended"), ("nightly", "active")}
    clock.now_s = LEFT_OUT_S
    status.ask()
    assert set(_shown(status, SUITE_LAST_PROGRESS)) == {("nightly", "ended")}
    assert _shown(status, SUITE_CASE_INFO) == {}
    assert _shown(status, SUITE_LAST_START) == {("nightly",): 100}
    assert [notice.partition(": ")[0] for notice in notices] == ["results are no longer updated"] * 2


def test_a_record_of_a_newer_version_is_told_and_what_was_read_stays(
    url: str, status: HistorySource, notices: list[str]
) -> None:
    _save(url, _record("a"))
    status.ask()
    _save(url, _record("b", schema_version=99))
    status.ask()
    assert set(_shown(status, SUITE_LAST_PROGRESS)) == {("nightly", "a")}
    (notice,) = notices
    assert notice.startswith("suites are no longer updated: suite run b in store")


def test_what_is_shown_is_valid_and_no_series_is_given_twice(url: str, status: HistorySource) -> None:
    _save(url, _record("a", period_s=60.0), _active("b", started_s=30), _record("s", "smoke"))
    status.ask()
    refused: list[str] = []
    body = generate_latest(Exporter(SHOWN, [status.samples], on_notice=refused.append))
    assert refused == []
    assert sum(not line.startswith(b"#") for line in body.splitlines()) == len(status.samples())


def test_without_suites_nothing_is_shown(url: str, status: HistorySource) -> None:
    _save(url)
    status.ask()
    assert status.samples() == ()
