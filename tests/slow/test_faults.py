"""Faults under a suite of four ranks: each is told as what it was, nothing is left, and nothing is measured twice.

The last test compares the table in docs/guides/faults.md with what was seen; OBSERVATORY_WRITE_FAULTS=1 writes it.
"""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest

from bench.engines.environment import environment
from bench.rank.messages import FailureCause
from bench.store.history import History
from bench.store.run_dir import load
from bench.store.summary import Summary
from bench.suite.ledger import LEDGER, CaseBegun, Record, SuiteState, TrialEnded, fold, read_ledger
from tests.bench.made.fake_suites import TINY_SHAPE
from tests.slow.clusters.tcp_proxy import TcpProxy
from tests.support.netbox import netbox, processes_in
from tests.support.servers import run_postgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs/guides/faults.md"
GONE_S = 10.0
DEFAULTS = f"""
schema_version = 1

[defaults]
device = "cpu"
ranks = 4
{TINY_SHAPE}batch = 4
trials = 2
steps = 3
warm_up = 1
trace_steps = 0
limit_s = 60
"""
THREE = f"""{DEFAULTS}
[case.first]
strategy = "ddp"

[case.second]
strategy = "fsdp"
steps = 300
limit_s = 200

[case.third]
strategy = "zero1"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A row of the table. fault: what was done. told: the root cause, in the suite's words. after: what went on."""

    fault: str
    told: str
    after: str


TABLE: dict[str, Seen] = {}
"""What the tests of this file have seen, by fault."""


