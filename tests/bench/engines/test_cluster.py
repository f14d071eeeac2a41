"""An engine of several nodes, which are agents of this machine: what is placed where, collected, and told of faults."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import psutil
import pytest

from bench.case import Case
from bench.engines.agent_link import AgentLink, StartLimit
from bench.engines.cluster import ClusterEngine, Meeting, NodeRequest, _unlike_others
from bench.engines.local import LocalAllocation, LocalNodes
from bench.engines.trial_parts import Parts, ReadyNode, spread
from bench.engines.wire.channel import ChannelThreads, Heartbeat
from bench.engines.wire.frames import SignedWire, SocketStream, meet, new_key
from bench.engines.wire.run_files import LogSizes
from bench.errors import InfrastructureFailed, Misuse
from bench.machine.machine import Machine
from bench.rank.fault_injection import Fault
from bench.rank.messages import EndTrial, Ready, ToAgent, TrialEnded, TrialOrder, TrialProgress
from bench.results.trials import read_trials
from tests.bench.made.examples import make_machine, small_case
from tests.collectors.files_and_sockets.simulated_disk import SimulatedDisk

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    ("ranks", "nodes", "shares"),
    [(4, 2, [[0, 1], [2, 3]]), (5, 2, [[0, 1, 2], [3, 4]]), (2, 2, [[0], [1]]), (3, 1, [[0, 1, 2]])],
)
def test_ranks_are_spread_evenly_and_in_their_order(ranks: int, nodes: int, shares: list[list[int]]) -> None:
    assert [list(share) for share in spread(ranks, nodes)] == shares


class RecordedStarts(StartLimit):
    """Keeps what it learns."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[float] = []

    def took(self, elapsed_s: float) -> None:
        """Keep it."""
        super().took(elapsed_s)
        self.taken.append(elapsed_s)


