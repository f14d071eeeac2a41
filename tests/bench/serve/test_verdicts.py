"""Verdicts at /metrics are those of the history: what was judged, what stays open, what a person accepted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench.gate.accept import accept
from bench.gate.check import check_suite
from bench.gate.verdicts import BAD, load_states, save_accepted
from bench.serve.history_source import HistorySource
from bench.serve.verdicts import StandingVerdicts
from bench.store.history import History
from collectors.metrics.gate import (
    ACCEPTED_CHANGE,
    SUITE_MISSING,
    SUITE_NIGHT,
    VERDICT,
    VERDICT_CAUSE,
    VERDICT_CHANGE,
    VERDICT_CHANGE_HIGH,
    VERDICT_CHANGE_LOW,
    VERDICT_NIGHT,
    VERDICT_SINCE,
)
from collectors.metrics.metric import Metric
from tests.bench.made.fake_nights import DAY_NS, FIRST_NS, STEP_S, FakeNights, fill

LEVELS = {"ddp": STEP_S, "fsdp": STEP_S}
SLOWER = {"ddp": 1.1 * STEP_S, "fsdp": STEP_S}
FIRST_SLOW, NIGHTS = 20, 25


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history of twenty usual nights and five slow ones of one case, all judged."""
    path = tmp_path_factory.mktemp("verdicts") / "history.sqlite"
    with History(f"sqlite:///{path}") as history:
        nights = FakeNights(history)
        for number in range(NIGHTS):
            nights.add(number, SLOWER if number >= FIRST_SLOW else LEVELS)
        _judge(history, NIGHTS)
    return path


@pytest.fixture
def url(judged: Path, tmp_path: Path) -> str:
    """That history, to be changed."""
    shutil.copy(judged, tmp_path / "history.sqlite")
    return f"sqlite:///{tmp_path / 'history.sqlite'}"


@pytest.fixture
def notices() -> list[str]:
    return []


@pytest.fixture
def verdicts(url: str, notices: list[str]) -> HistorySource:
    return HistorySource(url, [StandingVerdicts(on_notice=notices.append)], on_notice=notices.append)


def _judge(history: History, nights: int) -> None:
    now_ns = FIRST_NS + nights * DAY_NS
    check_suite(history, "nightly", history.suite_runs(1000, "nightly"), since_ns=None, now_ns=now_ns)


def _shown(verdicts: HistorySource, metric: Metric, *names: str) -> dict[tuple[str, ...], float]:
    """The values of a metric by these labels."""
    samples = [sample for sample, owner in verdicts.samples() if sample.metric == metric.name and not owner]
    assert all(set(sample.labels) == set(metric.labels) for sample in samples)
    shown = {tuple(sample.labels[name] for name in names): sample.value for sample in samples}
    assert len(shown) == len(samples)
    return shown


FIGURE = ("case", "figure")


def test_a_history_without_verdicts_shows_none(tmp_path: Path, notices: list[str]) -> None:
    url = f"sqlite:///{tmp_path / 'new.sqlite'}"
    with History(url) as history:
        FakeNights(history).add(0, LEVELS)
    verdicts = HistorySource(url, [StandingVerdicts(on_notice=notices.append)], on_notice=notices.append)
    verdicts.ask()
    assert (verdicts.samples(), notices) == ((), [])


def test_what_is_confirmed_is_shown_with_its_change_its_interval_and_its_first_night(
    url: str, verdicts: HistorySource
) -> None:
    verdicts.ask()
    said = _shown(verdicts, VERDICT, *FIGURE, "verdict")
    assert said[("ddp", "step", "confirmed")] == 1
    assert said[("fsdp", "step", "no_change_shown")] == 1
    step = ("ddp", "step")
    change = _shown(verdicts, VERDICT_CHANGE, *FIGURE)[step]
    assert change == pytest.approx(0.1, abs=0.02)
    low = _shown(verdicts, VERDICT_CHANGE_LOW, *FIGURE)[step]
    assert low < change < _shown(verdicts, VERDICT_CHANGE_HIGH, *FIGURE)[step]
    began_s = _shown(verdicts, VERDICT_SINCE, *FIGURE)[step]
    assert round(began_s) == (FIRST_NS + FIRST_SLOW * DAY_NS) // 10**9
    assert ("fsdp", "step") not in _shown(verdicts, VERDICT_SINCE, *FIGURE)
    last_s = (FIRST_NS + (NIGHTS - 1) * DAY_NS) // 10**9
    assert set(map(round, _shown(verdicts, VERDICT_NIGHT, *FIGURE).values())) == {last_s}


