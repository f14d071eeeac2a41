"""A session opens what a command that measures needs once, and measures blocks of cases on one engine after another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.errors import CASE_FAILED, FINE, INFRASTRUCTURE, INTERRUPTED, InfrastructureFailed
from bench.session.measure import CaseOrder, CasePlace, TrialSettings
from bench.session.persist import PersistedRuns
from bench.session.session import exit_code
from bench.store.history import History
from tests.bench.made.examples import make_machine
from tests.bench.made.fake_engine import FakeEngine
from tests.bench.made.fake_runs import CAUSE, DDP, DDP_STEPS_S, SINGLE, SINGLE_STEPS_S, measure_fake
from tests.bench.made.fake_suites import LOST_AGENT, FakeNight

SETTINGS = TrialSettings(limit_s=60)
ORDER = CaseOrder(case=DDP, settings=SETTINGS)


def test_blocks_share_an_engine_until_it_fails(tmp_path: Path) -> None:
    night = FakeNight(tmp_path, breaks=[{}, {("ddp", 0): LOST_AGENT}])
    with night.session() as session:
        for _ in range(2):
            session.measure([ORDER]).close()
        assert len(night.engines) == 1
        session.stop_engine()
        assert night.engines[0].is_stopped
        with session.measure([ORDER]) as measured:
            assert measured.lost_engine
        assert night.engines[1].is_stopped
        session.measure([ORDER]).close()
    assert len(night.engines) == 3


def test_an_engine_that_does_not_come_is_opened_again_as_often_as_allowed(tmp_path: Path) -> None:
    night = FakeNight(tmp_path)

    class UnconnectedEngine(FakeEngine):
        def machine(self) -> None:  # type: ignore[override]
            raise InfrastructureFailed("no contact for 60 s")

    engines = [UnconnectedEngine(make_machine(), {}) for _ in range(2)]
    waiting = list(engines)
    with night.session(lambda: waiting.pop(0) if waiting else night.open_engine()) as session:
        with pytest.raises(InfrastructureFailed, match="no contact"):
            session.machine()
        assert session.machine(attempts=2) == make_machine()
    assert all(engine.is_stopped for engine in engines)
    assert night.display.lines == ["no contact for 60 s; another attempt begins"]


def test_a_run_is_stored_with_the_machine_of_its_own_place(tmp_path: Path) -> None:
    """Ranks of another source tree report its commit, and are no baseline of this program's."""
    night = FakeNight(tmp_path)
    night.runs.mkdir()
    old = replace(make_machine(), commit="old")
    place = CasePlace(engine=FakeEngine(old, {"single": SINGLE_STEPS_S}, runs=night.runs), machine=old)
    with night.session() as session:
        with session.measure([CaseOrder(case=SINGLE, settings=SETTINGS, place=place), ORDER]) as measured:
            single, ddp = session.keep(measured).summaries
        history = session.store.history
        assert history is not None
        machines = [history.machine(summary.run) for summary in (single, ddp)]
    assert [None if machine is None else machine.commit for machine in machines] == ["old", make_machine().commit]
    assert not any(efficiency.is_beside for efficiency in ddp.scaling)


def test_the_history_has_what_a_block_measured(tmp_path: Path) -> None:
    night = FakeNight(tmp_path)
    with night.session() as session, session.measure([ORDER]) as measured:
        block = session.keep(measured)
    with History(night.url) as history:
        assert history.names(9) == tuple(summary.run for summary in block.summaries)
    assert (block.failures, block.is_interrupted, block.lost_engine) == ((), False, False)


def test_the_exit_code_names_the_interruption_before_the_infrastructure_before_a_case(tmp_path: Path) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S}, {("ddp", 1): CAUSE})
    (failed,) = measure_fake(tmp_path, engine, DDP).summaries
    fine = PersistedRuns(summaries=(), failures=())
    case = PersistedRuns(summaries=(failed,), failures=())
    unstored = PersistedRuns(summaries=(), failures=(InfrastructureFailed("the disk is full"),))
    interrupted = PersistedRuns(summaries=(), failures=(), is_interrupted=True)
    assert exit_code([fine]) == FINE
    assert exit_code([fine, case]) == CASE_FAILED
    assert exit_code([case, unstored]) == INFRASTRUCTURE
    assert exit_code([case, unstored, interrupted]) == INTERRUPTED