class Silent(LocalNodes):
    """No agent is started, and nothing says why."""

    def start(self, meeting: Meeting) -> None:
        """Start none."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterEngine]:
    """Two nodes."""
    with ClusterEngine(LocalNodes(2), tmp_path_factory.mktemp("runs"), start_limit=RecordedStarts()) as engine:
        engine.machine()
        yield engine


def _run(engine: ClusterEngine, run: str, case: Case, fault: Fault | None = None) -> tuple[TrialEnded, list[int]]:
    (engine.runs / run).mkdir()
    steps: list[int] = []

    def see(progress: TrialProgress) -> None:
        steps.append(progress.steps)

    return engine.run(TrialOrder(run=run, trial=0, case=case, limit_s=60.0, fault=fault), see), steps


def test_the_files_of_all_nodes_come_together(engine: ClusterEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk(monkeypatch)
    case = small_case(ranks=4, steps=4, nodes=2)
    ended, steps = _run(engine, "four", case)
    assert ended == TrialEnded(run="four", trial=0, outcome="done")
    assert steps == sorted(set(steps))
    assert engine.collect("four") == ("ranks were 0-1 on node 0, 2-3 on node 1",)
    assert not disk.unsynced
    logs = sorted((engine.runs / "four").glob("rank*.jsonl"))
    assert [disk.after_power_loss(log) for log in logs] == [log.read_bytes() for log in logs]
    placement = json.loads((engine.runs / "four/placement.json").read_bytes())
    assert [(node["name"], node["first_rank"], node["ranks"]) for node in placement["nodes"]] == [
        ("node 0", 0, 2),
        ("node 1", 2, 2),
    ]
    names = {path.name for path in (engine.runs / "four").glob("*.jsonl")}
    assert names == {*(f"rank{rank}.jsonl" for rank in range(4)), "node0.jsonl", "node1.jsonl"}
    (trial,) = read_trials(engine.runs / "four", 4).trials
    assert trial.step_s > 0


def test_the_start_limit_learns_how_long_agents_took_to_come_and_each_to_load(engine: ClusterEngine) -> None:
    assert isinstance(engine._start_limit, RecordedStarts)
    assert len(engine._start_limit.taken) == 3
    assert min(engine._start_limit.taken) > 0


def test_agents_that_do_not_come_are_given_up_after_what_starts_usually_take(tmp_path: Path) -> None:
    class FakeStarts(StartLimit):
        @property
        def seconds(self) -> float:
            return 0.0

    with (
        ClusterEngine(Silent(2), tmp_path, start_limit=FakeStarts()) as engine,
        pytest.raises(InfrastructureFailed, match="has not connected: no contact for 0 s"),
    ):
        engine.machine()


def test_engines_of_one_allocation_have_one_start_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalNodes, "start", Silent.start)
    with LocalAllocation(NodeRequest(nodes=2)) as allocation:
        limits = []
        for _ in range(2):
            with allocation.open(tmp_path) as engine:
                assert isinstance(engine, ClusterEngine)
                limits.append(engine._start_limit)
    assert limits[0] is limits[1]


def test_a_case_of_one_rank_is_the_first_node_s(engine: ClusterEngine) -> None:
    ended, _ = _run(engine, "one", small_case("single", 1))
    assert ended.outcome == "done"
    assert engine.collect("one") == ()
    assert {path.name for path in (engine.runs / "one").glob("node*.jsonl")} == {"node0.jsonl"}


def test_the_root_cause_is_found_among_the_ranks_of_all_nodes(engine: ClusterEngine) -> None:
    ended, _ = _run(engine, "killed", small_case(ranks=4, nodes=2), Fault(kind="kill", rank=3, step=2))
    assert ended.outcome == "failed"
    assert ended.cause is not None
    assert (ended.cause.kind, ended.cause.rank, ended.cause.step) == ("killed", 3, 2)
    assert str(engine.runs / "killed/rank3.err") in ended.cause.text
    assert engine.collect("killed") == ("ranks were 0-1 on node 0, 2-3 on node 1",)
    assert (engine.runs / "killed/rank3.err").is_file()
    assert _run(engine, "afterwards", small_case(ranks=2))[0].outcome == "done"


def test_each_node_tells_its_state_and_a_clock_that_is_the_runner_s(engine: ClusterEngine) -> None:
    for check in engine.check():
        assert abs(check.offset_s) <= check.offset_error_s + 0.01  # They are one machine; messages may take turns.
        assert check.now.memory_bytes > 0
        assert check.now.disk_bytes is not None
    assert _run(engine, "after-the-check", small_case(ranks=2, nodes=2))[0].outcome == "done"


@pytest.mark.slow
def test_a_node_that_is_dropped_gets_no_rank_and_its_agent_ends(tmp_path: Path) -> None:
    with ClusterEngine(LocalNodes(2), tmp_path) as engine:
        engine.drop({"node 0"})
        (left,) = engine.nodes()
        assert left.number == 1
        assert engine.machine().nodes_here == 1
        assert _run(engine, "alone", small_case(ranks=2))[0].outcome == "done"
        assert engine.collect("alone") == ()
        assert {path.name for path in (tmp_path / "alone").glob("node*.jsonl")} == {"node1.jsonl"}
        with pytest.raises(Misuse, match=r"needs more nodes than this engine has \(1\)"):
            _run(engine, "both", small_case(ranks=2, nodes=2))


@pytest.mark.slow
def test_a_node_whose_agent_dies_is_named_and_leaves_no_process(tmp_path: Path) -> None:
    before = set(psutil.Process().children(recursive=True))
    with ClusterEngine(LocalNodes(2), tmp_path) as engine:
        engine.machine()
        family = [one for one in psutil.Process().children(recursive=True) if one not in before]
        agents = [one for one in family if "bench.engines.node.agent" in one.cmdline()]
        (last,) = (one for one in agents if one.cmdline()[-1] == "1")

        def strike(progress: TrialProgress) -> None:
            if progress.steps > 2 and last.is_running():
                last.kill()

        (tmp_path / "r").mkdir()
        order = TrialOrder(run="r", trial=0, case=small_case(ranks=2, steps=10_000_000, nodes=2), limit_s=200.0)
        with pytest.raises(InfrastructureFailed, match="the agent of node 1 ended: "):
            engine.run(order, strike)
    _, left = psutil.wait_procs(family, timeout=10)
    assert [one for one in left if one.status() != psutil.STATUS_ZOMBIE] == []


def test_a_case_of_more_nodes_than_there_are_is_refused(engine: ClusterEngine) -> None:
    with pytest.raises(Misuse, match=r"ddp on 4 over 3 nodes needs more nodes than this engine has \(2\)"):
        _run(engine, "three", small_case(ranks=4, nodes=3))


def test_nodes_that_are_one_machine_are_other_hardware_than_it(engine: ClusterEngine) -> None:
    machine = engine.machine()
    assert machine.nodes_here == 2
    assert machine.hardware("cpu") == f"{replace(machine, nodes_here=1).hardware('cpu')}, as 2 nodes"


def test_each_further_node_has_a_file_on_its_machine_and_a_line_on_what_differs(
    engine: ClusterEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = engine.nodes()
    other = msgspec.structs.replace(second.ready, machine=replace(second.ready.machine, torch_version="2.0", cpu="old"))
    monkeypatch.setattr(engine, "_nodes", (first, replace(second, ready=other)))
    assert _run(engine, "unlike", small_case(ranks=2, nodes=2))[0].outcome == "done"
    mine = first.ready.machine
    assert engine.collect("unlike") == (
        "ranks were 0 on node 0, 1 on node 1",
        f"node 1 differs from node 0: torch is 2.0 instead of {mine.torch_version}; CPU is old instead of {mine.cpu}",
    )
    assert json.loads((engine.runs / "unlike/machine1.json").read_bytes())["torch_version"] == "2.0"


def _ready(number: int, machine: Machine) -> ReadyNode:
    link: AgentLink = None  # type: ignore[assignment]  # None is read.
    return ReadyNode(number=number, name=f"node {number}", link=link, ready=Ready(machine=machine))


def test_nodes_unlike_the_majority_are_named_once_though_the_first_is_of_them() -> None:
    usual, old = replace(make_machine(), cpu="usual"), replace(make_machine(), cpu="old")
    nodes = [_ready(number, old if number in (0, 2) else usual) for number in range(100)]
    assert list(_unlike_others(nodes)) == ["node 0, node 2 differ from node 1: CPU is old instead of usual"]
    nodes = [_ready(number, old if 50 <= number < 62 else usual) for number in range(100)]
    (line,) = _unlike_others(nodes)
    assert line.startswith(
        "node 50, node 51, node 52, node 53, node 54, node 55, node 56, node 57 and 4 more differ from"
    )


def test_more_nodes_than_the_limit_of_files_allows_are_refused(tmp_path: Path) -> None:
    script = f"""
