"""Polls a node's collectors on a beat, in a thread of its own, into the node's log."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from collectors.metric import Sample
from collectors.roster import NodeCollector
from collectors.sample_log import LogUnwritable, NodeOpened, Note, Polled, SampleLog

BEAT_S = 1.0
STOP_S = 2.0
"""How long a collector that is being asked may take to answer before it is left behind."""


def open_node_log(path: Path, *, run: str, node: int, now_ns: Callable[[], int] = time.time_ns) -> SampleLog:
    """A node's log, which says whose it is. Trials of a run append to the same file.

    Raises:
        LogUnwritable: it cannot be opened or written.
    """
    log = SampleLog(path)
    try:
        log.write(NodeOpened(run=run, node=node, time_ns=now_ns(), host=socket.gethostname()))
    except LogUnwritable:
        log.close()
        raise
    return log


@contextmanager
def polling(
    collectors: Iterable[NodeCollector],
    path: Path,
    *,
    run: str,
    node: int,
    trial: int,
    on_problem: Callable[[str], None],
) -> Iterator[None]:
    """Poll the node into the log while what is inside goes on, which no trouble of ours may end.

    on_problem: is told why the log ends early or is not there.
    """
    try:
        log: SampleLog | None = open_node_log(path, run=run, node=node)
    except LogUnwritable as error:
        log = None
        on_problem(_unwritable(error))
    if log is None:
        yield
        return
    with Sampler(collectors, log, trial=trial) as sampler:
        yield
    if sampler.problem is not None:
        on_problem(sampler.problem)


class Sampler:
    """Polls at once, then on each beat, and once more at the end, so that counters span the whole time.

    Use it in a `with`. It takes the log over: its thread closes it, since a driver that does not answer can hold that
    thread longer than anybody waits. What is absent, of which trial, is noted in the log once.

    absent: reasons for what is not collected. missed: beats that went by while a poll or the machine took too long;
    they are skipped and never made up for. problem: why it ended early, None where it did not.
    clock_ns: for the beat, never set back; now_ns: the time that records bear. wait: until told to stop or for so many
    seconds; whether told.
    """

    def __init__(
        self,
        collectors: Iterable[NodeCollector],
        log: SampleLog,
        *,
        trial: int,
        beat_s: float = BEAT_S,
        stop_s: float = STOP_S,
        now_ns: Callable[[], int] = time.time_ns,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self.missed = 0
        self.problem: str | None = None
        self._collectors = list(collectors)
        self._log = log
        self._trial = trial
        self._beat_ns = round(beat_s * 1e9)
        self._stop_s = stop_s
        self._now_ns, self._clock_ns, self._wait = now_ns, clock_ns, wait
        self._reasons: dict[str, None] = {}
        self._told_to_stop = threading.Event()
        self._is_left_behind = False
        self._thread = threading.Thread(target=self._run, name="node-sampler", daemon=True)

    @property
    def absent(self) -> tuple[str, ...]:
        """What is not collected and why, each reason once."""
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
        self._told_to_stop.set()
        self._thread.join(self._stop_s)
        if self._thread.is_alive():
            self._is_left_behind = True
            self.problem = f"the node's collectors did not answer within {self._stop_s:g} s and were left behind"

    def _run(self) -> None:
        try:
            try:
                self._poll_on_the_beat()
            finally:
                self._log.close()
        except LogUnwritable as error:
            self.problem = _unwritable(error)

    def _poll_on_the_beat(self) -> None:
        begun_ns, beat = self._clock_ns(), 0
        is_told = False
        while not is_told:
            self._poll()
            now_ns = self._clock_ns()
            following = (now_ns - begun_ns) // self._beat_ns + 1
            self.missed += following - beat - 1
            beat = following
            is_told = self._wait(self._told_to_stop, (begun_ns + beat * self._beat_ns - now_ns) / 1e9)
        self._poll()
        if self.missed and not self._is_left_behind:
            self._say(f"node: {self.missed} of {beat} beats of {self._beat_ns / 1e9:g} s were missed")

    def _poll(self) -> None:
        time_ns = self._now_ns()
        samples: list[Sample] = []
        reasons: list[str] = []
        for collector in tuple(self._collectors):
            try:
                samples += collector.read()
                reasons += collector.absent
            except Exception as error:  # noqa: BLE001  # Whatever ails one, the others go on.
                self._collectors.remove(collector)
                reasons.append(f"{collector.name}: {type(error).__name__}: {error}; its samples end here")
        if self._is_left_behind:  # The trial is over; its log may be read by now.
            return
        if samples:
            self._log.write(Polled(time_ns=time_ns, samples=samples))
        for reason in reasons:
            self._say(reason)

    def _say(self, reason: str) -> None:
        if reason not in self._reasons:
            self._reasons[reason] = None
            self._log.write(Note(trial=self._trial, time_ns=self._now_ns(), text=reason))


def _unwritable(error: LogUnwritable) -> str:
    return f"the node's log cannot be written: {error.strerror}: {error.filename}"
