"""Polls a node on a beat: into the node's log during a trial, or into memory for scrapes while the agent runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from collectors.background import BackgroundThread, Beat
from collectors.files import in_words
from collectors.metrics import agent
from collectors.metrics.metric import Sample
from collectors.node.poller import DEADLINE_S, HOLD_S, CollectorPoll, Poller
from collectors.node.registry import USUAL, GpuCollector, NodeCollector, PollingConfig, open_collectors
from collectors.nvml.queries import GpuProcess
from collectors.prometheus.exposition import Owned
from collectors.sample_log import LogUnwritable, NodeLogWriter, Note, SampleLog, open_node_log

# Into the node's log, during a trial.

BEAT_S = 1.0
STOP_S = 4.0
"""How long the final polls and writes may take before the thread is abandoned; longer than two polls' deadlines."""


@contextmanager
def polling(
    poller: Poller,
    path: Path,
    *,
    run: str,
    node: int,
    trial: int,
    on_problem: Callable[[str], None],
) -> Iterator[None]:
    """Poll the node into the log while the `with` body runs; failures to poll or log do not interrupt the body.

    on_problem: takes the reason why the log ends early or is missing.
    """
    try:
        log: SampleLog | None = open_node_log(path, run=run, node=node)
    except LogUnwritable as error:
        log = None
        on_problem(_unwritable(error))
    if log is None:
        yield
        return
    with Sampler(poller, log, trial=trial) as sampler:
        yield
    if sampler.problem is not None:
        on_problem(sampler.problem)


