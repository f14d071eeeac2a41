"""The supervisor of a node: it forks the ranks of a trial from a warm forkserver, watches them and ends them."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import NoReturn

import msgspec
import psutil

from bench.engines.environment import LOOPBACK
from bench.engines.node.known_messages import explain, explain_xids, facts_of_node
from bench.engines.node.node_store import TrialStore, read_machine
from bench.engines.node.shutdown import ON_CPU, ON_CUDA, collect_stacks, end, wait_until_freed
from bench.engines.root_cause import RankEnd, encoded, root_cause
from bench.machine.container import out_of_memory_kills, read_container
from bench.machine.machine import Machine
from bench.rank.gpu_of_rank import gpu_of_rank
from bench.rank.messages import (
    ABORT,
    DUMP,
    FailureCause,
    RankOrder,
    Store,
    TrialEnded,
    TrialOrder,
    TrialOutcome,
    TrialProgress,
)
from collectors.files import open_regular, read_regular
from collectors.node.poller import Poller
from collectors.node.registry import GpuCollector, open_collectors
from collectors.node.watch import polling
from collectors.nvml.queries import names_all_processes
from collectors.rank import flight_recorder
from collectors.sample_log import Ended, Follower, LogUnwritable, Note, Reading, SampleLog

TAIL_BYTES = 65_536
PACE = 3
"""A rank is still moving if the time since its last step is at most this many of its longest steps, plus a second."""

TAKEN_DOWN_S = 2.0
"""How long to wait at most for the data loaders of a rank that is gone."""

TAKEN_DOWN_LOOK_S = 0.005
LOOK_S = 0.5
"""How often new records are read from the ranks' logs while they run."""
PEERS_S = 1.5
"""How long other ranks may take to end on their own after the first failure (gloo's peers raise within 0.05 s). NCCL's
peers raise nothing; the supervisor ends them after this time, so that none of them is blamed."""
GIVES_UP_SHARE = 0.8
"""A rank that waits for a peer gives up after this share of the trial's limit, so that it can report it in time."""
NCCL_SHARE = 1.25
"""NCCL's watchdog reports nothing: it ends the process, even a process that others wait for. So its timeout is this
multiple of the trial's limit: at the limit, each rank can still report its stacks and its device's progress."""


def _serve(order_json: bytes, pipe: Connection) -> NoReturn:
    """Run the rank in its process, which has torch from the forkserver; the agent's process has none."""
    from bench.rank.worker import serve

    serve(order_json, pipe)


