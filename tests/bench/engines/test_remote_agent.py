"""An agent over TCP with a folder of its own: its files arrive, and neither side outlives the other."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.case import Case
from bench.engines.agent_link import AgentLink
from bench.engines.root_cause import joint_cause
from bench.engines.wire.frames import new_key, write_key
from bench.engines.wire.run_files import LogSizes
from bench.engines.wire.tcp import AgentListener
from bench.errors import InfrastructureFailed, say
from bench.rank.fault_injection import Fault
from bench.rank.messages import TrialEnded, TrialOrder, TrialProgress
from bench.results.trials import read_trials
from bench.store.active_runs import stage_of
from tests.bench.made.examples import small_case

pytestmark = pytest.mark.timeout(300)

RUN = "20261123-010203-ddp-abc123"
WITHIN_S = 100.0
GONE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """An agent that is not a child of its engine, and the link to it. folder: has `node` and `runner`, both of runs."""

    agent: subprocess.Popen[bytes]
    link: AgentLink
    folder: Path

    def run(self, run: str, case: Case, *, limit_s: float = 60.0, fault: Fault | None = None) -> TrialEnded:
        """Measure the case once."""
        (self.folder / "runner" / run).mkdir(exist_ok=True)
        order = TrialOrder(run=run, trial=0, case=case, limit_s=limit_s, fault=fault)
        return self.link.run(order, self._see)

    def _see(self, _: TrialProgress) -> None:
        """Nobody watches."""


@contextmanager
def _remote(folder: Path, *arguments: str, tell: Callable[[str], None] = say) -> Iterator[Remote]:
    key, key_file, runs = new_key(), folder / "key", folder / "node"
    write_key(key_file, key)
    (folder / "runner").mkdir()
    with closing(AgentListener("127.0.0.1", key)) as listener, (folder / "agent.err").open("wb") as errors:
        words = ["--connect", f"127.0.0.1:{listener.port}", "--key-file", str(key_file), "--runs", str(runs)]
        agent = subprocess.Popen(
            [sys.executable, "-P", "-m", "bench.engines.node.agent", "--send-files", *words, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        try:
            wire = listener.accept(WITHIN_S)
            assert wire is not None, (folder / "agent.err").read_text()
            link = AgentLink(
                wire.stream,
                lambda _: wire,
                log_sizes=LogSizes(folder / "runner"),
                name="the agent of node 0",
                kill=agent.kill,
                tell=tell,
            )
            yield Remote(agent=agent, link=link, folder=folder)
            link.hang_up(WITHIN_S)
            agent.wait(WITHIN_S)
            assert link.join(WITHIN_S)
        finally:
            agent.kill()
            agent.wait()


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    with _remote(tmp_path_factory.mktemp("remote")) as started:
        started.link.machine()
        yield started


def test_files_of_a_case_that_was_watched_arrive_whole(remote: Remote) -> None:
    node, kept = remote.folder / "node" / RUN, remote.folder / "runner" / RUN
    case = small_case(ranks=2, steps=4, trace_steps=2)
    remote.link.watch(RUN)
    assert remote.run(RUN, case).outcome == "done"
    assert stage_of(node) == "running"  # As the node's exporter sees it, until the case has ended here.
    assert remote.link.collect(RUN) == ()
    names = {
        "rank0.jsonl",
        "rank1.jsonl",
        "node0.jsonl",
        "rank0.timeline.npz",
        "trial0/rank1.timeline.npz",
        "rank1.err",
    }
    assert names <= {path.relative_to(kept).as_posix() for path in kept.rglob("*")}
    for path in kept.rglob("*.*"):
        assert path.read_bytes() == (node / path.relative_to(kept)).read_bytes(), path
    (measured,) = read_trials(kept, case.ranks).trials
    assert measured.step_s > 0


@pytest.mark.slow
def test_an_agent_of_another_machine_reports_limits_of_its_node_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NCCL_IB_HCA", "nosuch0")
    with _remote(tmp_path, "--host", "127.0.0.2") as started:
        started.link.machine()
        for run in ("first", "second"):
            assert started.run(run, small_case("single", 1)).outcome == "done"
    said = [line for line in capsys.readouterr().err.splitlines() if "NCCL_IB_HCA" in line]
    assert len(said) == 1
    assert said[0].startswith(
        "the agent of node 0: NCCL_IB_HCA: nosuch0, but needed: a device for nosuch0 (/sys/class/"
    )


@pytest.mark.slow
def test_a_message_that_takes_a_runner_long_is_no_silence_of_its_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_IB_HCA", "nosuch0")
    notices: list[str] = []

    def tell(notice: str) -> None:
        notices.append(notice)
        time.sleep(12.0)  # An agent that sends nothing for 7 s is given up.

    with _remote(tmp_path, "--host", "127.0.0.2", tell=tell) as started:
        started.link.machine()
        assert started.run("run", small_case("single", 1)).outcome == "done"
    assert len(notices) == 1


def test_a_cause_names_files_as_the_runner_finds_them(remote: Remote) -> None:
    ended = remote.run("fault", small_case(ranks=2), fault=Fault(kind="kill", rank=1, step=2))
    assert ended.cause is not None
    assert ended.cause.text.endswith("its last lines are in fault/rank1.err")
    assert remote.link.collect("fault") == ()
    assert (remote.folder / "runner/fault/rank1.err").is_file()


def test_a_trial_can_be_ended_and_the_next_one_runs(remote: Remote) -> None:
    endless = small_case(ranks=2, steps=10_000_000, options={"loader_delay_ms": 50.0})
    (remote.folder / "runner/endless").mkdir()
    order = TrialOrder(run="endless", trial=0, case=endless, limit_s=200.0)
    ended = remote.link.run(order, lambda progress: remote.link.end_trial("endless", 0))
    assert ended.outcome == "interrupted"
    assert remote.run("afterwards", small_case(ranks=1)).outcome == "done"


def _family(process: subprocess.Popen[Any]) -> list[psutil.Process]:
    itself = psutil.Process(process.pid)
    return [itself, *itself.children(recursive=True)]


def _left(family: Sequence[psutil.Process]) -> list[psutil.Process]:
    _, alive = psutil.wait_procs(family, timeout=GONE_S)
    return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_agent_that_is_killed_or_stopped_is_found_and_leaves_no_process(
    number: signal.Signals, tmp_path: Path
) -> None:
    with _remote(tmp_path) as remote:
        remote.link.machine()
        family: list[psutil.Process] = []

        def strike(progress: TrialProgress) -> None:
            if not family and progress.steps > 2:
                family.extend(_family(remote.agent))
                remote.agent.send_signal(number)

        order = TrialOrder(run=RUN, trial=0, case=small_case(ranks=2, steps=10_000_000), limit_s=200.0)
        reason = {signal.SIGKILL: "the agent of node 0 ended: ", signal.SIGSTOP: "no message for 7 s"}[number]
        with pytest.raises(InfrastructureFailed, match=reason):
            remote.link.run(order, strike)
        assert _left(family) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wire", "number"),
    [("pipe", signal.SIGSTOP), ("TCP", signal.SIGSTOP), ("TCP", signal.SIGKILL)],  # The fourth: test_runner_ends.py.
)
def test_an_agent_whose_runner_is_stopped_or_killed_leaves_no_process(
    wire: str, number: signal.Signals, tmp_path: Path
) -> None:
    """The runner is a process of its own; one that goes on after a stop finds the trial interrupted."""
    script = tmp_path / "runner.py"
    script.write_text({"pipe": LOCAL, "TCP": REMOTE}[wire])
    words = [sys.executable, "-P", str(script), str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as runner:
        try:
            assert runner.stdout is not None
            assert runner.stdout.readline() == "running\n"
            _, *family = _family(runner)
            assert len(family) >= 4, "agent, forkserver and two ranks"
            runner.send_signal(number)
            assert _left(family) == []
            if number == signal.SIGSTOP:
                runner.send_signal(signal.SIGCONT)
                said = runner.stdout.readline()
                assert said.startswith("interrupted the agent ended it: the connection to the runner ended: no message")
        finally:
            runner.kill()


_RUN = """
import subprocess, sys
from pathlib import Path
from bench.rank.messages import TrialOrder
from tests.bench.made.examples import small_case