class Sampler:
    """Polls a node into its log at once, on each beat, and again at the end, so that counters span the whole time.

    Use it in a `with`. Its thread closes the log; the caller closes the poller. The log gets a note for each reason why
    samples are absent, once, with the trial.

    missed: beats skipped because a poll, the disk or the machine took too long. problem: why polling ended early; None
    if it did not.
    clock_ns: a monotonic clock for the beat; now_ns: the clock for the records' times. wait: waits that many seconds
    or until a stop is requested; returns whether it was.
    """

    def __init__(
        self,
        poller: Poller,
        log: SampleLog,
        *,
        trial: int,
        beat_s: float = BEAT_S,
        stop_s: float = STOP_S,
        now_ns: Callable[[], int] = time.time_ns,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self.problem: str | None = None
        self._poller = poller
        self._log = log
        self._beats = NodeLogWriter(log)
        self._trial = trial
        self._stop_s = stop_s
        self._now_ns = now_ns
        self._beat = Beat(beat_s, clock_ns=clock_ns, wait=wait)
        self._reasons: dict[str, None] = {}
        self._is_left_behind = False
        self._thread = BackgroundThread("node-sampler", self._run)

    @property
    def missed(self) -> int:
        return self._beat.missed

    @property
    def absent(self) -> tuple[str, ...]:
        """The reasons why samples are missing, without repetition."""
        return tuple(self._reasons)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the polling; a second call does nothing."""
        if not self._thread.stop(self._stop_s):
            self._is_left_behind = True
            self.problem = f"the node's last poll did not end within {self._stop_s:g} s and was abandoned"

    def _run(self, stop_requested: threading.Event) -> None:
        try:
            try:
                self._poll()
                while not self._beat.wait(stop_requested):
                    self._poll()
                self._poll()
                if self.missed and not self._is_left_behind:
                    beats = f"beats of {self._beat.beat_s:g} s"
                    self._say(f"node: {self.missed} of {self._beat.passed} {beats} were missed")
            finally:
                self._log.close()
        except LogUnwritable as error:
            self.problem = _unwritable(error)

    def _poll(self) -> None:
        time_ns = self._now_ns()
        samples = [sample for part in self._poller.poll() for sample in part.samples]
        if self._is_left_behind:  # The trial is over, and its log may be in use by readers.
            return
        if samples:
            self._beats.write(samples, time_ns=time_ns)
        for reason in self._poller.absent:
            self._say(reason)

    def _say(self, reason: str) -> None:
        if reason not in self._reasons:
            self._reasons[reason] = None
            self._log.write(Note(trial=self._trial, time_ns=self._now_ns(), text=reason))


def _unwritable(error: LogUnwritable) -> str:
    return f"the node's log cannot be written: {error.strerror}: {error.filename}"


# Into memory, for scrapes.

_STOP_S = 5.0
_OF_THE_NODE: Mapping[str, str] = {}


class NodeWatch:
    """Polls a node at once and on each beat, in a thread of its own, which also opens and closes the collectors.

    Use it in a `with`. A scrape polls nothing: it gets the collectors' last answers, with their age. A collector that
    hangs when the watch ends is abandoned.

    on_notice: takes each reason why samples are absent, after every poll, in the watch's thread.
    on_beat: called after each poll, in the watch's thread; it may be set until the watch is entered.
    clock_ns: a monotonic clock. cpu_s: CPU time of this process. wait: waits that many seconds or until a stop is
    requested.
    """

    def __init__(
        self,
        opener: Callable[[], Sequence[NodeCollector]] = open_collectors,
        *,
        beat_s: float = USUAL.beat_s,
        on_notice: Callable[[str], None],
        on_beat: Callable[[], None] = lambda: None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        cpu_s: Callable[[], float] = time.process_time,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self._opener = opener
        self._config = PollingConfig(beat_s=beat_s)
        self.on_beat = on_beat
        self._on_notice = on_notice
        self._clock_ns, self._cpu_s, self._wait = clock_ns, cpu_s, wait
        self._collectors: Sequence[NodeCollector] = ()
        self._parts: tuple[CollectorPoll, ...] = ()
        self._beat: Beat | None = None
        self._thread = BackgroundThread("node-watch", self._run)

    def __enter__(self) -> NodeWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the polling; a second call does nothing."""
        self._thread.stop(_STOP_S)

    def samples(self) -> list[Owned]:
        """Return the collectors' last answers, and the metrics of the agent itself."""
        return [(sample, _OF_THE_NODE) for sample in (*self.node_samples(), *self._own_samples())]

    def node_samples(self) -> list[Sample]:
        """Return the collectors' last answers."""
        return [sample for part in self._parts for sample in part.samples]

    def processes(self) -> dict[int, tuple[GpuProcess, ...]]:
        """Return the GPUs that each process computes on, by pid, as last read."""
        by_pid: dict[int, tuple[GpuProcess, ...]] = {}
        for collector in self._collectors:
            for pid, processes in collector.processes().items() if isinstance(collector, GpuCollector) else ():
                by_pid[pid] = (*by_pid.get(pid, ()), *processes)
        return by_pid

    def _own_samples(self) -> list[Sample]:
        samples = [agent.AGENT_CPU_SECONDS.at(self._cpu_s()), agent.AGENT_BEAT_SECONDS.at(self._config.beat_s)]
        if self._beat is not None:
            samples += [
                agent.AGENT_BEATS.at(self._beat.reached),
                agent.AGENT_MISSED_BEATS.at(self._beat.missed),
                agent.AGENT_LATENESS_SECONDS.at(self._beat.late_s),
            ]
        now_ns = self._clock_ns()
        return samples + [sample for part in self._parts for sample in agent_samples(part, now_ns)]

    def _run(self, stop_requested: threading.Event) -> None:
        self._collectors = self._opener()
        poller = Poller(
            self._collectors,
            deadline_s=self._config.all_within_s(DEADLINE_S),
            hold_s=self._config.held_s(HOLD_S),
            clock_ns=self._clock_ns,
        )
        beat = self._beat = Beat(self._config.beat_s, clock_ns=self._clock_ns, wait=self._wait)
        try:
            self._poll(poller)
            while not beat.wait(stop_requested):
                self._poll(poller)
        finally:
            poller.close()

    def _poll(self, poller: Poller) -> None:
        self._parts = poller.poll()
        for reason in poller.absent:
            self._on_notice(reason)
        try:
            self.on_beat()
        except Exception as error:  # noqa: BLE001  # The node is watched even if this fails.
            self._on_notice(f"the work after a poll failed: {in_words(error)}")


def agent_samples(part: CollectorPoll, now_ns: int) -> list[Sample]:
    """Return the agent's metrics of a collector: state, age of its answer, and time, fields and samples read."""
    samples = [
        agent.AGENT_COLLECTOR.at(1, collector=part.name, state=part.state),
        agent.AGENT_READ_SECONDS.at(part.read_s, collector=part.name),
        agent.AGENT_SAMPLES.at(part.read_samples, collector=part.name),
    ]
    if part.read_fields is not None:
        samples.append(agent.AGENT_FIELDS.at(part.read_fields, collector=part.name))
    if part.at_ns is not None and part.state != "failed":
        samples.append(agent.AGENT_AGE_SECONDS.at((now_ns - part.at_ns) / 1e9, collector=part.name))
    return samples
