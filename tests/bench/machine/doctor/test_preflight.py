"""The check before a suite, on two nodes that are this machine: what it measures, whom it leaves out, when it ends."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.cli import main
from bench.engines.agent_link import NodeCheck
from bench.engines.cluster import ClusterEngine, NodeRequest
from bench.engines.local import LocalAllocation, LocalNodes
from bench.engines.registry import Allocation
from bench.engines.trial_parts import ReadyNode
from bench.errors import InfrastructureFailed
from bench.machine.doctor.fleet import Fleet, FleetNode, NodeFinding
from bench.machine.doctor.fleet_check import check_fleet
from bench.machine.doctor.preflight import check_nodes
from bench.rank.messages import FailureCause, TrialEnded, TrialOrder, TrialProgress
from bench.session.patient_store import PatientStore
from bench.session.session import Session
from bench.store.history import History

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterEngine]:
    """Two nodes."""
    with ClusterEngine(LocalNodes(2), tmp_path_factory.mktemp("runs")) as engine:
        engine.nodes()
        yield engine


def test_nodes_are_measured_and_nothing_is_left_of_it(engine: ClusterEngine) -> None:
    told: list[str] = []
    fleet = check_fleet(engine, tell=told.append)
    assert told == ["pre-flight: checking and measuring 2 nodes"]
    assert {(rate.node, rate.what) for rate in fleet.rates} == {
        (node, what) for node in (0, 1) for what in ("matmul", "memory copy", "memory triad")
    }
    trials = [rate.trials for rate in fleet.rates] + [pair.trials for pair in fleet.pairs]
    assert all(len(one) == 3 and min(one) > 0 for one in trials)
    assert [pair.nodes for pair in fleet.pairs] == [(0, 1)]
    assert fleet.absent == ("speeds are not judged: nodes share a machine and take capacity from each other",)
    assert fleet.findings == ()
    assert list(engine.runs.iterdir()) == []


@pytest.mark.parametrize(("rank", "node"), [(1, 1), (None, None)])
def test_a_measurement_that_fails_is_found_against_the_node_of_its_rank(
    rank: int | None, node: int | None, engine: ClusterEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(order: TrialOrder, progress: Callable[[TrialProgress], None]) -> TrialEnded:
        if order.case.strategy != "copies":
            return ClusterEngine.run(engine, order, progress)
        where = f"its last lines are in {engine.runs}/{order.run}/rank{rank}.err"
        text = f"rank {rank} was killed by SIGSEGV in step 2; {where}"
        cause = FailureCause(kind="killed", rank=rank, step=2, text=text, last_lines=("one", "Bus error"))
        return TrialEnded(run=order.run, trial=order.trial, outcome="failed", cause=cause)

    monkeypatch.setattr(engine, "run", run)
    fleet = check_fleet(engine, tell=lambda line: None)
    assert fleet.findings == (
        NodeFinding(
            node=node, text=f"copies failed: rank {rank} was killed by SIGSEGV in step 2; it printed: Bus error"
        ),
    )
    assert fleet.bad == (() if node is None else (node,))
    assert {rate.what for rate in fleet.rates} == {"matmul"}
    assert fleet.absent[0] == "copies is absent: it failed"
    assert list(engine.runs.iterdir()) == []


def _off(engine: ClusterEngine, *numbers: int) -> tuple[NodeCheck, ...]:
    """What the nodes say, with the clocks of some an hour ahead."""
    return tuple(
        replace(check, offset_s=3600.0 if node.number in numbers else 0.0)
        for node, check in zip(engine.nodes(), ClusterEngine.check(engine), strict=True)
    )


def test_nodes_that_cannot_measure_together_are_not_measured(
    engine: ClusterEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "check", lambda: _off(engine, 1))
    fleet = check_fleet(engine, tell=lambda line: None)
    assert (fleet.rates, fleet.pairs) == ((), ())
    assert fleet.absent == ("speeds are absent: the nodes cannot measure together",)


class TwoNodes(LocalAllocation):
    """Hands out engines that are there already, so that no test waits for another."""

    def __init__(self, *engines: ClusterEngine) -> None:
        super().__init__(NodeRequest(nodes=2))
        self._engines = list(engines)

    def open(self, runs: Path, dropped: Collection[str] = ()) -> ClusterEngine:
        return self._engines.pop(0)


class FakeCheck:
    """In place of `check_fleet`: finds what it was told."""

    def __init__(self, *findings: NodeFinding) -> None:
        self._findings = findings

    def __call__(self, engine: ClusterEngine, **more: object) -> Fleet:
        fleet = check_fleet_of(engine)
        return replace(fleet, findings=self._findings)


def check_fleet_of(engine: ClusterEngine) -> Fleet:
    """The nodes as they are, unmeasured."""
    nodes = tuple(
        FleetNode(number=node.number, name=node.name, machine=node.ready.machine, check=check)
        for node, check in zip(engine.nodes(), engine.check(), strict=True)
    )
    return Fleet(engine="local", time_ns=1, nodes=nodes)


def _session(allocation: Allocation, runs: Path, lines: list[str]) -> Session:
    """A session whose history nobody asks."""
    store = PatientStore(History(f"sqlite:///{runs / 'history.sqlite'}"), runs=runs, url=None, tell=lines.append)
    return Session(runs=runs, store_url=None, store=store, allocation=allocation, tell=lines.append)


def _check(session: Session, *, is_dropping: bool) -> Fleet | None:
    return check_nodes(session, {}, ranks_per_node=None, is_dropping=is_dropping)


FATAL = NodeFinding(node=1, text="its torch is 2.0, but 2.13.0 on 1 other node", is_fatal=True)
SLOW = NodeFinding(node=1, text="matmul: 8 GFLOP/s, 80 % of its peers' median 10 GFLOP/s")


def test_a_bad_node_is_told_and_stays_unless_it_is_to_be_left_out(
    engine: ClusterEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.machine.doctor.preflight.check_fleet", FakeCheck(SLOW))
    lines: list[str] = []
    session = _session(TwoNodes(engine, engine), engine.runs, lines)
    assert _check(session, is_dropping=False) is not None
    assert lines == [f"pre-flight: node 1 is bad: {SLOW.text}"]
    assert not session.dropped
    assert session.engine() is engine
    assert len(engine.nodes()) == 2


def test_what_makes_all_figures_worthless_ends_the_suite(
    engine: ClusterEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.machine.doctor.preflight.check_fleet", FakeCheck(FATAL))
    with pytest.raises(InfrastructureFailed, match=r"^pre-flight: node 1: no measurement is possible .* --drop-bad$"):
        _check(_session(TwoNodes(engine), engine.runs, []), is_dropping=False)


@pytest.mark.slow
def test_a_node_that_is_left_out_is_so_in_each_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("bench.machine.doctor.preflight.check_fleet", FakeCheck(FATAL))
    lines: list[str] = []
    session = _session(LocalAllocation(NodeRequest(nodes=2)), tmp_path, lines)
    _check(session, is_dropping=True)
    assert lines[-1] == "pre-flight: continuing without node 1"
    assert session.dropped == {"node 1"}
    for _ in range(2):
        engine = session.engine()
        assert isinstance(engine, ClusterEngine)
        assert [node.number for node in engine.nodes()] == [0]
        session.stop_engine()


class FakeEngine(ClusterEngine):
    """Two nodes of three, whose third has no agent; what is left out of it stays."""

    def __init__(self, engine: ClusterEngine) -> None:
        self._engine, self.runs = engine, engine.runs
        self.dropped: list[str] = []

    def nodes(self) -> tuple[ReadyNode, ...]:
        return self._engine.nodes()

    def check(self) -> tuple[NodeCheck, ...]:
        return self._engine.check()

    def drop_missing(self) -> dict[str, str]:
        return {"node 2": "its agent has not connected: another version"}

    def drop(self, names: Iterable[str]) -> None:
        self.dropped += names

    def stop(self) -> None:
        pass


class Handing(LocalAllocation):
    """Hands out one engine again and again, and keeps which nodes it was to leave out."""

    def __init__(self, engine: ClusterEngine) -> None:
        super().__init__(NodeRequest(nodes=3))
        self.engine = engine
        self.dropped: list[Collection[str]] = []

    def open(self, runs: Path, dropped: Collection[str] = ()) -> ClusterEngine:
        self.dropped.append(dropped)
        return self.engine


def test_a_node_without_an_agent_is_left_out_by_its_name_like_a_bad_one(
    engine: ClusterEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.machine.doctor.preflight.check_fleet", FakeCheck(SLOW))
    allocation, lines = Handing(fake := FakeEngine(engine)), list[str]()
    session = _session(allocation, engine.runs, lines)
    fleet = _check(session, is_dropping=True)
    assert lines == [
        f"pre-flight: node 1 is bad: {SLOW.text}",
        "pre-flight: node 2 is bad: its agent has not connected: another version",
        "pre-flight: continuing without node 2, node 1",
    ]
    assert fleet is not None
    assert [found.is_fatal for found in fleet.findings] == [False, True]
    assert session.dropped == {"node 1", "node 2"}
    assert sorted(fake.dropped) == ["node 1", "node 2"]
    assert session.engine() is fake
    session.stop_engine()
    assert session.engine() is fake
    assert allocation.dropped == [frozenset(), {"node 1", "node 2"}]


@pytest.mark.slow
def test_where_all_are_bad_none_is_left(engine: ClusterEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.machine.doctor.preflight.check_fleet", FakeCheck(FATAL, replace(FATAL, node=0)))
    with pytest.raises(InfrastructureFailed, match=r"all nodes are bad \(node \d, node \d\); none is left"):
        _check(_session(TwoNodes(engine), engine.runs, []), is_dropping=True)


@pytest.mark.slow
def test_the_command_prints_each_node_and_each_pair(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main.run(["doctor", "--nodes", "2", "--format", "json", "--runs", str(tmp_path)]) == 0
    captured = capfd.readouterr()
    fleet = json.loads(captured.out)
    assert [node["name"] for node in fleet["nodes"]] == ["node 0", "node 1"]
    assert len(fleet["pairs"]) == 1
    assert captured.err.splitlines() == ["pre-flight: checking and measuring 2 nodes"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_suite_tells_of_its_check_again_where_something_was_wrong(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("bench.machine.doctor.preflight.check_fleet", FakeCheck(SLOW))
    suite = tmp_path / "one.toml"
    suite.write_text(
        'schema_version = 1\n[case.copies]\ndevice = "cpu"\nranks = 2\ntrials = 1\nsteps = 1\n'
        "options = { size_bytes = 4096 }\n"
    )
    places = ["--runs", str(tmp_path / "runs"), "--store", f"sqlite:///{tmp_path}/store.sqlite"]
    code = main.run(["suite", "run", str(suite), "--nodes", "2", "--drop-bad", "--port", "0", *places])
    captured = capfd.readouterr()
    assert code == 0, captured.err
    assert "pre-flight: continuing without node 1" in captured.err
    (found,) = re.findall(r"suite one, ([\w-]+): done", captured.out)
    assert main.run(["suite", "show", found, *places]) == 0
    assert f"pre-flight: node 1 is bad: {SLOW.text}" in capfd.readouterr().out
    (run,) = (tmp_path / "runs").glob("*-copies-*")
    assert json.loads((run / "case.json").read_bytes())["case"]["nodes"] == 1
