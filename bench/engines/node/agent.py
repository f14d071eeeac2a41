"""The agent of a node, the same for every engine: it runs the trials that its runner orders, and reports their ends.

Started as `python -P -m bench.engines.node.agent --runs FOLDER`. Its runner is at the other end of its standard
streams, or with --connect at a TCP address. When the runner hangs up, falls silent or is refused, the agent ends its
ranks and itself. Only the forkserver loads torch, not the agent.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import forkserver
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import NoReturn

import msgspec

from bench.case import Case
from bench.engines.environment import LOOPBACK, environment, private_caches
from bench.engines.node.node_exporter import NodeExporter
from bench.engines.node.supervisor import Supervisor
from bench.engines.wire.channel import Channel, ChannelThreads, Heartbeat
from bench.engines.wire.frames import (
    PipeStream,
    Refused,
    SignedWire,
    SocketStream,
    Stream,
    StreamEnded,
    meet,
    read_key,
    receive_key,
)
from bench.engines.wire.run_files import FileSender
from bench.engines.wire.tcp import CONNECT_S, Unreached, address_of, join_runner
from bench.errors import InfrastructureFailed, say
from bench.machine.limits.demand import demand_of
from bench.machine.limits.registry import too_small
from bench.machine.node_now import read_now
from bench.machine.temporary_folders import TemporaryFolder, check_tmpdir, lock_new, sweep_in_background
from bench.rank.messages import (
    AgentFailed,
    AgentNotice,
    CheckNode,
    EndTrial,
    FailureCause,
    NodeChecked,
    OpenStore,
    Ready,
    SendFiles,
    StoreOpened,
    ToAgent,
    TrialOrder,
    TrialProgress,
    WatchFiles,
)
from collectors.files import PRIVATE, exposed_by, in_words
from workloads.options import check_of
from workloads.registry import SPECS

MEET_S = 60.0
"""How long the runner may take to send the key and to meet; it does so at once unless it is stopped."""
UNREACHED = 4
"""Exit code of an agent whose runner does not answer at its address: it has not started yet, or it has ended."""
LAST_WORDS_S = 1.0
"""How long an ending agent may take to send its remaining messages."""

_MISSING = re.compile(
    r"(lib[\w.+-]+\.so[\w.*\[\]-]*)(?:: cannot open shared object file| not found in the system path)"
)
"""Messages of the dynamic linker about a missing library, and of torch, which looks for some libraries itself."""


def main() -> int:
    """Serve one runner until it hangs up; return the exit code."""
    parser = argparse.ArgumentParser(prog="agent", description="The agent of a node, which an engine starts.")
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="folder of the runs  [default: its own]")
    parser.add_argument("--connect", type=address_of, metavar="HOST:PORT", help="address at which the runner listens")
    parser.add_argument(
        "--within",
        type=float,
        default=CONNECT_S,
        metavar="SECONDS",
        help="time to try to reach the runner  [default: 30]",
    )
    parser.add_argument(
        "--key-file", type=Path, metavar="FILE", help="file with the key, instead of the input's first line"
    )
    parser.add_argument(
        "--send-files", dest="sends_files", action="store_true", help="send files to a runner with another --runs"
    )
    parser.add_argument("--node", type=int, default=0, help="this node's number among those of the runner")
    parser.add_argument(
        "--exporter",
        type=partial(address_of, least_port=0),
        metavar="HOST:PORT",
        help="address of the node's /metrics; port 0 chooses a free port",
    )
    parser.add_argument(
        "--targets",
        type=Path,
        metavar="FOLDER",
        help="folder of Prometheus's targets, in which the exporter has a file",
    )
    parser.add_argument(
        "--host", help="address at which ranks reach this node  [default: the address that reaches the runner]"
    )
    arguments = parser.parse_args()
    os.umask(PRIVATE)
    limit = threading.Timer(MEET_S, _give_up)
    limit.daemon = True
    limit.start()
    try:
        standard = _take_over_streams()
        key = receive_key(standard) if arguments.key_file is None else read_key(arguments.key_file)
        wire = None
        if arguments.connect is not None:
            runner, port = arguments.connect
            wire = join_runner(runner, port, key, node=arguments.node, within_s=arguments.within)
        stream: Stream = standard if wire is None else wire.stream
        host = arguments.host or (stream.address if isinstance(stream, SocketStream) else LOOPBACK)
        unused = check_tmpdir()
        if (why := exposed_by(sockets := Path(get_temp_dir()))) is not None:  # A socket there starts ranks.
            raise InfrastructureFailed(
                f"the folder for temporary files could be replaced: {why}; set TMPDIR to a folder of your own"
            )
        lock_new(sockets)  # Until this process ends.
        own_runs = TemporaryFolder("observatory-node-") if arguments.runs is None else None
        caches, notices = private_caches(os.environ)
        os.environ.update(environment(os.environ, host) | caches)
    except (Refused, StreamEnded, InfrastructureFailed, OSError) as error:
        say(f"agent: {in_words(error)}")
        return UNREACHED if isinstance(error, Unreached) else 1
    runs = arguments.runs.absolute() if own_runs is None else own_runs.path
    sweep_in_background()

    def opening(stream: Stream) -> SignedWire:
        met = meet(stream, key, "agent", node=arguments.node) if wire is None else wire
        limit.cancel()
        return met

    agent = Agent(stream, opening, sent_from=runs if arguments.sends_files else None, own_runs=own_runs)
    for text in (*notices, *([] if unused is None else [unused])):
        agent.notice(text)
    forkserver.set_forkserver_preload(["bench.engines.node.forkserver_preload"])
    try:
        forkserver.ensure_running()
        with ExitStack() as stack:
            if arguments.exporter is not None:
                exporter_host, port = arguments.exporter
                stack.enter_context(
                    closing(NodeExporter(exporter_host, port, runs, arguments.targets, tell=agent.notice))
                )
            supervisor = stack.enter_context(closing(Supervisor(host=host, runs=runs)))
            agent.serve(supervisor)
    except Exception as error:  # noqa: BLE001  # Any error is reported to the runner.
        if not agent.is_leaving:  # Otherwise the error only shows that the forkserver was ended.
            traceback.print_exc()
            agent.fail(_in_one_line(error))
    return agent.hang_up()


@dataclass(frozen=True, slots=True, kw_only=True)
class _StateRequest:
    """The runner's request for the node's state. time_ns: its Unix time."""

    time_ns: int


class Agent:
    """Receives its runner's messages in a thread, and answers them.

    node: this node's number among the runner's nodes.
    sent_from: the folder of runs, if the runner has another one; None if both share a folder.
    own_runs: that folder, if it is removed at the end.
    is_leaving: another thread is ending this process.
    """

    def __init__(
        self,
        stream: Stream,
        opening: Callable[[Stream], SignedWire],
        *,
        sent_from: Path | None = None,
        own_runs: TemporaryFolder | None = None,
    ) -> None:
        self._orders: queue.SimpleQueue[TrialOrder | OpenStore | _StateRequest | None] = queue.SimpleQueue()
        self._stop = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._trial: tuple[str, int] | None = None  # The running trial.
        self._reason: str | None = None  # Why no further trial is run.
        self._is_ready = self._has_failed = False
        self._reported_limits: set[str] = set()
        self.is_leaving = False

        self._channel: Channel[ToAgent] = Channel(
            ChannelThreads(),
            stream,
            opening,
            msgspec.json.Decoder(ToAgent | Heartbeat),
            on_message=self._take,
            on_end=self._end,
        )
        self._sent_from, self._own_runs = sent_from, own_runs
        self._files = None if sent_from is None else FileSender(sent_from, self._channel.send)
        self._channel.start()

    @property
    def is_all_sent(self) -> bool:
        """Whether the runner has all files of the runs here, or wants none."""
        return self._files is None or self._files.is_all_sent

    def serve(self, supervisor: Supervisor) -> None:
        """Run the trials that are ordered until the connection ends."""
        with self._lock:
            self._is_ready = True
        if self._files is not None:
            self._files.steps = lambda: supervisor.steps
        self._channel.send(Ready(machine=supervisor.machine))
        while (order := self._orders.get()) is not None:
            if isinstance(order, _StateRequest):
                now = read_now(supervisor.machine.gpus, supervisor.runs)
                self._channel.send(NodeChecked(now=now, asked_ns=order.time_ns, answered_ns=time.time_ns()))
                continue
            if isinstance(order, OpenStore):
                self._channel.send(StoreOpened(store=supervisor.open_store(order.ranks)))
                continue
            with self._lock:
                if self._reason is not None:
                    return
                self._trial = order.run, order.trial
            if self._files is not None:
                self._files.begin(order, supervisor.machine)
            if supervisor.host != LOOPBACK:  # The runner reports its own machine's limits.
                self._tell_limits(order.case)
            ended = supervisor.run(order, stop=self._stop, progress=self._report)
            with self._lock:
                self._trial = None
                if self._reason is None:
                    with suppress(BlockingIOError):  # An order to end the trial must not end the next one.
                        os.eventfd_read(self._stop)
                elif ended.outcome == "interrupted":
                    cause = FailureCause(
                        kind="interrupted", rank=None, step=None, text=f"the agent ended it: {self._reason}"
                    )
                    ended = msgspec.structs.replace(ended, cause=cause)
            if self._sent_from is not None and ended.cause is not None:  # The runner's files are elsewhere.
                text = ended.cause.text.replace(f"{self._sent_from}/", "")
                ended = msgspec.structs.replace(ended, cause=replace(ended.cause, text=text))
            self._channel.send(ended)

    def fail(self, text: str) -> None:
        """Tell the runner why the agent cannot continue."""
        self._has_failed = True
        self._channel.send(AgentFailed(text=text))

    def notice(self, text: str) -> None:
        """Send the runner a notice about this node for the user; may be called from any thread."""
        self._channel.send(AgentNotice(text=text))

    def hang_up(self) -> int:
        """Send the remaining messages and hang up; return the exit code."""
        self._channel.hang_up(LAST_WORDS_S)
        if self._own_runs is not None and self.is_all_sent:  # Otherwise the next agent of this node sweeps it.
            self._own_runs.close()
        return 1 if self._has_failed else 0

    def _tell_limits(self, case: Case) -> None:
        """Tell the runner once about each limit of this node that is too small for a case."""
        for line in too_small(demand_of(case)):
            if line not in self._reported_limits:
                self._reported_limits.add(line)
                self.notice(line)

    def _report(self, progress: TrialProgress) -> None:
        self._channel.send(progress)

    def _take(self, message: ToAgent) -> None:
        match message:
            case TrialOrder():
                check(message)
                self._orders.put(message)
            case CheckNode():
                self._orders.put(_StateRequest(time_ns=time.time_ns()))
            case OpenStore():
                self._orders.put(message)
            case EndTrial():
                with self._lock:
                    if self._trial == (message.run, message.trial):
                        os.eventfd_write(self._stop, 1)
            case SendFiles() | WatchFiles():
                if self._files is None:
                    raise Refused("the runner requested files, but this agent was not started with --send-files")
                self._files.ask(message)

    def _end(self, reason: str) -> None:
        if self._channel.is_refused:
            say(f"agent: refused a message from the runner: {reason}")
            self.fail(f"it refused a message: {reason}")
        elif self._channel.is_silent:
            say(f"agent: its runner fell silent: {reason}")
        with self._lock:
            self._reason = f"the connection to the runner ended: {reason}"
            os.eventfd_write(self._stop, 1)
            is_ready = self._is_ready
        self._orders.put(None)
        if self._files is not None:
            self._files.close()
        if not is_ready:  # torch is still loading, but nobody needs it any more.
            self.is_leaving = True
            leave(self.hang_up())


def _give_up() -> None:
    say(f"agent: the runner did not answer this agent within {MEET_S:g} s")
    leave(1)


def check(order: TrialOrder) -> None:
    """Refuse an order for something that the registry does not have; its form was checked when it was decoded.

    Raises:
        Refused: the strategy or an option is unknown, or the node would have no rank.
    """
    case = order.case
    spec = next((spec for spec in SPECS if spec.name == case.strategy), None)
    if spec is None:
        raise Refused(f'an order has strategy "{case.strategy[:100]}", which is not in the registry')
    options = {option.name: option for option in spec.options}
    try:
        check_options = {} if (convergence := check_of(case)) is None else convergence.options()
    except (KeyError, ValueError):
        raise Refused("an order has a convergence check with a missing or unreadable option") from None
    for name, value in case.options.items():
        if name in check_options and check_options[name] == value:  # Every strategy takes a convergence check's.
            continue
        if name not in options:
            raise Refused(f'an order has an option "{name[:100]}" that {spec.name} does not have')
        if options[name].choices and value not in options[name].choices:
            raise Refused(f'an order has {name} "{str(value)[:100]}"; it may be {options[name].allowed}')
    if not order.ranks:
        raise Refused(f"an order begins at rank {order.first_rank} of {case.ranks}, so this node would have none")


def _take_over_streams() -> PipeStream:
    """Return the standard streams, reserved for messages: prints go to standard error, and no rank reads the input.

    Unbuffered, because the interpreter's shutdown would fail on a buffer's lock that a thread still holds.
    """
    reading = os.fdopen(os.dup(0), "rb", buffering=0)
    writing = os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return PipeStream(reading, writing)


def _in_one_line(error: Exception) -> str:
    """Return the error in one line; for a missing library, its name and the next step."""
    message = " ".join(str(error).split())
    missing = _MISSING.search(message)
    if missing is None:
        return f"{type(error).__name__}: {message}"
    return (
        f"the library {missing[1]}, which torch or a related package needs, is missing ({type(error).__name__});"
        " reinstall torch with all its dependencies, or use a CPU build"
    )


def leave(code: int) -> NoReturn:
    """End the forkserver and this process at once, and leave no file behind.

    Both would end on their own, but only after unloading torch, which takes seconds.
    """
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]  # Not public.
    if server is not None:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(server, signal.SIGKILL)
            os.waitpid(server, 0)
    shutil.rmtree(get_temp_dir(), ignore_errors=True)  # Contains the forkserver's socket; nobody else removes it.
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
