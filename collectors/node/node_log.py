"""Writing and reading a node's log, in which only every `WHOLE_EACH`th beat is whole and the others hold changes."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from collectors.metrics.metric import Sample
from collectors.sample_log import Changed, LogUnwritable, NodeOpened, Polled, Record, SampleLog

WHOLE_EACH = 60
"""The first of so many beats is written whole, so that the loss of a line is soon repaired."""


def open_node_log(path: Path, *, run: str, node: int, now_ns: Callable[[], int] = time.time_ns) -> SampleLog:
    """Open a node's log and write the record that names its run and node. Trials of a run append to the same file.

    Raises:
        LogUnwritable: the log cannot be opened or written.
    """
    log = SampleLog(path)
    try:
        log.write(NodeOpened(run=run, node=node, time_ns=now_ns(), host=socket.gethostname()))
    except LogUnwritable:
        log.close()
        raise
    return log


class NodeLogWriter:
    """Writes beats into a log that the caller opens and closes; the first one whole.

    A beat with a new or a missing series is written whole, which is how a reader learns of it.

    Raises:
        LogUnwritable: from each call.
    """

    def __init__(self, log: SampleLog) -> None:
        self._log = log
        self._last: Sequence[Sample] = ()
        self._whole_ns = 0
        self._changes_left = 0

    def write(self, samples: list[Sample], *, time_ns: int) -> None:
        """Append a beat."""
        series, last_series = ([(sample.metric, sample.labels) for sample in beat] for beat in (samples, self._last))
        if self._changes_left == 0 or series != last_series:
            self._log.write(Polled(time_ns=time_ns, samples=samples))
            self._whole_ns, self._changes_left = time_ns, WHOLE_EACH
        else:
            values = [
                (index, now.value)
                for index, (now, before) in enumerate(zip(samples, self._last, strict=True))
                if now.value != before.value
            ]
            self._log.write(Changed(time_ns=time_ns, since_ns=self._whole_ns, values=values))
        self._last = samples
        self._changes_left -= 1


class NodeState:
    """The newest state of a node, from the records of its log, handed in in order.

    host: the node's name; "" before its log says it. time_ns: of the last beat, by the node's clock; None before the
    first. Changes to a whole beat that was lost are
    ignored until the next whole one.
    """

    def __init__(self) -> None:
        self.host = ""
        self.time_ns: int | None = None
        self.samples: list[Sample] = []
        self._whole_ns: int | None = None

    def take(self, record: Record) -> bool:
        """Apply the record if it is a beat, and return whether it was one."""
        match record:
            case NodeOpened():
                self.host = record.host
                return False
            case Polled():
                self.samples = list(record.samples)
                self._whole_ns = record.time_ns
            case Changed() if record.since_ns == self._whole_ns:
                for index, value in record.values:
                    before = self.samples[index]
                    self.samples[index] = Sample(before.metric, value, before.labels)
            case _:
                return False
        self.time_ns = record.time_ns
        return True
