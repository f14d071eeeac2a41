"""Runs are looked at in a thread of its own: a disk that hangs, or a look that fails, is alone in it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from bench.serve.live.looks import LiveRuns
from collectors.metrics import agent
from collectors.metrics.metric import Metric
from collectors.metrics.rank import STEP_SECONDS
from collectors.prometheus.exposition import Owned
from tests.collectors.fake_collectors import FakeHang, ended, lose_its_way
from tests.waiting import wait_until

SECOND = 1_000_000_000
RANK = {"rank": "0", "slot": "0"}


class FakeClock:
    """Stands until the test moves it."""

    def __init__(self) -> None:
        self.now = 7 * SECOND

    def __call__(self) -> int:
        return self.now

    def pass_s(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)


class FakeLogs:
    """Logs of one rank, whose step is the number of the look. at_look: what else happens at a look, by its number."""

    def __init__(self, at_look: dict[int, Callable[[], None]] | None = None) -> None:
        self.looks = 0
        self._at_look = at_look or {}

    def __call__(self) -> list[Owned]:
        self.looks += 1
        self._at_look.get(self.looks, lambda: None)()
        return [(STEP_SECONDS.at(self.looks), RANK)]


def _runs(logs: FakeLogs, clock: FakeClock, notices: list[str] | None = None, hold_s: float = 60.0) -> LiveRuns:
    heard = [] if notices is None else notices
    return LiveRuns(logs, on_notice=heard.append, hold_s=hold_s, late_s=1.0, pause_s=0.5, clock_ns=clock)


@contextmanager
def _hanging(hang: FakeHang, runs: LiveRuns) -> Iterator[None]:
    try:
        yield
    finally:
        hang.let_go()
        runs.close()
        ended("runs")


def _values(runs: LiveRuns, metric: Metric) -> list[tuple[float, dict[str, str]]]:
    return [(sample.value, sample.labels) for sample, _ in runs.samples() if sample.metric == metric.name]


def _steps(runs: LiveRuns) -> list[float]:
    return [value for value, _ in _values(runs, STEP_SECONDS)]


def _look(runs: LiveRuns, step: float) -> None:
    runs.ask()
    wait_until(lambda: _steps(runs) == [step])


def test_each_asking_is_a_look_that_scrapes_show_and_do_not_repeat() -> None:
    clock, logs = FakeClock(), FakeLogs()
    with closing(_runs(logs, clock)) as runs:
        assert runs.samples() == []
        for step in (1.0, 2.0):
            _look(runs, step)
            clock.pass_s(1)
        assert [_steps(runs) for _ in range(3)] == [[2.0]] * 3
    assert logs.looks == 2


def test_the_looking_is_told_of_as_of_a_collector() -> None:
    clock = FakeClock()
    with closing(_runs(FakeLogs({2: lambda: clock.pass_s(0.25)}), clock)) as runs:
        _look(runs, 1.0)
        clock.pass_s(1)
        _look(runs, 2.0)
        clock.pass_s(3)
        assert _values(runs, agent.AGENT_COLLECTOR) == [(1, {"collector": "runs", "state": "answering"})]
        assert _values(runs, agent.AGENT_AGE_SECONDS) == [(3, {"collector": "runs"})]
        assert _values(runs, agent.AGENT_READ_SECONDS) == [(0.25, {"collector": "runs"})]
        assert _values(runs, agent.AGENT_SAMPLES) == [(2, {"collector": "runs"})]
        assert _values(runs, agent.AGENT_FIELDS) == []


def test_beats_that_follow_fast_do_not_look_each_time() -> None:
    clock, logs = FakeClock(), FakeLogs()
    with closing(_runs(logs, clock)) as runs:
        _look(runs, 1.0)
        clock.pass_s(0.4)
        runs.ask()
        time.sleep(0.05)  # A look that had begun would be over.
        assert logs.looks == 1
        clock.pass_s(0.1)
        _look(runs, 2.0)


@pytest.mark.timeout(30)
def test_a_log_that_hangs_is_late_with_its_age_and_holds_up_no_scrape() -> None:
    hang, clock, notices = FakeHang(), FakeClock(), list[str]()
    runs = _runs(FakeLogs({2: hang}), clock, notices)
    with _hanging(hang, runs):
        _look(runs, 1.0)
        clock.pass_s(1)
        runs.ask()
        hang.has_begun.wait()
        clock.pass_s(1.5)
        runs.ask()
        assert _steps(runs) == [1.0]
        assert _values(runs, agent.AGENT_COLLECTOR) == [(1, {"collector": "runs", "state": "late"})]
        assert _values(runs, agent.AGENT_AGE_SECONDS) == [(2.5, {"collector": "runs"})]
        clock.pass_s(57.5)
        assert _steps(runs) == [1.0]
        clock.pass_s(0.001)
        assert _steps(runs) == []
        hang.let_go()
        wait_until(lambda: _steps(runs) == [2.0])
        assert _values(runs, agent.AGENT_COLLECTOR) == [(1, {"collector": "runs", "state": "answering"})]
    assert set(notices) == {
        "runs: reading their logs sometimes takes more than 1 s; the last reading is shown meanwhile"
    }


@pytest.mark.timeout(30)
def test_a_scrape_that_looks_itself_gives_up_and_later_ones_do_not_wait() -> None:
    hang = FakeHang()
    runs = LiveRuns(FakeLogs({2: hang}), on_notice=list[str]().append, late_s=0.01)
    with _hanging(hang, runs):
        seen = []
        for _ in range(3):
            seen.append([sample.value for sample, _ in runs.fresh()])
            time.sleep(0.02)
        assert seen == [[1.0]] * 3
        assert threading.active_count() < 20


def test_a_scrape_that_looks_itself_shows_what_is_true_now() -> None:
    clock = FakeClock()
    with closing(_runs(FakeLogs(), clock)) as runs:
        assert [runs.fresh()[0][0].value for _ in range(3)] == [1.0, 2.0, 3.0]


def test_a_look_that_fails_shows_nothing_and_the_next_one_may_succeed() -> None:
    clock, notices = FakeClock(), list[str]()
    with closing(_runs(FakeLogs({2: lose_its_way}), clock, notices)) as runs:
        _look(runs, 1.0)
        clock.pass_s(1)
        runs.ask()
        wait_until(lambda: _values(runs, agent.AGENT_COLLECTOR) == [(1, {"collector": "runs", "state": "failed"})])
        assert (_steps(runs), _values(runs, agent.AGENT_AGE_SECONDS)) == ([], [])
        clock.pass_s(1)
        _look(runs, 3.0)
    assert notices == ["runs: lost my way; none is shown until a later read succeeds"]


def test_whoever_listens_is_told_what_a_look_found_and_nothing_of_one_that_failed() -> None:
    clock, told = FakeClock(), list[float]()
    runs = LiveRuns(
        FakeLogs({2: lose_its_way}),
        on_notice=lambda text: None,
        on_look=lambda samples: told.extend(sample.value for sample, _ in samples),
        clock_ns=clock,
    )
    with closing(runs):
        for _ in range(3):
            runs.fresh()
    assert told == [1.0, 3.0]