folder = Path(sys.argv[1])
(folder / "r").mkdir()
said = []

def run(engine):
    engine.machine()
    def see(progress):
        if not said:
            said.append(print("running", flush=True))
    order = TrialOrder(run="r", trial=0, case=small_case(ranks=2, steps=10_000_000), limit_s=200.0)
    ended = engine.run(order, see)
    print(ended.outcome, ended.cause.text, flush=True)
"""
LOCAL = f"""{_RUN}
from bench.engines.local import LocalEngine
with LocalEngine(folder) as engine:
    run(engine)
"""
REMOTE = f"""{_RUN}
from bench.engines.agent_link import AgentLink
from bench.engines.root_cause import joint_cause
from bench.engines.wire.tcp import AgentListener
from bench.engines.wire.frames import new_key, write_key
from bench.engines.wire.run_files import LogSizes
key = new_key()
write_key(folder / "key", key)
listener = AgentListener("127.0.0.1", key)
words = ["--connect", f"127.0.0.1:{{listener.port}}", "--key-file", str(folder / "key"), "--runs", str(folder)]
agent = subprocess.Popen([sys.executable, "-P", "-m", "bench.engines.node.agent", *words])
wire = listener.accept(100)
run(AgentLink(wire.stream, lambda _: wire, log_sizes=LogSizes(folder), name="the agent"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [False, True], ids=["ended", "killed"])
def test_a_nodes_exporter_lives_and_is_listed_as_long_as_its_agent(is_killed: bool, tmp_path: Path) -> None:
    targets = tmp_path / "targets"
    with _remote(tmp_path, "--exporter", "127.0.0.1:0", "--targets", str(targets)) as remote:
        remote.link.machine()
        family = _family(remote.agent)
        (address,) = _listed(targets, 1)
        assert "# HELP" in _metrics(int(address.rpartition(":")[2]))
        if is_killed:
            remote.agent.kill()
        else:
            remote.link.hang_up(WITHIN_S)
        assert _listed(targets, 0) == []
        assert _left(family) == []


@pytest.mark.slow
def test_two_agents_run_the_ranks_of_one_trial(tmp_path: Path) -> None:
    """Each has one of two ranks, which meet in the store of the first; their files come together at the runner."""
    case = small_case(ranks=2)
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    with _remote(folders[0]) as first, _remote(folders[1]) as second, ThreadPoolExecutor(2) as pool:
        first.link.ready()
        second.link.ready()
        store = first.link.open_store(case.ranks)

        def run(node: int, remote: Remote) -> TrialEnded:
            (remote.folder / "runner" / RUN).mkdir()
            order = TrialOrder(
                run=RUN, trial=0, case=case, limit_s=60.0, node=node, first_rank=node, local_ranks=1, store=store
            )
            return remote.link.run(order, lambda _: None)

        ended = list(pool.map(run, (0, 1), (first, second)))
        assert [(one.outcome, len(one.ends)) for one in ended] == [("done", 1), ("done", 1)]
        assert joint_cause(ended, "r", 60.0) is None
        for node, remote in enumerate((first, second)):
            assert remote.link.collect(RUN) == ()
            kept = {path.name for path in (remote.folder / "runner" / RUN).glob("*.jsonl")}
            assert kept == {f"node{node}.jsonl", f"rank{node}.jsonl"}


@pytest.mark.slow
def test_a_port_that_is_served_gets_no_second_exporter(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from bench.engines.node.node_exporter import NodeExporter

    with socket.create_server(("127.0.0.1", 0)) as served:
        port: int = served.getsockname()[1]
        NodeExporter("127.0.0.1", port, tmp_path).close()
    assert capfd.readouterr().err == (
        f"no exporter is started: another program of yours already uses port {port} of 127.0.0.1\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("--exporter", "192.0.2.1:9464"),
            "cannot listen at port 9464 of 192.0.2.1: Cannot assign requested address",
        ),
        (("--exporter", "127.0.0.1:0", "--targets", "/proc/targets"), "/proc/targets"),
    ],
)
def test_what_an_exporter_cannot_do_is_told_to_who_runs_the_suite(
    words: tuple[str, ...], told: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with _remote(tmp_path, *words) as remote:
        remote.link.machine()
        until_s = time.monotonic() + 2 * WITHIN_S
        said = capfd.readouterr().err
        while told not in said:
            assert time.monotonic() < until_s, said
            time.sleep(0.1)
            said += capfd.readouterr().err
    assert "the agent of node 0: its exporter reports: " in said
    assert "serving" not in said


def _listed(targets: Path, count: int) -> list[str]:
    """Wait until the folder has so many targets; return them."""
    until_s = time.monotonic() + WITHIN_S
    while True:
        groups = [group for file in targets.glob("*.json") for group in json.loads(file.read_bytes())]
        found: list[str] = [target for group in groups for target in group["targets"]]
        if len(found) == count:
            return found
        assert time.monotonic() < until_s, found
        time.sleep(0.1)


def _metrics(port: int) -> str:
    until_s = time.monotonic() + WITHIN_S
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                text: str = answer.read().decode()
                return text
        except OSError:
            assert time.monotonic() < until_s
            time.sleep(0.2)
