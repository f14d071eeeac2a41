"""Cases that the gate suspects are measured once more on the same night, and the suite run stays as it ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.case import why_ad_hoc
from bench.engines.cluster import ClusterEngine
from bench.engines.trial_parts import ReadyNode
from bench.errors import InfrastructureFailed
from bench.store.history import History
from bench.store.summary import Summary
from bench.suite.folder import begin
from bench.suite.ledger import LEDGER, Reran, read_ledger
from bench.suite.reruns import Reruns
from bench.suite.results import read_result, result_of_record
from tests.bench.made.fake_suites import LOST_AGENT, FakeNight, plan_of, planned


def _night(tmp_path: Path, suspected: dict[str, bool], **changes: object) -> FakeNight:
    return FakeNight(tmp_path, suspects=lambda history, suite, suite_run: suspected, **changes)  # type: ignore[arg-type]


def _members(night: FakeNight) -> list[tuple[str, bool, int]]:
    """The case, whether it is a rerun, and the trials of each run that is kept, oldest first."""
    found = []
    for summary in sorted(night.stored(), key=lambda one: one.started_ns):
        member = summary.purpose.member
        assert member is not None
        found.append((member.case, member.is_rerun, summary.trials_done))
    return found


def _folder(night: FakeNight) -> Path:
    (folder,) = (night.runs / "suites").iterdir()
    return folder


def _reruns(night: FakeNight) -> list[Summary]:
    return [one for one in night.stored() if one.purpose.member is not None and one.purpose.member.is_rerun]


def test_a_suspected_case_is_measured_once_more(tmp_path: Path) -> None:
    night = _night(tmp_path, {"ddp": False})
    end = night.run(plan_of(planned("ddp"), planned("fsdp")))
    assert end.outcome == "done"
    assert _members(night) == [("ddp", False, 3), ("fsdp", False, 3), ("ddp", True, 3)]
    assert "ddp: the gate suspects a change; 3 more trials are measured" in night.display.lines
    assert len(night.engines) == 2  # The rerun has fresh processes.


def test_without_a_suspicion_nothing_is_measured_again(tmp_path: Path) -> None:
    night = _night(tmp_path, {})
    night.run(plan_of(planned("ddp")))
    assert _members(night) == [("ddp", False, 3)]
    assert len(night.engines) == 1


def test_the_suite_run_still_shows_the_first_run_of_the_case(tmp_path: Path) -> None:
    night = _night(tmp_path, {"ddp": False})
    night.run(plan_of(planned("ddp")))
    (again,) = _reruns(night)
    (case,) = read_result(_folder(night)).cases
    assert case.run != again.run
    records = read_ledger(_folder(night) / LEDGER).records
    assert [(one.case, one.run, one.outcome) for one in records if isinstance(one, Reran)] == [
        ("ddp", again.run, "done")
    ]
    with History(night.url) as history:
        (record,) = history.suite_runs(1)
        (case,) = result_of_record(record, history.runs(9, suite_run=record.id)).cases
    assert case.run != again.run


def test_a_rerun_is_never_the_newest_result_of_its_series(tmp_path: Path) -> None:
    night = _night(tmp_path, {"ddp": False})
    night.run(plan_of(planned("ddp")))
    (again,) = _reruns(night)
    assert why_ad_hoc(again.case, again.purpose) == ("the gate ordered it, to separate a change from chance",)


def test_the_baseline_of_a_suspected_efficiency_is_measured_again_beside_it(tmp_path: Path) -> None:
    night = _night(tmp_path, {"ddp": True})
    cases = planned("single", block="one"), planned("ddp", block="one", baseline="single")
    night.run(plan_of(*cases))
    assert [one for one in _members(night) if one[1]] == [("single", True, 3), ("ddp", True, 3)]
    (again,) = [one for one in _reruns(night) if one.case.strategy == "ddp"]
    assert [found.baseline for found in again.scaling] == ["beside"]


def test_a_budget_that_is_spent_leaves_the_rerun_out_and_says_so(tmp_path: Path) -> None:
    night = _night(tmp_path, {"ddp": False}, trial_s=10.0)
    end = night.run(plan_of(planned("ddp", estimate_s=30.0)), budget_s=40.0)
    assert end.outcome == "done"
    assert _reruns(night) == []
    assert "ddp is not measured again: the budget leaves 10 s" in night.display.lines


ERRORS = [LOST_AGENT, InfrastructureFailed("no node is left")]


@pytest.mark.parametrize("error", ERRORS)
def test_a_failure_costs_a_rerun_one_more_attempt_with_fresh_processes(
    tmp_path: Path, error: InfrastructureFailed
) -> None:
    night = _night(tmp_path, {"ddp": False, "fsdp": False}, breaks=[{}, {("ddp", 0): error}])
    end = night.run(plan_of(planned("ddp"), planned("fsdp")))
    assert (end.outcome, end.failure) == ("done", None)
    again = [(one.case.strategy, one.outcome) for one in _reruns(night)]
    assert sorted(again) == [("ddp", "done"), ("ddp", "failed"), ("fsdp", "done")]
    assert len(night.engines) == 3
    assert f"{error}; another attempt begins" in night.display.lines


@pytest.mark.parametrize("error", ERRORS)
def test_a_second_failure_ends_the_reruns_and_not_the_suite_run(tmp_path: Path, error: InfrastructureFailed) -> None:
    broken = {("ddp", 0): error}
    night = _night(tmp_path, {"ddp": False}, breaks=[{}, broken, broken])
    end = night.run(plan_of(planned("ddp")))
    assert end.outcome == "done"
    assert end.failure is None
    assert read_result(_folder(night)).outcome == "done"
    assert end.reruns.failure == f"the reruns ended: {error}"


def test_ctrl_c_in_a_rerun_interrupts_and_keeps_what_is_measured(tmp_path: Path) -> None:
    night = _night(tmp_path, {"ddp": False}, breaks=[{}, {("ddp", 1): KeyboardInterrupt()}])
    end = night.run(plan_of(planned("ddp")))
    assert end.is_interrupted
    assert _members(night)[0] == ("ddp", False, 3)


def test_a_case_that_the_plan_does_not_have_is_not_measured(tmp_path: Path) -> None:
    night = _night(tmp_path, {"gone": False})
    night.run(plan_of(planned("ddp")))
    assert _reruns(night) == []


class FakeCluster(ClusterEngine):
    """An engine of so many nodes, which only notes what it is told."""

    def __init__(self, count: int, failure: InfrastructureFailed | None = None) -> None:
        self.dropped: list[str] = []
        self.is_stopped = False
        self._failure = failure
        self._nodes = tuple(
            ReadyNode(number=number, name=f"n{number}", link=None, ready=None)  # type: ignore[arg-type]
            for number in range(count)
        )

    def nodes(self) -> tuple[ReadyNode, ...]:
        """All nodes, unless their agents do not come."""
        if self._failure is not None:
            raise self._failure
        return self._nodes

    def drop(self, names: Iterable[str]) -> None:
        """Note the names."""
        self.dropped += names

    def stop(self) -> None:
        """Note it."""
        self.is_stopped = True


@pytest.mark.parametrize(("nodes", "dropped"), [(4, ["n0", "n1"]), (3, [])], ids=["others are there", "too few others"])
def test_a_rerun_takes_other_nodes_where_there_are_enough(tmp_path: Path, nodes: int, dropped: list[str]) -> None:
    engine = FakeCluster(nodes)
    with _reruns_on(tmp_path, engine) as reruns:
        assert reruns.separate(nodes=2) is engine
    assert engine.dropped == dropped


def test_an_engine_whose_agents_do_not_come_is_stopped_before_another_attempt(tmp_path: Path) -> None:
    engine = FakeCluster(2, InfrastructureFailed("the agent of n1 has not connected: no contact for 60 s"))
    with _reruns_on(tmp_path, engine) as reruns:
        end = reruns.run(lambda history, suite, suite_run: {"ddp": False}, left_s=None)
    assert end.failure == "the reruns ended: the agent of n1 has not connected: no contact for 60 s"
    assert engine.is_stopped


@contextmanager
def _reruns_on(tmp_path: Path, engine: FakeCluster) -> Iterator[Reruns]:
    night = _night(tmp_path, {})
    plan = plan_of(planned("ddp"))
    with night.session(lambda: engine) as session, begin(plan.suite, night.runs) as ledger:
        yield Reruns(
            plan=plan,
            ledger=ledger,
            session=session,
            order_of=lambda planned: pytest.fail("nothing is measured"),
            watch=lambda: None,
        )