def test_same_is_shown_only_of_a_figure_whose_night_shows_it(tmp_path: Path, notices: list[str]) -> None:
    """A verdict of an older version, which did not say what it would have seen, is of this kind, too."""
    url = f"sqlite:///{tmp_path / 'noisy.sqlite'}"
    with History(url) as history:
        fill(FakeNights(history, first_ns=FIRST_NS, sd_ratio=0.03), NIGHTS)
        _judge(history, NIGHTS)
    verdicts = HistorySource(url, [StandingVerdicts(on_notice=notices.append)], on_notice=notices.append)
    verdicts.ask()
    said = _shown(verdicts, VERDICT, *FIGURE, "verdict")
    assert {verdict for *_, verdict in said} == {"no_change_shown"}


def test_of_what_is_worse_its_run_is_told_and_of_nothing_else(url: str, verdicts: HistorySource) -> None:
    verdicts.ask()
    causes = _shown(verdicts, VERDICT_CAUSE, *FIGURE, "run")
    assert set(causes) == {("ddp", figure, f"run{NIGHTS - 1:04}-ddp") for figure in ("step", "mean step")}


def test_a_figure_is_told_by_suite_case_ranks_hardware_and_series(url: str, verdicts: HistorySource) -> None:
    verdicts.ask()
    with History(url, writable=False) as history:
        hardware = history.runs(1)[0].hardware
    ((suite, ranks, told),) = _labels(verdicts, "suite", "ranks", "hardware")
    assert (suite, ranks, told) == ("nightly", "2", hardware)
    assert all(series for (series,) in _labels(verdicts, "series"))


def _labels(verdicts: HistorySource, *names: str) -> set[tuple[str, ...]]:
    return {
        tuple(sample.labels[name] for name in names)
        for sample, _ in verdicts.samples()
        if sample.metric == VERDICT.name
    }


def test_a_change_is_open_also_where_its_case_was_not_measured(url: str, verdicts: HistorySource) -> None:
    with History(url) as history:
        FakeNights(history, seed=3).add(NIGHTS, {"fsdp": STEP_S})
        _judge(history, NIGHTS + 1)
    verdicts.ask()
    assert ("ddp", "step", "confirmed") in _shown(verdicts, VERDICT, *FIGURE, "verdict")
    assert _shown(verdicts, SUITE_MISSING, "kind") == {("vanished",): 1, ("stopped",): 0}


def test_a_night_that_measured_nothing_is_seen_by_an_exporter_that_runs(url: str, verdicts: HistorySource) -> None:
    verdicts.ask()
    assert _shown(verdicts, SUITE_MISSING, "kind")[("vanished",)] == 0
    with History(url) as history:
        FakeNights(history).add_record(NIGHTS, done=0, cases={"skipped": 2}, total=2)
    verdicts.ask()
    assert _shown(verdicts, SUITE_MISSING, "kind")[("vanished",)] == 2
    (night_s,) = _shown(verdicts, SUITE_NIGHT).values()
    assert night_s == (FIRST_NS + NIGHTS * DAY_NS) / 1e9


def test_an_accepted_level_ends_it_and_is_shown(url: str, verdicts: HistorySource) -> None:
    verdicts.ask()
    assert _shown(verdicts, ACCEPTED_CHANGE, *FIGURE) == {}
    with History(url) as history:
        known = load_states(history, "nightly")
        levels, closed = accept(
            known.values(),
            case="ddp",
            metric=None,
            who="ada",
            because="exact softmax",
            now_ns=FIRST_NS + NIGHTS * DAY_NS,
        )
        save_accepted(history, levels, known, closed)
    verdicts.ask()
    said = {key[2] for key in _shown(verdicts, VERDICT, *FIGURE, "verdict") if key[0] == "ddp"}
    assert said == {"accepted"}
    assert not said & BAD
    assert _shown(verdicts, ACCEPTED_CHANGE, *FIGURE)[("ddp", "step")] == pytest.approx(0, abs=0.05)


def test_what_was_read_stays_where_the_store_goes_away(
    url: str, tmp_path: Path, verdicts: HistorySource, notices: list[str]
) -> None:
    verdicts.ask()
    before = verdicts.samples()
    (tmp_path / "history.sqlite").rename(tmp_path / "elsewhere.sqlite")
    verdicts.ask()
    assert verdicts.samples() == before != ()
    assert [notice.partition(": ")[0] for notice in notices] == ["results are no longer updated"]


def test_a_verdict_that_cannot_be_read_ends_nothing_and_is_told(
    url: str, verdicts: HistorySource, notices: list[str]
) -> None:
    with History(url) as history, history.transaction() as connection:
        connection.exec_driver_sql("UPDATE gate_verdicts SET verdict_json = '{}'")
    verdicts.ask()
    assert verdicts.samples() == ()
    assert len(notices) == 1
    assert notices[0].startswith("verdicts of suite nightly are no longer updated: the gate's state for")
