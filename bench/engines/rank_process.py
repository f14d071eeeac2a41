"""One rank as its supervisor holds it: forked from the forkserver, watched through its log, ended with its group."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import NoReturn

import msgspec
import psutil

from bench.engines.blame import RankEnd
from bench.engines.messages import ABORT, DUMP, RankOrder
from collectors import flight_recorder
from collectors.log_reader import Follower
from collectors.sample_log import Ended, Reading

TAIL_BYTES = 65_536
PACE = 3
"""A rank whose last step ended no longer ago than so many of its longest steps, and a second, is not hung."""


TAKEN_DOWN_S = 2.0
"""How long the loaders of a rank that is gone are waited for at most."""

TAKEN_DOWN_LOOK_S = 0.005


def _serve(order_json: bytes, line: Connection) -> NoReturn:
    """The rank's body, which needs torch: the forkserver has loaded it, and this process has not."""
    from bench.worker import serve

    serve(order_json, line)


class RankProcess:
    """A rank of one trial.

    The pipe between us has one end here and the other in the rank, whose death of ours the rank sees as its end.
    """

    def __init__(self, context: ForkServerContext, order: RankOrder) -> None:
        self.order = order
        self._line, theirs = context.Pipe(duplex=True)
        self._process: ForkServerProcess = context.Process(
            target=_serve, args=(msgspec.json.encode(order), theirs), name=f"rank{order.rank}", daemon=False
        )
        self._folder = Path(order.folder)
        self._log = Follower(self._folder / f"rank{order.rank}.jsonl")
        self._result: Ended | None = None
        self._steps = 0
        self._is_ended_by_us = False
        self._ended_ns: int | None = None
        self._over_ns: int | None = None  # When we first asked it for anything that a rank is asked for at its end.
        self._reading_ns: list[int] = []
        self._process.start()
        theirs.close()

    @property
    def sentinel(self) -> int:
        """Readable as soon as the process is gone."""
        return self._process.sentinel

    def look(self) -> bool:
        """Whether the process is still there; the first look at its end notes the time and ends its loaders."""
        alive = self._process.is_alive()
        if not alive and self._ended_ns is None:
            self._ended_ns = time.time_ns()
            self._signal_group(signal.SIGKILL)
        return alive

    def steps(self) -> int:
        """Steps that the rank has finished in this trial, by its log."""
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
        """Its number in the trial."""
        return self.order.rank

    @property
    def pid(self) -> int:
        """The number of the process; it may be gone."""
        assert self._process.pid is not None, "the process was started"
        return self._process.pid

    @property
    def has_failed(self) -> bool:
        """It is gone without a good result, or its log says that it failed, though it may still be on its way out."""
        if self.look():
            self.steps()
            return self._result is not None and self._result.error is not None
        return not self.has_good_result

    @property
    def has_good_result(self) -> bool:
        """Its log says that all went well."""
        self.steps()
        return self._result is not None and self._result.error is None

    def ask_for_stacks(self) -> None:
        """Have the rank write the stacks of its threads and its flight record, for a rank that will be ended."""
        self._note_that_it_is_over()
        with suppress(OSError):
            self._line.send_bytes(DUMP)
        self._signal(signal.SIGUSR1)

    def abort(self) -> None:
        """Have the rank take its communicators down and end."""
        self._note_that_it_is_over()
        self._is_ended_by_us = self._is_ended_by_us or self._process.is_alive()
        with suppress(OSError):
            self._line.send_bytes(ABORT)

    def terminate(self) -> None:
        """Ask the rank and its loaders to end."""
        self._note_that_it_is_over()
        self._is_ended_by_us = self._is_ended_by_us or self._process.is_alive()
        self._signal_group(signal.SIGTERM)

    def kill(self) -> None:
        """End the rank and its loaders at once; the kernel may take a while to take the process down."""
        self._is_ended_by_us = self._is_ended_by_us or self._process.is_alive()
        self._signal_group(signal.SIGKILL)

    def end(self) -> RankEnd:
        """How it ended; call it when the process is gone. Its loaders are gone too when this returns."""
        self._wait_for_group()
        steps, record = self.steps(), self._record()
        disk = self._message()
        self._line.close()
        ended_ns = self._ended_ns if self._ended_ns is not None else time.time_ns()
        return RankEnd(
            rank=self.order.rank,
            result=self._result,
            exit_code=None if self._is_ended_by_us else self._process.exitcode,
            ended_ns=self._result.time_ns if self._result is not None else ended_ns,
            step=self._result.step if self._result is not None else steps,
            collectives=None if record is None or self._is_on_nccl else flight_recorder.count(record),
            reached=None if record is None or not self._is_on_nccl else flight_recorder.reached(record),
            is_moving=self._was_moving_at(ended_ns if self._over_ns is None else self._over_ns),
            disk=disk,
            said=_tail(self._folder / f"rank{self.order.rank}.err"),
        )

    def _note_that_it_is_over(self) -> None:
        if self._over_ns is None:
            self._over_ns = time.time_ns()

    def _was_moving_at(self, time_ns: int) -> bool:
        """Whether its last step had ended shortly before, by the pace of its own steps."""
        if len(self._reading_ns) < 2:
            return False
        longest_ns = max(after - before for before, after in pairwise(self._reading_ns))
        grace_ns = PACE * longest_ns + 1_000_000_000
        return time_ns - self._reading_ns[-1] <= grace_ns

    def _message(self) -> str | None:
        """What the rank could tell by no file; None where its end of the pipe was closed without a word."""
        try:
            return self._line.recv_bytes().decode() if self._line.poll() else None
        except (OSError, EOFError):
            return None

    @property
    def _is_on_nccl(self) -> bool:
        return self.order.case.backend == "nccl"

    def _record(self) -> bytes | None:
        """Its flight record; None where it left none, or half of one."""
        try:
            record = (self._folder / f"rank{self.order.rank}.flight.json").read_bytes()
            flight_recorder.count(record)
        except (OSError, msgspec.DecodeError):
            return None
        return record

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if self._process.pid is not None and self._process.is_alive():
                os.kill(self._process.pid, number)

    def _signal_group(self, number: signal.Signals) -> None:
        """To the rank and its loaders; to the rank alone where it has no group of its own yet."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            self._signal(number)

    def _wait_for_group(self) -> None:
        """A process that was killed is there until the kernel has taken it down."""
        until = time.monotonic() + TAKEN_DOWN_S
        while time.monotonic() < until and any(map(_is_running, _group(self.pid))):
            time.sleep(TAKEN_DOWN_LOOK_S)


def _group(number: int) -> Iterator[int]:
    """The processes of this group."""
    for process in psutil.pids():
        with suppress(ProcessLookupError, PermissionError):
            if os.getpgid(process) == number:
                yield process


def _is_running(process: int) -> bool:
    """Whether it is more than an entry that its parent has not read yet."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    return False


def _tail(path: Path) -> str:
    """The end of what a rank wrote to its standard streams."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
