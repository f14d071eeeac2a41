"""Polls a node's collectors, each in its own thread, so that a collector that hangs or fails affects no other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Literal

from collectors.background import BackgroundTask
from collectors.files import in_words
from collectors.metrics.metric import Sample
from collectors.node.registry import CountingCollector, NodeCollector

DEADLINE_S = 1.0
"""How long all collectors together may take to answer at a beat; longer than each collector's own deadline."""
HOLD_S = 60.0
"""How long a late collector's last answer is shown."""
_CLOSE_S = 1.0

CollectorState = Literal["answering", "late", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorPoll:
    """A collector's state and samples after a poll.

    samples: of its last answer; empty if it failed or has been late for too long. at_ns: when that answer was complete,
    by the monotonic clock; None before the first. read_s, read_samples: total time and number of samples of all its
    answers. read_fields: number of fields that it requested from its source, or, if the collector does not count them,
    the samples that it did not repeat from its previous answer; None if it requests no fields.
    """

    name: str
    state: CollectorState
    samples: list[Sample]
    at_ns: int | None
    read_s: float
    read_samples: int
    read_fields: int | None = None


class Poller:
    """Polls a node's collectors, which the caller has opened and `close` closes.

    After a collector is late, polls do not wait for it until it has answered. A collector that raises has failed and is
    not polled again.

    deadline_s: see DEADLINE_S. hold_s: see HOLD_S. clock_ns: a monotonic clock.
    """

    def __init__(
        self,
        collectors: Iterable[NodeCollector],
        *,
        deadline_s: float = DEADLINE_S,
        hold_s: float = HOLD_S,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._deadline_s = deadline_s
        self._hold_s = hold_s
        self._clock_ns = clock_ns
        self._polled = [_PolledCollector(collector, clock_ns) for collector in collectors]
        self._reasons: dict[str, None] = {}

    @property
    def absent(self) -> tuple[str, ...]:
        """The reasons why samples are missing, without repetition."""
        own = (reason for polled in self._polled for reason in (polled.task.latest or _Answer()).absent)
        return tuple(dict.fromkeys((*own, *self._reasons)))

    def poll(self) -> tuple[CollectorPoll, ...]:
        """Poll all collectors; return each one's answer, or its last one."""
        for polled in self._polled:
            if polled.state == "late":
                self._settle(polled, 0.0)
            if polled.state != "failed":
                polled.task.ask()
        # All were asked at once and share a deadline; those that were late before get no time.
        until_ns = self._clock_ns() + round(self._deadline_s * 1e9)
        for polled in self._polled:
            if polled.state != "failed":
                self._settle(polled, 0.0 if polled.state == "late" else (until_ns - self._clock_ns()) / 1e9)
        return tuple(self._part(polled) for polled in self._polled)

    def close(self) -> None:
        """End the threads and close the collectors; a collector that hangs is abandoned and stays open."""
        with ExitStack() as stack:  # Closes the others even if one fails to close.
            for polled in self._polled:
                if polled.task.close(_CLOSE_S):
                    stack.callback(polled.collector.close)

    def _settle(self, polled: _PolledCollector, left_s: float) -> None:
        name = polled.collector.name
        try:
            polled.state = "answering" if polled.task.wait(left_s) else "late"
        except Exception as error:  # noqa: BLE001  # A failing collector must not affect the others.
            polled.state = "failed"
            self._reasons.setdefault(f"{name}: {in_words(error)}; its samples end here")
        if polled.state == "late":
            late = f"{name}: sometimes no answer within {self._deadline_s:g} s; its last answer is shown meanwhile"
            self._reasons.setdefault(late)

    def _part(self, polled: _PolledCollector) -> CollectorPoll:
        answer = polled.task.latest or _Answer()
        is_held = answer.at_ns is not None and self._clock_ns() - answer.at_ns <= round(self._hold_s * 1e9)
        is_shown = polled.state == "answering" or (polled.state == "late" and is_held)
        return CollectorPoll(
            name=polled.collector.name,
            state=polled.state,
            samples=answer.samples if is_shown else [],
            at_ns=answer.at_ns,
            read_s=answer.read_s,
            read_samples=answer.read_samples,
            read_fields=answer.read_fields,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """An answer; the default stands for a collector that has not answered yet.

    at_ns: when it was complete. read_s, read_samples, read_fields: sums over this and all earlier answers.
    """

    samples: list[Sample] = field(default_factory=list)
    absent: tuple[str, ...] = ()
    at_ns: int | None = None
    read_s: float = 0.0
    read_samples: int = 0
    read_fields: int = 0


class _PolledCollector:
    """A collector and the thread that polls it."""

    def __init__(self, collector: NodeCollector, clock_ns: Callable[[], int]) -> None:
        self.collector = collector
        self.state: CollectorState = "answering"
        self._clock_ns = clock_ns
        self.task: BackgroundTask[_Answer] = BackgroundTask(f"collector-{collector.name}", self._read)

    def _read(self) -> _Answer:
        before = self.task.latest or _Answer()
        begun_ns = self._clock_ns()
        samples = self.collector.read()
        at_ns = self._clock_ns()
        if isinstance(self.collector, CountingCollector):
            read_fields = self.collector.fields_requested
        else:  # A repeated sample is the same object as before.
            repeated = set(map(id, before.samples))
            read_fields = before.read_fields + sum(id(sample) not in repeated for sample in samples)
        return _Answer(
            samples=samples,
            absent=self.collector.absent,
            at_ns=at_ns,
            read_s=before.read_s + (at_ns - begun_ns) / 1e9,
            read_samples=before.read_samples + len(samples),
            read_fields=read_fields,
        )