@dataclass(slots=True)
class Night:
    """A home of its own for suites: the file, the folder of runs, and the history. extra: arguments of each command.

    store: URL of the history, a file in the home by default.
    """

    home: Path
    text: str = THREE
    store: str | None = None
    extra: list[str] = field(default_factory=list)
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.home.mkdir(exist_ok=True)
        (self.home / "night.toml").write_text(self.text)

    @property
    def runs(self) -> Path:
        """The folder of runs."""
        return self.home / "runs"

    def command(self, *words: str) -> list[str]:
        """The command line that runs the suite."""
        store = self.store or f"sqlite:///{self.home}/history.sqlite"
        options = [f"--runs={self.runs}", f"--store={store}", "--port=0", *self.extra]
        return [sys.executable, "-P", "-m", "bench", "suite", "run", str(self.home / "night.toml"), *options, *words]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the suite to its end."""
        return subprocess.run(
            self.command(*words), capture_output=True, text=True, env={**os.environ, **self.environment}, timeout=300
        )

    @contextmanager
    def running(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        """The suite while it runs, killed at the end if the test leaves it alive."""
        with (
            (self.home / "out.txt").open("w") as out,
            subprocess.Popen(
                self.command(*words), stdout=out, stderr=out, text=True, env={**os.environ, **self.environment}
            ) as runner,
        ):
            try:
                yield runner
            finally:
                runner.kill()

    def records(self) -> tuple[Record, ...]:
        """The ledger of the only suite run."""
        ledgers = list(self.runs.glob(f"suites/*/{LEDGER}"))
        return read_ledger(ledgers[0]).records if ledgers else ()

    def state(self) -> SuiteState:
        """What that ledger says."""
        return fold(self.records())

    def summary(self, case: str) -> Summary:
        """The run of a case."""
        run = self.state().case(case).run
        assert run is not None
        return load(self.runs / run)

    def cause(self, case: str) -> FailureCause:
        """Why the case did not end well."""
        cause = self.summary(case).cause
        assert cause is not None
        return cause

    def trials(self) -> list[tuple[str, int]]:
        """The trials that ended well, in their order: none may be there twice."""
        return [
            (record.case, record.trial)
            for record in self.records()
            if isinstance(record, TrialEnded) and record.outcome == "done"
        ]

    def is_in_second(self) -> bool:
        """Whether the second case has a rank that measures."""
        begun = [record for record in self.records() if isinstance(record, CaseBegun) and record.case == "second"]
        return bool(begun) and (self.runs / begun[-1].run / "rank3.jsonl").exists()


ALL_TRIALS = [(case, trial) for case in ("first", "second", "third") for trial in range(2)]


def _processes(home: Path) -> list[psutil.Process]:
    """Processes that have a file of the night open as their standard error, or its folder in their command line."""
    found = []
    for process in psutil.process_iter(["pid"]):
        with suppress(psutil.Error, OSError):
            places = [os.readlink(f"/proc/{process.pid}/fd/2"), *process.cmdline()]  # noqa: PTH115
            if process.status() != psutil.STATUS_ZOMBIE and any(str(home) in place for place in places):
                found.append(process)
    return found


def _wait(is_so: Callable[[], bool], what: str, within_s: float = 120) -> None:
    until = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def _nothing_is_left(home: Path) -> None:
    _wait(lambda: not _processes(home), f"processes are left: {_processes(home)}", GONE_S)


def _agent(runner: subprocess.Popen[str]) -> psutil.Process:
    (agent,) = [
        child
        for child in psutil.Process(runner.pid).children()
        if "bench.engines.node.agent" in " ".join(child.cmdline())
    ]
    return agent


# Faults of one rank: a suite with a case for each, between two that are well.

IN_RANKS = {
    "raise": ("an exception in rank 2", "error"),
    "kill": ("SIGKILL of rank 2", "killed"),
    "stop": ("SIGSTOP of rank 2", "hung"),
    "wait": ("rank 2 hangs in the process group, waiting for a message", "hung"),
    "hang": ("rank 2 hangs elsewhere", "hung"),
    "exit": ("`sys.exit(7)` in rank 2", "error"),
    "leave": ("`os._exit(0)` in rank 2, early", "left"),
    "memory": ("rank 2 runs out of memory (RLIMIT_AS)", "error"),
}


@pytest.fixture(scope="module")
def drills(tmp_path_factory: pytest.TempPathFactory) -> tuple[Night, subprocess.CompletedProcess[str]]:
    """A suite with all faults of ranks, run once, and once more with --resume."""
    cases = [
        f'[case.{kind}]\nstrategy = "ddp"\ntrials = 1\nlimit_s = 8\ninject = "{kind}@2:2"\nseed = {seed}'
        for seed, kind in enumerate(IN_RANKS, start=1)
    ]
    well = '[case.{}]\nstrategy = "ddp"\ntrials = 1\nseed = {}'
    text = "\n\n".join([DEFAULTS, well.format("before", 100), *cases, well.format("after", 101)])
    night = Night(tmp_path_factory.mktemp("drills") / "home", text)
    ended = night.run()
    _nothing_is_left(night.home)
    before = night.trials()
    again = night.run("--resume")
    assert again.returncode == 3, again.stderr
    assert night.trials() == before == [("before", 0), ("after", 0)]
    return night, ended


def test_a_suite_with_failed_cases_goes_on_to_its_end(
    drills: tuple[Night, subprocess.CompletedProcess[str]],
) -> None:
    night, ended = drills
    assert ended.returncode == 3, ended.stderr
    outcomes = {name: case.outcome for name, case in night.state().cases.items()}
    assert [name for name, outcome in outcomes.items() if outcome == "done"] == ["before", "after"]
    # Ranks that wait for one that hangs may give up just before the trial's limit is over.
    assert {outcomes[kind] for kind in IN_RANKS} <= {"failed", "timed_out"}


@pytest.mark.parametrize("kind", IN_RANKS)
def test_the_injected_rank_is_the_root_cause(kind: str, drills: tuple[Night, subprocess.CompletedProcess[str]]) -> None:
    night, _ = drills
    fault, told = IN_RANKS[kind]
    cause = night.cause(kind)
    assert (cause.kind, cause.rank, cause.step) == (told, 2, 2)
    TABLE[fault] = Seen(fault=fault, told=f"{told}, rank 2, step 2", after="the next case ran")


@pytest.mark.parametrize("kind", ["wait", "hang"])
def test_a_hung_rank_s_log_has_its_stack_and_its_last_collectives(
    kind: str, drills: tuple[Night, subprocess.CompletedProcess[str]]
) -> None:
    night, _ = drills
    printed = (Path(night.summary(kind).folder) / "rank2.err").read_text()
    assert "fault_commit.py" in printed
    assert re.search(r"Flight Recorder, newest entry last:\n( .*\n)*  \d+: gloo:all_reduce", printed)


# Faults of processes


def test_a_killed_runner_leaves_nothing_and_what_it_lacked_is_measured_once(tmp_path: Path) -> None:
    night = Night(tmp_path / "home")
    with night.running() as runner:
        _wait(night.is_in_second, "the second case never began")
        runner.kill()
        runner.wait()
        _nothing_is_left(night.home)
    completed = night.trials()
    assert ("first", 1) in completed
    resumed = night.run("--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert sorted(night.trials()) == sorted(ALL_TRIALS)
    assert night.trials()[: len(completed)] == completed
    _nothing_is_left(night.home)
    fault = "SIGKILL of the runner"
    TABLE[fault] = Seen(fault=fault, told="(none)", after="`--resume` measured what was missing")


def test_a_killed_agent_is_told_and_the_case_goes_on_with_another(tmp_path: Path) -> None:
    night = Night(tmp_path / "home")
    with night.running() as runner:
        _wait(night.is_in_second, "the second case never began")
        _agent(runner).kill()
        assert runner.wait(timeout=200) == 0, (night.home / "out.txt").read_text()
    assert sorted(night.trials()) == sorted(ALL_TRIALS)
    assert "the agent of this machine" in (night.home / "out.txt").read_text()
    _nothing_is_left(night.home)
    fault = "SIGKILL of the agent"
    TABLE[fault] = Seen(fault=fault, told="agent, this machine", after="the case went on with a new agent")


def test_two_suites_at_once_on_a_node_do_not_meet(tmp_path: Path) -> None:
    nights = [Night(tmp_path / name) for name in ("one", "two")]
    with nights[0].running() as first, nights[1].running() as second:
        assert [first.wait(timeout=300), second.wait(timeout=300)] == [0, 0]
    for night in nights:
        assert night.trials() == ALL_TRIALS
    fault = "two suites at once on a node"
    TABLE[fault] = Seen(fault=fault, told="(no fault)", after="both ended well")


def test_two_suites_at_once_in_one_folder_and_history_do_not_meet(tmp_path: Path) -> None:
    night = Night(tmp_path / "home")
    with night.running() as first, night.running() as second:
        assert [first.wait(timeout=300), second.wait(timeout=300)] == [0, 0], (night.home / "out.txt").read_text()
    ledgers = list(night.runs.glob(f"suites/*/{LEDGER}"))
    assert len(ledgers) == 2
    runs = {case.run for ledger in ledgers for case in fold(read_ledger(ledger).records).cases.values()}
    assert len(runs) == 6


# Faults of the store and the disk


def test_a_store_that_is_locked_for_20_s_loses_nothing(tmp_path: Path) -> None:
    night = Night(tmp_path / "home")
    with night.running() as runner:
        _wait(night.is_in_second, "the second case never began")
        with sqlite3.connect(night.home / "history.sqlite", isolation_level=None) as store:
            store.execute("BEGIN EXCLUSIVE")
            time.sleep(20)
            store.execute("ROLLBACK")
        assert runner.wait(timeout=200) == 0, (night.home / "out.txt").read_text()
    with sqlite3.connect(night.home / "history.sqlite") as store:
        stored = dict(store.execute("SELECT suite_case, outcome FROM runs").fetchall())
    assert stored == {"first": "done", "second": "done", "third": "done"}
    fault = "the store locked for 20 s"
    TABLE[fault] = Seen(fault=fault, told="(no fault of a case)", after="all results are in the store")


@pytest.mark.stack
def test_a_store_that_is_gone_for_20_s_loses_nothing(tmp_path: Path) -> None:
    with run_postgres() as server, closing(TcpProxy(server.port)) as proxy:
        night = Night(tmp_path / "home", store=replace(server, port=proxy.port).url("postgres"))
        with night.running() as runner:
            _wait(night.is_in_second, "the second case never began")
            with proxy.gone():
                time.sleep(20)
            assert runner.wait(timeout=200) == 0, (night.home / "out.txt").read_text()
        _nothing_is_left(night.home)
        with History(night.store, writable=False) as history:
            stored = history.runs(10)
            (suite_run,) = history.suite_runs(10)
    members = {run.purpose.member.case: run.outcome for run in stored if run.purpose.member is not None}
    assert members == {"first": "done", "second": "done", "third": "done"}
    assert len(stored) == 3
    assert suite_run.outcome == "done"
    assert night.trials() == ALL_TRIALS
    fault = "the store gone for 20 s"
    TABLE[fault] = Seen(fault=fault, told="(no fault of a case)", after="all results are in the store")


def test_a_full_disk_ends_the_suite_and_room_lets_it_go_on(tmp_path: Path) -> None:
    night = Night(tmp_path / "home", environment={"XDG_DATA_HOME": str(tmp_path / "data")})
    night.runs.mkdir()
    mounted = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=1m none "$0" && exec "$@"', str(night.runs)]
    try:
        if subprocess.run([*mounted, "true"], capture_output=True).returncode:
            pytest.skip("no right to mount a small file system here")
    except FileNotFoundError:
        pytest.skip("no unshare here")
    script = (
        '"$@"; echo "code $?"; cp -r "$0"/suites "$0"/../ledger-when-full;'
        ' mount -o remount,size=64m "$0"; "$@" --resume; echo "code $?"; cp -r "$0"/suites "$0"/../ledger-at-the-end'
    )
    ended = subprocess.run(
        [*mounted, "sh", "-c", script, str(night.runs), *night.command()],
        capture_output=True,
        text=True,
        env={**os.environ, **night.environment},
        timeout=300,
    )
    assert re.findall(r"^code (\d+)$", ended.stdout, re.MULTILINE) == ["4", "0"], ended.stderr
    assert "No space left on device" in ended.stderr
    assert "Traceback" not in ended.stderr
    records = [
        read_ledger(next((night.home / name).glob(f"*/{LEDGER}"))).records
        for name in ("ledger-when-full", "ledger-at-the-end")
    ]
    full, end = (
        [(one.case, one.trial) for one in part if isinstance(one, TrialEnded) and one.outcome == "done"]
        for part in records
    )
    assert full[:2] == [("first", 0), ("first", 1)]
    assert sorted(end) == sorted(ALL_TRIALS)
    fault = "a full disk"
    TABLE[fault] = Seen(fault=fault, told="disk, the rank that could not write", after="`--resume` once there was room")


# Faults of nodes


def test_a_node_whose_link_is_cut_is_told_and_measures_once_it_is_back(tmp_path: Path) -> None:
    """The runner is in one node of the box, the agent with its four ranks and a folder of its own in the other."""
    with ExitStack() as stack, netbox(nodes=2) as box:
        place, node = box.nodes

        def start(number: int, module: str, *words: str | Path) -> subprocess.Popen[str]:
            errors = stack.enter_context((tmp_path / "errors.txt").open("a"))
            return stack.enter_context(
                box.run_in(
                    number,
                    [sys.executable, "-m", module, *words],
                    cwd=ROOT,
                    env=environment(os.environ),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                )
            )

        def heard() -> str:
            assert runner.stdout is not None
            return runner.stdout.readline().strip() or (tmp_path / "errors.txt").read_text()

        runner = start(0, "tests.slow.ranks.boxed_runner", tmp_path, place.address)
        words = ["--key-file", f"{tmp_path}/key", "--send-files", "--runs", f"{tmp_path}/node", "--node", "1"]
        for attempt in ("the first", "another"):
            agent = start(1, "bench.engines.node.agent", "--connect", f"{place.address}:{heard()}", *words)
            assert heard() == "running"
            if attempt == "the first":
                cut_s = time.monotonic()
                node.set_link("down")
                told = heard()
                assert time.monotonic() - cut_s < GONE_S
                left_s = cut_s + GONE_S - time.monotonic()
                _wait(lambda: not processes_in(node.namespace), "the agent or ranks of it are left", left_s)
                node.set_link("up")
        assert told.startswith("failed agent the agent of node 1 was ended: no message for 7 s"), told
        assert heard() == "done, complete trials: 1, files not whole: ()"
        assert [runner.wait(timeout=60), agent.wait(timeout=60)] == [0, 0], heard()
        assert processes_in(node.namespace) == []
    (kept,) = (tmp_path / "runner").glob("*-ddp-*")
    for log in (f"rank{rank}.jsonl" for rank in range(4)):
        received = (kept / log).read_bytes()
        assert received
        assert (tmp_path / "node" / kept.name / log).read_bytes().endswith(received)
    fault = "a node's link cut, and restored"
    TABLE[fault] = Seen(
        fault=fault,
        told="agent, that node: silence",
        after="the node ended its agent and ranks; a new agent ran the trial",
    )


def test_the_table_in_the_documentation_is_what_was_seen() -> None:
    if len(TABLE) < len(IN_RANKS) + 7:
        pytest.skip("the tests above have not all run here")
    rows = [f"| {seen.fault} | {seen.told} | {seen.after} |" for seen in TABLE.values()]
    table = "\n".join(["| fault | reported root cause | then |", "| --- | --- | --- |", *rows])
    text = DOCS.read_text()
    begin, end = "<!-- seen -->\n", "\n<!-- end -->"
    head, _, rest = text.partition(begin)
    if os.environ.get("OBSERVATORY_WRITE_FAULTS"):
        DOCS.write_text(head + begin + table + end + rest.partition(end)[2])
    assert rest.partition(end)[0] == table or os.environ.get("OBSERVATORY_WRITE_FAULTS")