class RankProcess:
    """A rank of a trial as its supervisor sees it: forked, watched through its log, ended with its process group.

    A pipe connects the supervisor with the rank: if the supervisor dies, the rank reads end of file.
    """

    def __init__(self, context: ForkServerContext, order: RankOrder) -> None:
        self.order = order
        self._pipe, child_end = context.Pipe(duplex=True)
        self._process: ForkServerProcess = context.Process(
            target=_serve, args=(msgspec.json.encode(order), child_end), name=f"rank{order.rank}", daemon=False
        )
        self._folder = Path(order.folder)
        self._log = Follower(self._folder / f"rank{order.rank}.jsonl")
        self._result: Ended | None = None
        self._steps = 0
        self._is_ended_by_us = False
        self._ended_ns: int | None = None
        self._over_ns: int | None = None  # When it was first asked for stacks, or to end.
        self._reading_ns: list[int] = []
        self._process.start()
        child_end.close()

    @property
    def sentinel(self) -> int:
        """A handle that becomes ready when the process is gone, for `multiprocessing.connection.wait`."""
        return self._process.sentinel

    def look(self) -> bool:
        """Return whether the process is alive. When it is first seen gone, note the time and kill its data loaders."""
        alive = self._process.is_alive()
        if not alive and self._ended_ns is None:
            self._ended_ns = time.time_ns()
            self._signal_group(signal.SIGKILL)
        return alive

    def steps(self) -> int:
        """Return how many steps the rank has finished in this trial, by its log."""
        for record in self._log.new():
            match record:
                case Reading(trial=self.order.trial):
                    self._steps = record.step + 1
                    self._reading_ns.append(record.time_ns)
                case Ended(trial=self.order.trial):
                    self._result = record
        return self._steps

    @property
    def rank(self) -> int:
        return self.order.rank

    @property
    def pid(self) -> int:
        """The process ID; the process may be gone."""
        assert self._process.pid is not None, "the process was started"
        return self._process.pid

    @property
    def has_failed(self) -> bool:
        """Whether it is gone without a good result, or its log records a failure (it may still be ending)."""
        if self.look():
            self.steps()
            return self._result is not None and self._result.error is not None
        return not self.has_good_result

    @property
    def has_good_result(self) -> bool:
        """Whether its log records success."""
        self.steps()
        return self._result is not None and self._result.error is None

    def ask_for_stacks(self) -> None:
        """Make the rank, which will be ended, write the stacks of its threads and its flight record.

        Python may crash while it writes the stack of a running thread: from here on the supervisor causes the rank's
        end.
        """
        self._note_that_we_end_it()
        with suppress(OSError):
            self._pipe.send_bytes(DUMP)
        self._signal(signal.SIGUSR1)

    def abort(self) -> None:
        """Make the rank abort its communicators and end."""
        self._note_that_we_end_it()
        with suppress(OSError):
            self._pipe.send_bytes(ABORT)

    def terminate(self) -> None:
        """Ask the rank and its data loaders to end (SIGTERM)."""
        self._note_that_we_end_it()
        self._signal_group(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the rank and its data loaders; the kernel may take a while to remove the process."""
        self._note_that_we_end_it()
        self._signal_group(signal.SIGKILL)

    def end(self) -> RankEnd:
        """Return how the rank ended. Call it when the process is gone; waits until its data loaders are gone too."""
        # Wait until the kernel has removed all processes of the group, at most `TAKEN_DOWN_S`.
        deadline_s = time.monotonic() + TAKEN_DOWN_S
        while time.monotonic() < deadline_s and _is_any_left(self.pid):
            time.sleep(TAKEN_DOWN_LOOK_S)

        # The rank sent what it could not write to a file.
        message: bytes | None = None
        with suppress(OSError, EOFError):
            message = self._pipe.recv_bytes() if self._pipe.poll() else None
        self._pipe.close()

        steps, record, is_on_nccl = self.steps(), self._flight_record(), self.order.case.backend == "nccl"
        ended_ns = self._ended_ns if self._ended_ns is not None else time.time_ns()
        return RankEnd(
            rank=self.order.rank,
            result=self._result,
            exit_code=None if self._is_ended_by_us else self._process.exitcode,
            ended_ns=self._result.time_ns if self._result is not None else ended_ns,
            step=self._result.step if self._result is not None else steps,
            reached=None if record is None else flight_recorder.reached(record, has_states=is_on_nccl),
            is_moving=self._was_moving_at(ended_ns if self._over_ns is None else self._over_ns),
            disk=None if message is None else message.decode(),
            output=_tail(self._folder / f"rank{self.order.rank}.err"),
        )

    def explained(self, end: RankEnd, facts: Mapping[str, Callable[[], str]]) -> tuple[str, ...]:
        """Return the meanings of known messages in the rank's output, in its error and in NCCL's own log."""
        error = "" if end.result is None else f"{end.result.error_type}: {end.result.error}"
        nccl_log = _tail(self._folder / f"rank{self.order.rank}.nccl.log")
        return explain("\n".join((end.output, error, nccl_log)), end.exit_code, facts)

    def _note_that_we_end_it(self) -> None:
        if self._over_ns is None:
            self._over_ns = time.time_ns()
        self._is_ended_by_us = self._is_ended_by_us or self._process.is_alive()

    def _was_moving_at(self, time_ns: int) -> bool:
        """Return whether the last step had ended shortly before, by the pace of the rank's own steps."""
        if len(self._reading_ns) < 2:
            return False
        longest_ns = max(after - before for before, after in pairwise(self._reading_ns))
        grace_ns = PACE * longest_ns + 1_000_000_000
        return time_ns - self._reading_ns[-1] <= grace_ns

    def _flight_record(self) -> bytes | None:
        """Return the flight record; None if there is none, or an incomplete one."""
        try:
            record = read_regular(self._folder / f"rank{self.order.rank}.flight.json")
            flight_recorder.count(record)
        except (OSError, msgspec.DecodeError):
            return None
        return record

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if self._process.pid is not None and self._process.is_alive():
                os.kill(self._process.pid, number)

    def _signal_group(self, number: signal.Signals) -> None:
        """Signal the rank and its data loaders; the rank alone if it has no process group of its own yet."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            self._signal(number)


def _is_any_left(group: int) -> bool:
    """Return whether the process group has a process that is not a zombie."""
    for pid in psutil.pids():
        with suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            if os.getpgid(pid) == group and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                return True
    return False


def _tail(path: Path) -> str:
    """Return the end of what a rank wrote to its standard streams."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


class Supervisor:
    """Runs trials on one node, one at a time. The forkserver's preload must be set before.

    host: the address at which ranks of other nodes reach this one.
    runs: where the folders of runs are.
    machine: this node's machine. steps: how many steps each rank of the trial has finished.
    """

    def __init__(self, *, host: str, runs: Path) -> None:
        """Wait until the forkserver has loaded torch, once for all ranks."""
        self._context = multiprocessing.get_context("forkserver")
        self.host = host
        self.steps: Mapping[int, int] = {}
        self.runs = runs
        self._trials = itertools.count()
        self._store: TrialStore | None = None
        self._file: Path | None = None
        collectors = open_collectors()
        self._poller = Poller(collectors)
        self._gpus = next((collector for collector in collectors if isinstance(collector, GpuCollector)), None)
        self.machine: Machine = read_machine(self._context)

    def close(self) -> None:
        """Close the node's collectors and the store; no trial can run afterwards."""
        self._poller.close()
        self._close_store()

    def open_store(self, ranks: int) -> str | Store:
        """Open a store in which this many ranks of this node and others meet in the next trial, whose end closes it.

        At the loopback, all nodes are on this machine and share a file.

        Raises:
            RuntimeError: the store cannot listen, or no process can be forked.
        """
        self._close_store()
        if self.host == LOOPBACK:
            self._file = self._new_file()
            return str(self._file)
        prefix = secrets.token_hex(16)
        self._store = TrialStore(self._context, self.host, prefix, ranks)
        return Store(host=self.host, port=self._store.port, prefix=prefix)

    def _close_store(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
        if self._file is not None:
            self._file.unlink(missing_ok=True)
            self._file = None

    def _new_file(self) -> Path:
        """Return a file for the keys of one trial, in the private folder of the forkserver's socket (mode 0700)."""
        return Path(get_temp_dir(), f"trial{next(self._trials)}")

    def run(self, order: TrialOrder, *, stop: int, progress: Callable[[TrialProgress], None]) -> TrialEnded:
        """Measure the case once with fresh ranks; return how the trial ended, once none of them is left.

        stop: a file descriptor that becomes readable when the runner wants the trial ended.
        """
        ranks: list[RankProcess] = []
        store = order.store
        if store is None:
            self._file = self._new_file()
            store = str(self._file)
        patience = ON_CUDA if order.case.device == "cuda" else ON_CPU
        folder, begun_s, kills_before = self.runs / order.run, time.time(), out_of_memory_kills()
        node_log = folder / f"node{order.node}.jsonl"
        # Problems of the node's collectors do not affect ranks.
        with polling(
            self._poller,
            node_log,
            run=order.run,
            node=order.node,
            trial=order.trial,
            on_problem=partial(print, file=sys.stderr),
        ):
            try:
                for rank in order.ranks:
                    ranks.append(RankProcess(self._context, self._rank_order(order, rank, folder, store)))
                outcome = self._watch(order, ranks, stop, progress)
                if outcome == "interrupted":
                    patience = ON_CPU  # No trial follows, and the runner is waiting.
                if outcome != "done":
                    collect_stacks(ranks, patience)
            finally:
                notes = end(ranks, patience)
                self._close_store()
            if outcome != "done" and self._gpus is not None:
                notes += wait_until_freed(ranks, self._gpus, patience, is_named=names_all_processes())
        if notes:
            with suppress(LogUnwritable):  # Nothing could be written there anyway.
                log = SampleLog(node_log)
                for text in notes:
                    log.write(Note(trial=order.trial, time_ns=time.time_ns(), text=text))
                log.close()
        return self._ended(order, ranks, outcome, begun_s, kills_before)

    def _rank_order(self, order: TrialOrder, rank: int, folder: Path, store: str | Store) -> RankOrder:
        local_rank = rank - order.first_rank
        return RankOrder(
            run=order.run,
            trial=order.trial,
            rank=rank,
            local_rank=local_rank,
            gpu=gpu_of_rank(order.case, local_rank, self.machine.gpus, self.machine.absent),
            case=order.case,
            folder=str(folder),
            store=store,
            store_timeout_s=GIVES_UP_SHARE * order.limit_s,
            collective_timeout_s=collective_timeout_s(order),
            keep_trace=order.keep_trace,
            instrumentation=order.instrumentation,
            ceiling_flops_per_second=order.ceiling_flops_per_second,
            fault=order.fault,
        )

    def _watch(
        self, order: TrialOrder, ranks: Sequence[RankProcess], stop: int, progress: Callable[[TrialProgress], None]
    ) -> TrialOutcome:
        """Wait until all ranks are gone, a rank failed and its peers had time to end, or the limit or `stop` comes."""
        deadline = time.monotonic() + order.limit_s
        failing_until = math.inf
        reported = -1
        while True:
            alive = [rank for rank in ranks if rank.look()]
            failed = any(rank.has_failed for rank in ranks)
            if not alive:
                return "failed" if failed else "done"
            now = time.monotonic()
            if failed and failing_until == math.inf:  # The first failure: from now on its peers have `PEERS_S`.
                failing_until = now + PEERS_S
            if now >= min(deadline, failing_until):
                return "failed" if failed else "timed_out"
            ready = wait([*(rank.sentinel for rank in alive), stop], min(LOOK_S, deadline - now, failing_until - now))
            if stop in ready:
                return "interrupted"
            self.steps = {rank.order.rank: rank.steps() for rank in ranks}
            if (steps := min(self.steps.values())) != reported:
                reported = steps
                progress(TrialProgress(run=order.run, trial=order.trial, steps=steps))

    def _ended(
        self,
        order: TrialOrder,
        ranks: Sequence[RankProcess],
        outcome: TrialOutcome,
        begun_s: float,
        kills_before: int | None,
    ) -> TrialEnded:
        """Return how the trial ended, with explanations of failed ranks' known messages."""
        folder = self.runs / order.run
        ends = tuple(rank.end() for rank in ranks)
        for rank in ranks:  # Flight records serve to find the root cause, and have been read by now.
            with suppress(FileNotFoundError):
                (folder / f"rank{rank.order.rank}.flight.json").unlink()
        if outcome in ("failed", "timed_out"):
            facts = {name: cache(fact) for name, fact in facts_of_node(self.machine.gpus).items()}  # The same for all.
            samples = [sample for part in self._poller.poll() for sample in part.samples] if self.machine.gpus else []
            xids = explain_xids(samples, begun_s)
            kills, limit_bytes = out_of_memory_kills(), read_container().memory_limit_bytes
            ends = tuple(
                end
                if end.is_good
                else replace(
                    end,
                    explained=(*rank.explained(end, facts), *xids),
                    memory_kills=None if kills is None or kills_before is None else kills - kills_before,
                    memory_limit_bytes=limit_bytes,
                )
                for rank, end in zip(ranks, ends, strict=True)
            )
        sent = encoded(ends) if len(order.ranks) < order.case.ranks else ()
        cause = root_cause(ends, str(folder), order.limit_s)
        if cause is None:  # Late ranks succeeded after all.
            return TrialEnded(run=order.run, trial=order.trial, outcome="done", ends=sent)
        if outcome == "interrupted":
            cause = FailureCause(kind="interrupted", rank=None, step=None, text="the user or a signal ended it")
        return TrialEnded(run=order.run, trial=order.trial, outcome=outcome, cause=cause, ends=sent)


def collective_timeout_s(order: TrialOrder) -> float:
    """Return the timeout of the trial's collectives; see `RankOrder`."""
    return (NCCL_SHARE if order.case.backend == "nccl" else GIVES_UP_SHARE) * order.limit_s
