"""A runner of many nodes: its engine, wire and files are real; the agents are made ones, many in a process.

Each made agent stands for 8 ranks that log a block a beat. It answers all orders, beats, and sends progress, tails and
the rest of the logs over real channels; no rank computes. Each number of nodes has a runner of its own, whose CPU does
not include that of the agents.

    python -m tests.benchmarks.scale [--nodes N ...] [--beats N] [--beat-seconds S] [--json]
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from unittest.mock import patch

import msgspec

from bench.engines.cluster import ClusterEngine, Meeting
from bench.engines.wire.channel import BEAT_S, Channel, ChannelThreads, Heartbeat
from bench.engines.wire.frames import Refused, SignedWire, meet, read_key
from bench.engines.wire.run_files import PIECE_BYTES
from bench.engines.wire.tcp import connect
from bench.errors import InfrastructureFailed
from bench.rank.messages import (
    EndTrial,
    FileSent,
    FilesSent,
    LogTail,
    LogTails,
    OpenStore,
    Ready,
    SendFiles,
    Store,
    StoreOpened,
    ToAgent,
    TrialEnded,
    TrialOrder,
    TrialProgress,
    WatchFiles,
)
from tests.bench.made.examples import make_machine, small_case

NODES = (64, 128, 256, 512, 1024)
RANKS = 8
"""Of a node."""
PROCESSES = 2
ROOT = Path(__file__).parents[2]
RUN = "20261123-010203-ddp-abc123"
BLOCK = b"".join(b'{"type":"reading","mark":"measured","step":%d,"value":%d}\n' % (n, n * n * 7919) for n in range(30))
"""What a rank logs in a beat: 2 kB."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured. late: the node that says everything every 2 beats only. stranger: that of another version.

    stops_s: all agents are stopped for so long in the middle of the trial, as by a network that drops and heals.
    resumes: the first runner ends when it has collected half of the nodes, and another one continues.
    """

    nodes: int
    beats: int = 15
    beat_s: float = 1.0
    late: int | None = None
    stranger: int | None = None
    stops_s: float = 0.0
    resumes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one runner needed. CPU times are of its process alone, without its agents'.

    starting_cpu_s: until all nodes have finished the trial's first beat. beating_cpu_s: from then to its end.
    queued_beats: by how many beats the agents were ahead of a report of progress, the median. logs, log_bytes: of all
    ranks. wrong: names of logs that do not have each byte once. listed: how often the run's folder was listed while the
    run continued. left_out: nodes that were left out, and why.
    """

    nodes: int
    threads: int
    descriptors: int
    rss_bytes: int
    meeting_cpu_s: float
    starting_cpu_s: float
    beating_cpu_s: float
    collecting_cpu_s: float
    logs: int
    log_bytes: int
    queued_beats: float
    outcome: str
    wrong: tuple[str, ...]
    notes: tuple[str, ...]
    listed: int
    left_out: dict[str, str]

    @property
    def cpu_s(self) -> float:
        """CPU time of all of it."""
        return self.meeting_cpu_s + self.starting_cpu_s + self.beating_cpu_s + self.collecting_cpu_s


# The made agents.


class MadeAgent:
    """The agent of one node. ahead: how many beats it has sent of the trial that it was ordered."""

    def __init__(self, threads: ChannelThreads, wire: SignedWire, node: int) -> None:
        self.order: TrialOrder | None = None
        self.ahead = 0
        self._watched: tuple[str, ...] = ()
        self._blocks = Counter({f"rank{rank}.jsonl": 0 for rank in range(node * RANKS, (node + 1) * RANKS)})
        self._logged = 0  # How many blocks each rank has logged.
        self._channel: Channel[ToAgent] = Channel(
            threads,
            wire.stream,
            lambda _: wire,
            msgspec.json.Decoder(ToAgent | Heartbeat),
            on_message=self._take,
            on_end=lambda _: None,
        )
        self._channel.start()
        self._channel.send(Ready(machine=make_machine()))

    @property
    def has_ended(self) -> bool:
        """Whether the runner is gone."""
        return self._channel.has_received.is_set()

    def beat(self, beats: int) -> None:
        """Send what the ranks have logged in a beat; after so many the trial ends."""
        if (order := self.order) is None:
            return
        self.ahead += 1
        self._logged += 1
        self._send_tails(self._watched)
        self._channel.send(TrialProgress(run=order.run, trial=order.trial, steps=self.ahead))
        if self.ahead == beats:
            self.order = None
            self._channel.send(TrialEnded(run=order.run, trial=order.trial, outcome="done"))

    def _send_tails(self, names: tuple[str, ...]) -> None:
        """Send the blocks of these logs that were not sent, as many at once as a message may have."""
        while names := tuple(name for name in names if self._blocks[name] < self._logged):
            most = PIECE_BYTES // len(names) // len(BLOCK)
            blocks = {name: min(most, self._logged - self._blocks[name]) for name in names}
            tails = tuple(
                LogTail(name=name, start=self._blocks[name] * len(BLOCK), size=count * len(BLOCK))
                for name, count in blocks.items()
            )
            data = zlib.compress(BLOCK * sum(blocks.values()), 1)
            if not self._channel.send(LogTails(run=RUN, tails=tails, data=data)):
                return
            self._blocks.update(blocks)

    def _take(self, message: ToAgent) -> None:
        match message:
            case OpenStore():
                self._channel.send(StoreOpened(store=Store(host="127.0.0.1", port=1, prefix="")))
            case WatchFiles():
                names = tuple(self._blocks)  # Of a node whose ranks are alike, the outermost are always the same.
                self._watched = names if message.all_ranks else (names[0], names[-1])
            case TrialOrder():
                self.order, self.ahead = message, 0
            case EndTrial():
                self.order = None
                self._channel.send(TrialEnded(run=message.run, trial=message.trial, outcome="interrupted"))
            case SendFiles():
                self._send_tails(tuple(self._blocks))
                digest = hashlib.sha256(BLOCK * self._logged).hexdigest()
                for name in self._blocks:
                    self._channel.send(FileSent(run=RUN, name=name, size=self._logged * len(BLOCK), sha256=digest))
                self._channel.send(FilesSent(run=RUN))


