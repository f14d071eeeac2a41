"""One rank as its supervisor holds it: forked from the forkserver, watched through its log, ended with its group."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import msgspec

from bench.engines.blame import RankEnd
from bench.engines.messages import RankOrder
from bench.worker import DUMP, serve
from collectors.sample_log import Ended, Follower, Opened, Reading

LAST_LINES = 12


class RankProcess:
    """A rank of one trial.

    The pipe between us has one end here and the other in the rank, whose death of ours the rank sees as its end.
    """

    def __init__(self, context: ForkServerContext, order: RankOrder) -> None:
        self.order = order
        self._line, theirs = context.Pipe(duplex=True)
        self._process: ForkServerProcess = context.Process(
            target=serve, args=(msgspec.json.encode(order), theirs), name=f"rank{order.rank}", daemon=False
        )
        self._folder = Path(order.folder)
        self._log = Follower(self._folder / f"rank{order.rank}.jsonl")
        self._result: Ended | None = None
        self._steps = 0
        self._has_opened = False
        self._is_ended_by_us = False
        self._ended_s: float | None = None
        self._process.start()
        theirs.close()

    @property
    def sentinel(self) -> int:
        """Readable as soon as the process is gone."""
        return self._process.sentinel

    @property
    def is_alive(self) -> bool:
        """Whether the process is still there; notes the time when it is found gone."""
        alive = self._process.is_alive()
        if not alive and self._ended_s is None:
            self._ended_s = time.monotonic()
            self._kill_group(signal.SIGKILL)  # Loader processes that the rank could not end itself.
        return alive

    def steps(self) -> int:
        """Steps that the rank has finished in this trial, by its log."""
        for record in self._log.new():
            if record.trial != self.order.trial:
                continue
            match record:
                case Opened():
                    self._has_opened = True
                case Reading():
                    self._steps = record.step + 1
                case Ended():
                    self._result = record
        return self._steps

    @property
    def has_good_result(self) -> bool:
        """Its log says that all went well."""
        self.steps()
        return self._result is not None and self._result.error is None

    def ask_for_stacks(self) -> None:
        """Have the rank write the stacks of its threads and its flight record, for a rank that will be ended."""
        with suppress(OSError):
            self._line.send_bytes(DUMP)
        self._signal(signal.SIGUSR1)

    def terminate(self) -> None:
        """Ask the rank and its loaders to end."""
        self._is_ended_by_us = self._is_ended_by_us or self._process.is_alive()
        self._kill_group(signal.SIGTERM)

    def kill(self) -> None:
        """End the rank and its loaders at once."""
        self._is_ended_by_us = self._is_ended_by_us or self._process.is_alive()
        self._kill_group(signal.SIGKILL)
        self._process.join(timeout=5)

    def end(self) -> RankEnd:
        """How it ended; call it when the process is gone."""
        steps = self.steps()
        disk = self._message()
        self._line.close()
        code = self._process.exitcode
        return RankEnd(
            rank=self.order.rank,
            result=self._result,
            exit_code=None if self._is_ended_by_us else code,
            ended_s=self._ended_s if self._ended_s is not None else time.monotonic(),
            step=self._result.step if self._result is not None else steps,
            collectives=self._collectives(),
            disk=disk,
            last_lines=last_lines(self._folder / f"rank{self.order.rank}.err"),
        )

    def _message(self) -> str | None:
        """What the rank could tell by no file; None where its end of the pipe was closed without a word."""
        try:
            return self._line.recv_bytes().decode()
        except (OSError, EOFError):
            return None

    def _collectives(self) -> int | None:
        path = self._folder / f"rank{self.order.rank}.flight.json"
        try:
            entries = json.loads(path.read_bytes())["entries"]
        except (OSError, ValueError, KeyError):
            return None
        return max((int(entry["record_id"]) + 1 for entry in entries), default=0)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if self._process.pid is not None and self._process.is_alive():
                os.kill(self._process.pid, number)

    def _kill_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if self._process.pid is not None:
                os.killpg(self._process.pid, number)


def last_lines(path: Path) -> tuple[str, ...]:
    """The last lines of what a rank wrote to its standard streams."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 16_384))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ()
    return tuple(lines[-LAST_LINES:])
