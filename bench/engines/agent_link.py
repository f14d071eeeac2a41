"""The engine's connection to an agent, wherever it runs: orders go out, and answers come back."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from bench.engines.wire.channel import Channel, ChannelThreads, Heartbeat
from bench.engines.wire.frames import SignedWire, Stream
from bench.engines.wire.run_files import FileMessage, FileReceiver, LogSizes
from bench.errors import InfrastructureFailed, say
from bench.machine.machine import Machine
from bench.machine.node_now import NodeNow
from bench.rank.messages import (
    AgentFailed,
    AgentNotice,
    CheckNode,
    EndTrial,
    FilePiece,
    FilesSent,
    FromAgent,
    LogTails,
    NodeChecked,
    OpenStore,
    Ready,
    SendFiles,
    Store,
    StoreOpened,
    TrialEnded,
    TrialOrder,
    TrialProgress,
    WatchFiles,
)

SILENT_S = 120.0
"""How long a live agent may leave an order unanswered beyond a trial's limit; ranks with a full GPU take most of a
minute to end."""

WATCHED_WHOLE = 128
"""With up to this many nodes, the logs of all ranks reach the runner during a trial (docs/measured/scale.md)."""
THINNING_PROTOCOL = 6
"""Agents with an earlier protocol, which run from other source trees, can only send the logs of all ranks."""

LOADING_S = 300.0
"""How long an agent may take to load torch, possibly from a network disk, before any start was timed."""
SLOWER = 5.0
LEAST_LOADING_S = 60.0
"""A later start may take this many times the slowest start so far, and at least this long."""


class StartLimit:
    """How long agents may take to connect and then to load torch, based on earlier starts in the same allocation.

    first_s: the limit of the first start, which no later limit exceeds.
    """

    def __init__(self, first_s: float = LOADING_S) -> None:
        self._first_s = first_s
        self._slowest_s: float | None = None

    @property
    def seconds(self) -> float:
        if self._slowest_s is None:
            return self._first_s
        return min(self._first_s, max(LEAST_LOADING_S, SLOWER * self._slowest_s))

    def took(self, elapsed_s: float) -> None:
        """Record how long a start took."""
        self._slowest_s = max(elapsed_s, self._slowest_s or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCheck:
    """A node's state, and by how much its clock is ahead of the runner's.

    offset_error_s: the largest error of the offset: half of the messages' travel time.
    """

    now: NodeNow
    offset_s: float
    offset_error_s: float


class AgentLink:
    """The connection to an agent, which does one thing at a time: it runs a trial or sends files.

    stream, opening: see `Channel`. log_sizes: sizes of the logs in the runner's folder of runs, shared by the engine's
    links.
    threads: shared by the engine's links; None for its own.
    name: the agent's name in messages. process: its process ID, if known.
    silent_s: how long the agent may leave an order unanswered beyond a trial's limit.
    kill: ends the agent's process at once, if the engine can. how_it_ended: describes the end of a process that hung
    up, if the engine knows it. tell: called with notices about the agent's node, from another thread.
    start_limit: the allocation's limit, which learns from this start; None if there is no allocation.
    """

    def __init__(
        self,
        stream: Stream,
        opening: Callable[[Stream], SignedWire],
        *,
        log_sizes: LogSizes,
        name: str,
        process: int | None = None,
        silent_s: float = SILENT_S,
        kill: Callable[[], object] = lambda: None,
        how_it_ended: Callable[[], str | None] = lambda: None,
        tell: Callable[[str], None] = say,
        start_limit: StartLimit | None = None,
        threads: ChannelThreads | None = None,
    ) -> None:
        self._begun_s, self._start_limit = time.monotonic(), start_limit or StartLimit()
        self._ready: Ready | None = None
        self._ready_s: float | None = None  # When it arrived, possibly long before it is read.
        self._name, self.silent_s = name, silent_s
        self._process_name = name if process is None else f"{name} (process {process})"
        self._kill, self._how_it_ended, self._tell = kill, how_it_ended, tell
        self._stream, self._files = stream, FileReceiver(log_sizes)
        self._answers: queue.SimpleQueue[FromAgent | None] = queue.SimpleQueue()
        self._on_answer: Callable[[], object] = lambda: None
        serving = threads or ChannelThreads()
        self._own_threads = serving if threads is None else None
        self._channel: Channel[FromAgent] = Channel(
            serving,
            stream,
            opening,
            msgspec.json.Decoder(FromAgent | Heartbeat),
            on_message=self._take,
            on_end=self._end,
        )
        self._channel.start()

    def ready(self) -> Ready:
        """Wait until ranks can be started; return the agent's report of its node, which it sends once.

        Raises:
            InfrastructureFailed: the agent does not start.
        """
        if self._ready is None:
            message = self.answer(self._start_limit.seconds)
            if not isinstance(message, Ready):
                raise InfrastructureFailed(f"{self._name} answered {type(message).__name__} before it was ready")
            self._ready = message
            assert self._ready_s is not None, "the message was received"
            self._start_limit.took(self._ready_s - self._begun_s)
        return self._ready

    def machine(self) -> Machine:
        """Wait until ranks can be started; return the machine on which they will run.

        Raises:
            InfrastructureFailed: the agent does not start.
        """
        return self.ready().machine

    def check(self) -> NodeCheck:
        """Query the node's state and clock; only while no trial runs.

        Raises:
            InfrastructureFailed: the agent is gone, or does not answer.
        """
        sent_ns, begun_ns = time.time_ns(), time.monotonic_ns()
        self._channel.send(CheckNode())
        while not isinstance(message := self.answer(self.silent_s), NodeChecked):
            pass  # The end of a trial that nobody waits for any more.
        taken_ns = time.monotonic_ns() - begun_ns
        on_node_ns = message.answered_ns - message.asked_ns
        offset_ns = (message.asked_ns - sent_ns + message.answered_ns - (sent_ns + taken_ns)) / 2
        return NodeCheck(
            now=message.now, offset_s=offset_ns / 1e9, offset_error_s=max(0, taken_ns - on_node_ns) / 2 / 1e9
        )

    def open_store(self, ranks: int) -> str | Store:
        """Have the agent open a store for the next trial, in which this many ranks meet; only while no trial runs.

        Raises:
            InfrastructureFailed: the agent is gone, does not answer, or cannot open the store.
        """
        self._channel.send(OpenStore(ranks=ranks))
        while not isinstance(message := self.answer(self.silent_s), StoreOpened):
            pass  # The end of a trial that nobody waits for any more.
        return message.store

    def run(self, order: TrialOrder, progress: Callable[[TrialProgress], None]) -> TrialEnded:
        """Run one trial; return how it ended.

        Raises:
            InfrastructureFailed: the agent is gone, or does not answer.
        """
        self.begin(order)
        deadline_s = time.monotonic() + order.limit_s + self.silent_s
        while True:
            message = self.answer(deadline_s - time.monotonic())
            if isinstance(message, TrialProgress):
                progress(message)
            elif isinstance(message, TrialEnded):
                return message

    def begin(self, order: TrialOrder, on_answer: Callable[[], object] = lambda: None) -> None:
        """Order one trial. on_answer: called from another thread whenever `answer` returns at once, or raises."""
        self._files.expect(order.run)
        self._on_answer = on_answer
        self._channel.send(order)

    @property
    def has_answer(self) -> bool:
        """Whether `answer` returns at once, or raises; for the thread that calls it."""
        return not self._answers.empty()

    def end_trial(self, run: str, trial: int) -> None:
        """Make the agent end its running trial; `run` then returns. May be called from any thread."""
        self._channel.send(EndTrial(run=run, trial=trial))

    def watch(self, run: str, *, nodes: int = 1) -> None:
        """Have the agent send new records of the run's logs during the run; only for an agent that sends files.

        nodes: the number of watched nodes. If it exceeds `WATCHED_WHOLE`, each sends the logs of two ranks only: of the
        rank with the fewest steps and of the rank with the most.
        """
        self._files.expect(run)
        all_ranks = nodes <= WATCHED_WHOLE or self._channel.protocol < THINNING_PROTOCOL
        self._channel.send(WatchFiles(run=run, is_watched=True, all_ranks=all_ranks))

    def collect(self, run: str) -> tuple[str, ...]:
        """Have the agent send the run's files; return a line for each file that was not received completely.

        The files also stay on the node. Only for an agent that sends files, after the run has ended there.

        Raises:
            InfrastructureFailed: the agent is gone, or does not answer.
        """
        self._files.expect(run)
        self._channel.send(SendFiles(run=run, again=self._files.lost(run)))
        while not isinstance(self.answer(self.silent_s), FilesSent):
            pass  # A piece of a file: the agent is sending.
        return self._files.finish(run)

    def hang_up(self, within_s: float) -> bool:
        """End the agent, which then ends its ranks; return whether it was reached. A second call does nothing."""
        return self._channel.hang_up(within_s)

    def join(self, within_s: float) -> bool:
        """Wait until the agent has also hung up; return whether it has."""
        has_ended = self._channel.join(within_s)
        if has_ended:
            self._files.close()
            self._stream.close()
            if self._own_threads is not None:
                self._own_threads.close(within_s)
        return has_ended

    def answer(self, within_s: float) -> FromAgent:
        """Wait for the agent's next answer.

        Raises:
            InfrastructureFailed: the agent is gone, or does not answer, or cannot continue.
        """
        try:
            message = self._answers.get(timeout=max(0.0, within_s))
        except queue.Empty:
            self._kill()
            raise InfrastructureFailed(
                f"{self._process_name} did not answer in time and was ended: it was stopped, or the machine is"
                " overloaded"
            ) from None
        if message is None:
            self._answers.put(None)  # For the next reader.
            raise InfrastructureFailed(self._why_it_ended())
        if isinstance(message, AgentFailed):
            raise InfrastructureFailed(f"{self._name} failed: {message.text}")
        return message

    def _take(self, message: FromAgent) -> None:
        if isinstance(message, FileMessage):
            self._files.take(message)
        match message:
            case LogTails() | FilePiece(is_tail=True):
                return
            case AgentNotice():
                self._tell(f"{self._name}: {message.text}")
                return
            case Ready():
                self._ready_s = time.monotonic()
            case FilePiece():
                message = msgspec.structs.replace(message, data=b"")
        self._answers.put(message)
        self._on_answer()

    def _end(self, reason: str) -> None:
        self._answers.put(None)
        self._on_answer()
        self._channel.hang_up(0.0)  # Without heartbeats the agent ends, wherever it is.
        if self._channel.is_silent:  # Calls must not wait for it forever.
            self._stream.abort()

    def _why_it_ended(self) -> str:
        reason = str(self._channel.reason)
        if self._channel.is_refused:
            self._kill()
            return f"{self._process_name} was refused and ended: {reason}"
        if self._channel.is_silent:
            self._kill()
            return f"{self._process_name} was ended: {reason}; it was stopped, or its node is down or unreachable"
        return self._how_it_ended() or f"{self._name} ended: {reason}"
