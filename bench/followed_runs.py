"""The live runs as the last look at their logs found them, which a thread of its own took: a disk may hang."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from collectors.error_words import in_words
from collectors.exporter import Owned
from collectors.nvml.answering import Answerer
from collectors.poller import HOLD_S, Part, State
from collectors.watch import told_of

LATE_S = 1.0
"""How long a look may take before what is shown is called late."""
PAUSE_S = 0.5
"""Least time between two looks, however short the beat is: each reads from the disk."""
_CLOSE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What a look found and when; read_s, read_samples: with those of all looks before it."""

    samples: list[Owned]
    at_ns: int
    has_failed: bool
    read_s: float
    read_samples: int


class FollowedRuns:
    """Looks when it is asked to, and shows what the last look found; may be asked by several threads.

    One that hangs is waited for in its own thread, and none is begun meanwhile. One that fails is begun anew when
    asked next.

    look: what all runs say now, as `LiveRuns.samples` gives it. on_look: is told what each found, in its thread.
    on_notice: is told what is old or absent; from any thread. hold_s: how long the last answer is shown while the next
    one is late. late_s: see LATE_S. pause_s: see PAUSE_S. clock_ns: never set back.
    """

    def __init__(
        self,
        look: Callable[[], list[Owned]],
        *,
        on_notice: Callable[[str], None],
        on_look: Callable[[Sequence[Owned]], None] | None = None,
        hold_s: float = HOLD_S,
        late_s: float = LATE_S,
        pause_s: float = PAUSE_S,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._look = look
        self._on_notice, self._on_look = on_notice, on_look
        self._hold_s, self._late_s, self._pause_s = hold_s, late_s, pause_s
        self._clock_ns = clock_ns
        self._begun_ns: int | None = None
        self._last: _Look | None = None
        self._asking = threading.Lock()
        self._answerer = Answerer("runs", self._take)

    def ask(self) -> None:
        """Begin a look, unless one goes on or began just now; waits for nothing."""
        self._begin(self._pause_s)

    def fresh(self) -> list[Owned]:
        """What a look finds now; where it is late, what the last one found."""
        self._begin(0.0)
        if self._state() != "late":
            self._answerer.wait(self._late_s)
        return self.newest()

    def newest(self) -> list[Owned]:
        """What the last look found, which is nothing where it failed; nothing, too, where that is too old."""
        state, last = self._state(), self._last
        if last is None:
            return []
        is_held = state == "answering" or self._clock_ns() - last.at_ns <= round(self._hold_s * 1e9)
        return last.samples if is_held else []

    def samples(self) -> list[Owned]:
        """What the last look found, and what the agent has to say of its looking."""
        return [*self.newest(), *((sample, {}) for part in self._parts() for sample in told_of(part, self._clock_ns()))]

    def close(self) -> None:
        """Look no more; a look that hangs is left behind."""
        self._answerer.close(_CLOSE_S)

    def _begin(self, pause_s: float) -> None:
        with self._asking:
            if self._answerer.wait(0.0):
                now_ns = self._clock_ns()
                if self._begun_ns is None or now_ns - self._begun_ns >= round(pause_s * 1e9):
                    self._begun_ns = now_ns
                    self._answerer.ask()
        if self._state() == "late":
            self._on_notice(f"runs: their logs are not read within {self._late_s:g} s at times; what is shown is old")

    def _state(self) -> State:
        begun_ns = self._begun_ns
        is_over = begun_ns is None or self._clock_ns() - begun_ns <= round(self._late_s * 1e9)
        if not is_over and not self._answerer.wait(0.0):
            return "late"
        return "failed" if self._last is not None and self._last.has_failed else "answering"

    def _parts(self) -> list[Part]:
        """As of a collector; none before the first look began."""
        if self._begun_ns is None:
            return []
        last = self._last
        return [
            Part(
                name="runs",
                state=self._state(),
                samples=[],
                at_ns=None if last is None else last.at_ns,
                read_s=0.0 if last is None else last.read_s,
                read_samples=0 if last is None else last.read_samples,
            )
        ]

    def _take(self) -> None:
        before, begun_ns = self._last, self._clock_ns()
        samples: list[Owned] = []
        has_failed = False
        try:
            samples = self._look()
        except Exception as error:  # noqa: BLE001  # Whatever ails the runs, the node is shown.
            has_failed = True
            self._on_notice(f"runs: {in_words(error)}; none is shown until a later look succeeds")
        at_ns = self._clock_ns()
        self._last = _Look(
            samples=samples,
            at_ns=at_ns,
            has_failed=has_failed,
            read_s=(0.0 if before is None else before.read_s) + (at_ns - begun_ns) / 1e9,
            read_samples=(0 if before is None else before.read_samples) + len(samples),
        )
        if not has_failed and self._on_look is not None:
            self._on_look(samples)