def be_agents(address: str, key_file: Path, plan: Plan, share: int, folder: Path) -> None:
    """Be every `PROCESSES`th node's agent until the runner is gone; write to a file how many beats all of them sent."""
    host, _, port = address.rpartition(":")
    key, threads, slow_threads = read_key(key_file), ChannelThreads(), ChannelThreads(beat_s=2 * BEAT_S)
    agents: dict[int, MadeAgent] = {}
    for node in range(share, plan.nodes, PROCESSES):
        program = "another" if node == plan.stranger else None
        try:
            wire = meet(connect(host, int(port)), key, "agent", node=node, program=program)
        except Refused as refusal:
            (folder / "refused").write_text(str(refusal))
        else:
            agents[node] = MadeAgent(slow_threads if node == plan.late else threads, wire, node)
    beat = 0
    while not all(agent.has_ended for agent in agents.values()):
        time.sleep(plan.beat_s)
        beat += 1
        for node, agent in agents.items():
            for _ in range(1 if node != plan.late else 2 * (beat % 2 == 0)):
                agent.beat(plan.beats)
        (folder / f"sent{share}").write_text(str(min(agent.ahead for agent in agents.values())))


class MadeNodes:
    """An `AgentPlacement` of made agents."""

    name = "made"
    address = "127.0.0.1"

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.nodes = tuple(f"node{number}" for number in range(plan.nodes))
        self._plan, self._folder = plan, folder
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, meeting: Meeting) -> None:
        """Start their processes."""
        plan = msgspec.json.encode(self._plan).decode()
        for share in range(PROCESSES):
            words = [f"{meeting.host}:{meeting.port}", str(meeting.key_file), plan, str(share), str(self._folder)]
            self.processes.append(subprocess.Popen([sys.executable, "-m", __spec__.name, "--agents", *words], cwd=ROOT))

    def failure(self) -> str | None:
        """Return why the stranger was refused."""
        with contextlib.suppress(FileNotFoundError):
            return (self._folder / "refused").read_text() or None
        return None

    def left_s(self) -> float:
        """It never ends."""
        return math.inf

    def stop(self) -> None:
        """Wait for the agents, which end with their runner."""
        for process in self.processes:
            process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Stop or continue all agents."""
        for process in self.processes:
            process.send_signal(number)

    def sent_beats(self) -> int:
        """Return how many beats all agents have sent."""
        sent = [0]
        with contextlib.suppress(FileNotFoundError, ValueError):  # ValueError: it is being written.
            sent = [int((self._folder / f"sent{share}").read_text()) for share in range(PROCESSES)]
        return min(sent)


# The runner.


def measure(plan: Plan) -> Figures:
    """Run one trial on made nodes and collect its files, in this process."""
    with tempfile.TemporaryDirectory(prefix="observatory-scale-") as folder:
        runs = Path(folder) / "runs"
        (runs / RUN).mkdir(parents=True)
        if plan.resumes:
            _measure(plan, Path(folder), runs, collected=plan.nodes // 2)
        return _measure(plan, Path(folder), runs, collected=plan.nodes)


def _measure(plan: Plan, folder: Path, runs: Path, collected: int) -> Figures:
    before = {path.name: path.stat().st_size for path in (runs / RUN).glob("rank*.jsonl")}
    cpu_s = [time.process_time()]  # When agents were started, had met, had begun, had ended, and were collected.
    nodes, queued = MadeNodes(plan, folder), list[int]()

    def see(progress: TrialProgress) -> None:
        if progress.steps == 1:
            cpu_s.append(time.process_time())
        queued.append(max(0, nodes.sent_beats() - progress.steps))
        if plan.stops_s and progress.steps == plan.beats // 2:
            nodes.signal(signal.SIGSTOP)
            threading.Timer(plan.stops_s, nodes.signal, (signal.SIGCONT,)).start()

    with _counted_listings(runs / RUN) as listings, ClusterEngine(nodes, runs) as engine:
        left_out = engine.drop_missing()
        cpu_s.append(time.process_time())
        threads, descriptors = threading.active_count(), len(tuple(Path("/proc/self/fd").iterdir()))
        count = len(engine.nodes())
        order = TrialOrder(run=RUN, trial=0, case=small_case(ranks=count * RANKS, nodes=count), limit_s=600.0)
        try:
            outcome: str = engine.run(order, see).outcome
        except InfrastructureFailed as error:
            outcome = str(error)
        cpu_s += [time.process_time()] * (4 - len(cpu_s))
        if collected < count:
            notes = [line for node in engine.nodes()[:collected] for line in node.link.collect(RUN)]
        else:
            notes = [line for line in engine.collect(RUN) if not line.startswith("ranks were ")]
        cpu_s.append(time.process_time())
    logs = {path.name: path.read_bytes() for path in (runs / RUN).glob("rank*.jsonl")}
    grown = [name for name in logs if logs[name][before.get(name, 0) :] != BLOCK * plan.beats]
    return Figures(
        nodes=plan.nodes,
        threads=threads,
        descriptors=descriptors,
        rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        meeting_cpu_s=cpu_s[1] - cpu_s[0],
        starting_cpu_s=cpu_s[2] - cpu_s[1],
        beating_cpu_s=cpu_s[3] - cpu_s[2],
        collecting_cpu_s=cpu_s[4] - cpu_s[3],
        logs=len(logs),
        log_bytes=sum(map(len, logs.values())),
        queued_beats=median(queued or [0]),
        outcome=outcome,
        wrong=tuple(sorted(grown)),
        notes=tuple(notes),
        listed=listings[runs / RUN],
        left_out=left_out,
    )


@contextlib.contextmanager
def _counted_listings(folder: Path) -> Iterator[Counter[Path]]:
    listed, iterdir = Counter[Path](), Path.iterdir

    def counted(path: Path) -> Iterator[Path]:
        listed[path] += 1
        return iterdir(path)

    with patch.object(Path, "iterdir", counted):
        yield listed


def measured(plan: Plan) -> Figures:
    """Run one trial on made nodes, in a runner of its own, whose soft limit of open files is the usual one."""
    words = [sys.executable, "-m", "tests.benchmarks.scale", "--plan", msgspec.json.encode(plan).decode()]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ended = subprocess.run(
        words,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard)),
    )
    return msgspec.json.decode(ended.stdout, type=Figures)


def main() -> None:
    """Print a row for each number of nodes."""
    parser = argparse.ArgumentParser(prog="scale", description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=NODES)
    parser.add_argument("--beats", type=int, default=15)
    parser.add_argument("--beat-seconds", type=float, default=1.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plan", help=argparse.SUPPRESS)
    parser.add_argument("--agents", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.agents is not None:
        address, key_file, plan, share, folder = arguments.agents
        be_agents(address, Path(key_file), msgspec.json.decode(plan, type=Plan), int(share), Path(folder))
        os._exit(0)
    if arguments.plan is not None:
        figures = measure(msgspec.json.decode(arguments.plan, type=Plan))
        print(msgspec.json.encode(figures).decode(), flush=True)
        os._exit(0)
    print("| nodes | threads | open files | memory | to meet | to start | trial | to collect | logs | behind |")
    print("|---:|" + "---:|" * 9)
    for nodes in arguments.nodes:
        row = measured(Plan(nodes=nodes, beats=arguments.beats, beat_s=arguments.beat_seconds))
        if arguments.json:
            print(json.dumps(asdict(row)))
            continue
        print(
            f"| {row.nodes} | {row.threads} | {row.descriptors} | {row.rss_bytes / 1e6:.0f} MB"
            f" | {row.meeting_cpu_s:.2f} s | {row.starting_cpu_s:.2f} s"
            f" | {row.beating_cpu_s / (arguments.beats - 1) / arguments.beat_seconds:.3f} cores"
            f" | {row.collecting_cpu_s:.2f} s | {row.log_bytes / 1e6:.1f} MB | {row.queued_beats:g} beats |"
            + "".join(f" {problem}" for problem in (row.outcome, *row.wrong[:2], *row.notes[:2]) if problem != "done"),
            flush=True,
        )


if __name__ == "__main__":
    main()
