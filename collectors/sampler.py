"""Polls a node on a beat while a trial goes on, in a thread of its own, into the node's log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from collectors.beat import Beat
from collectors.node_log import NodeLogWriter, open_node_log
from collectors.poller import Poller
from collectors.sample_log import LogUnwritable, Note, SampleLog

BEAT_S = 1.0
STOP_S = 4.0
"""How long the last polls and lines may take before they are left behind; longer than two polls at their deadlines."""


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
    with Sampler(poller, log, trial=trial) as sampler:
        yield
    if sampler.problem is not None:
        on_problem(sampler.problem)


class Sampler:
    """Polls at once, then on each beat, and once more at the end, so that counters span the whole time.

    Use it in a `with`. It takes the log over, which its thread closes, and leaves the poller to who made it. What is
    absent, of which trial, is noted in the log once.

    missed: beats that went by while a poll, the disk or the machine took too long. problem: why it ended early, None
    where it did not.
    clock_ns: for the beat, never set back; now_ns: the time that records bear. wait: until told to stop or for so many
    seconds; whether told.
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
        self._told_to_stop = threading.Event()
        self._is_left_behind = False
        self._thread = threading.Thread(target=self._run, name="node-sampler", daemon=True)

    @property
    def missed(self) -> int:
        """Beats that were skipped."""
        return self._beat.missed

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
            self.problem = f"the node's last poll did not end within {self._stop_s:g} s and was left behind"

    def _run(self) -> None:
        try:
            try:
                self._poll_on_the_beat()
            finally:
                self._log.close()
        except LogUnwritable as error:
            self.problem = _unwritable(error)

    def _poll_on_the_beat(self) -> None:
        self._poll()
        while not self._beat.wait(self._told_to_stop):
            self._poll()
        self._poll()
        if self.missed and not self._is_left_behind:
            self._say(f"node: {self.missed} of {self._beat.passed} beats of {self._beat.beat_s:g} s were missed")

    def _poll(self) -> None:
        time_ns = self._now_ns()
        samples = [sample for part in self._poller.poll() for sample in part.samples]
        if self._is_left_behind:  # The trial is over; its log may be read by now.
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