import resource, sys
from pathlib import Path
from bench.engines.cluster import ClusterEngine
from bench.engines.local import LocalNodes
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
ClusterEngine(LocalNodes(600), Path({str(tmp_path)!r}))
"""
    ended = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, timeout=200)
    assert ended.stderr.splitlines()[-1] == (
        "bench.errors.InfrastructureFailed: a runner of 600 nodes needs 1328 open files, and the hard limit is 256;"
        " raise it (`ulimit -Hn`, or LimitNOFILE of the service), or use fewer nodes"
    )


@pytest.mark.parametrize(
    ("left_s", "said"),
    [
        (62.0, "the allocation ends in 62 s, too soon for another trial"),
        (67.0, "the allocation had 7 s left for the trial, which did"),
    ],
)
def test_a_trial_ends_before_the_nodes_are_taken_back(
    left_s: float, said: str, engine: ClusterEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalNodes, "left_s", lambda _: left_s)
    run = f"ending-{left_s:.0f}"
    with pytest.raises(InfrastructureFailed, match=said):
        _run(engine, run, small_case(ranks=2, nodes=2, steps=10_000_000, options={"loader_delay_ms": 50.0}))
    engine.collect(run)


class Foreign(LocalNodes):
    """Its agents say that they are of other nodes."""

    def start(self, meeting: Meeting) -> None:
        """Start them with other numbers."""
        super().start(Elsewhere(host=meeting.host, port=meeting.port, key_file=meeting.key_file))


class Elsewhere(Meeting):
    """Numbers that no node has."""

    def words(self, node: int) -> list[str]:
        """See `Meeting`."""
        return super().words(node + 5)


def test_an_agent_of_a_node_that_the_engine_has_not_is_refused(tmp_path: Path) -> None:
    with (
        ClusterEngine(Foreign(1), tmp_path) as engine,
        pytest.raises(InfrastructureFailed, match="an agent claims to run on node 5, which this engine does not have"),
    ):
        engine.machine()


class Absent(Silent):
    """The placement knows why its agents do not come."""

    def failure(self) -> str | None:
        """Say so."""
        return "the partition is down"


class OneIsAnother(LocalNodes):
    """Its second agent ends at once, as one of another version would, which is told when `is_time` says so."""

    is_time: Callable[[], bool] = staticmethod(lambda: True)

    def start(self, meeting: Meeting) -> None:
        """Start the second one with words that it does not know."""
        super().start(OneUnknown(host=meeting.host, port=meeting.port, key_file=meeting.key_file))

    def failure(self) -> str | None:
        """Tell of the second one."""
        return super().failure() if self._agents[1].wait() and self.is_time() else None


class OneUnknown(Meeting):
    """The second node's words are none of an agent's."""

    def words(self, node: int) -> list[str]:
        """See `Meeting`."""
        return [*super().words(node), *(["--of-a-newer-version"] if node == 1 else [])]


@pytest.mark.slow
def test_a_node_whose_agent_does_not_come_is_left_out_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placement = OneIsAnother(2)
    with ClusterEngine(placement, tmp_path) as engine, monkeypatch.context() as patch:
        patch.setattr("bench.engines.cluster.LATE_S", 0.0)
        placement.is_time = lambda: 0 in engine._links
        missing = engine.drop_missing()
        assert set(missing) == {"node 1"}
        assert missing["node 1"].startswith("its agent has not connected: it ended with code 2; its last line: ")
        assert "--of-a-newer-version" in missing["node 1"]
        assert [node.name for node in engine.nodes()] == ["node 0"]
    with ClusterEngine(OneIsAnother(2), tmp_path, dropped=["node 1"]) as engine:
        assert [node.name for node in engine.nodes()] == ["node 0"]


def test_an_agent_that_does_not_come_is_told_with_the_reason(tmp_path: Path) -> None:
    with (
        ClusterEngine(Absent(2), tmp_path) as engine,
        pytest.raises(
            InfrastructureFailed, match="the agent of node 0, node 1 has not connected: the partition is down"
        ),
    ):
        engine.machine()


@contextmanager
def _linked(folder: Path, count: int, silent_s: float) -> Iterator[tuple[list[ReadyNode], list[SignedWire]]]:
    """So many nodes whose agents are wires of this test."""
    key, threads = new_key(), ChannelThreads()
    with ExitStack() as stack:
        stack.callback(threads.close, 60.0)
        nodes, agents = [], []
        for number in range(count):
            ours, theirs = socket.socketpair()
            stack.enter_context(theirs)
            link = AgentLink(
                SocketStream(ours),
                partial(meet, key=key, side="runner"),
                log_sizes=LogSizes(folder),
                name=f"the agent of node {number}",
                silent_s=silent_s,
                threads=threads,
            )
            agents.append(meet(SocketStream(theirs), key, "agent", node=number))
            nodes.append(
                ReadyNode(number=number, name=f"node {number}", link=link, ready=Ready(machine=make_machine()))
            )
            stack.callback(link.join, 60.0)
            stack.callback(theirs.shutdown, socket.SHUT_RDWR)
        yield nodes, agents


def _orders(count: int, limit_s: float) -> list[TrialOrder]:
    case = small_case(ranks=count, nodes=count)
    return [TrialOrder(run="r", trial=0, case=case, limit_s=limit_s, first_rank=rank) for rank in range(count)]


def _say(agent: SignedWire, *messages: msgspec.Struct) -> None:
    for message in messages:
        agent.send(msgspec.json.encode(message))


def test_progress_is_that_of_the_slowest_node_and_reported_when_it_changes(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    reported: list[int] = []
    with _linked(tmp_path, 3, 60.0) as (nodes, agents):
        for number, agent in enumerate(agents):
            for steps in (1, 2, 3 + number):
                _say(agent, TrialProgress(run="r", trial=0, steps=steps))
            _say(agent, TrialEnded(run="r", trial=0, outcome="done"))
        ended = Parts(nodes, _orders(3, 60.0)).run(lambda progress: reported.append(progress.steps))
    assert [ended[place].outcome for place in range(3)] == ["done"] * 3
    assert reported == sorted(set(reported))
    assert reported[-1] == 3


def test_an_agent_that_never_answers_is_named_when_the_others_have_ended(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    with _linked(tmp_path, 2, 0.1) as (nodes, agents):
        _say(agents[0], TrialEnded(run="r", trial=0, outcome="done"))
        with pytest.raises(InfrastructureFailed, match="the agent of node 1 did not answer in time and was ended"):
            Parts(nodes, _orders(2, 0.1)).run(lambda _: None)


@pytest.mark.slow
def test_an_agent_that_is_lost_ends_the_other_parts_which_are_waited_for(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    with _linked(tmp_path, 2, 60.0) as (nodes, agents), ThreadPoolExecutor(1) as pool:
        running = pool.submit(Parts(nodes, _orders(2, 60.0)).run, lambda _: None)
        assert isinstance(_order_to(agents[0]), TrialOrder)
        agents[1].stream.hang_up()
        assert _order_to(agents[0]) == EndTrial(run="r", trial=0)
        _say(agents[0], TrialEnded(run="r", trial=0, outcome="interrupted"))
        with pytest.raises(InfrastructureFailed, match="the agent of node 1 ended: the agent hung up"):
            running.result(60.0)


def _order_to(agent: SignedWire) -> ToAgent:
    """The next order, behind heartbeats."""
    decoder: msgspec.json.Decoder[ToAgent | Heartbeat] = msgspec.json.Decoder(ToAgent | Heartbeat)
    while isinstance(order := decoder.decode(agent.receive()), Heartbeat):
        pass
    return order
