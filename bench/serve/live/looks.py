"""Reads the active runs in a separate thread, because a disk may hang, and shows the result of the last look."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from collectors.background import BackgroundTask
from collectors.files import in_words
from collectors.node.poller import HOLD_S, CollectorPoll, CollectorState
from collectors.node.watch import agent_samples
from collectors.prometheus.exposition import Owned

LATE_S = 1.0
"""How long a look may take before it is late."""
PAUSE_S = 0.5
"""Least time between two looks, however short the beat is, because each look reads from the disk."""
_CLOSE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """A look's result and time; at_ns is None before the first look. read_s, read_samples: totals of all looks."""

    samples: list[Owned] = field(default_factory=list)
    at_ns: int | None = None
    has_failed: bool = False
    read_s: float = 0.0
    read_samples: int = 0


class LiveRuns:
    """Looks at the runs on request, in a separate thread, and shows the last look's result; may be used by many
    threads.

    A look that hangs blocks the next one. After a look that failed, the next request starts another.

    read: returns the current samples of all runs, as `RunLogs.read` does. on_look: called with the result of each look,
    in its thread. on_notice: called if samples are old or absent, from any thread. hold_s: how long the last result is
    shown while the next one is late. late_s: see LATE_S. pause_s: see PAUSE_S. clock_ns: monotonic.
    """

    def __init__(
        self,
        read: Callable[[], list[Owned]],
        *,
        on_notice: Callable[[str], None],
        on_look: Callable[[Sequence[Owned]], None] | None = None,
        hold_s: float = HOLD_S,
        late_s: float = LATE_S,
        pause_s: float = PAUSE_S,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._read = read
        self._on_notice, self._on_look = on_notice, on_look
        self._hold_s, self._late_s, self._pause_s = hold_s, late_s, pause_s
        self._clock_ns = clock_ns
        self._begun_ns: int | None = None
        self._last = _Look()
        self._beginning = threading.Lock()
        self._task = BackgroundTask("runs", self._look)

    def ask(self) -> None:
        """Begin a look, unless one is running or began less than the pause ago. Does not wait."""
        self._begin(self._pause_s)

    def fresh(self) -> list[Owned]:
        """Return the result of a new look, or of the last one if the new one is late."""
        self._begin(0.0)
        if self._state() != "late":
            self._task.wait(self._late_s)
        return self._newest()

    def samples(self) -> list[Owned]:
        """Return the last look's result, and the agent's samples about looking, as for a node's collector."""
        if self._begun_ns is None:
            return []
        last = self._last
        looking = CollectorPoll(
            name="runs",
            state=self._state(),
            samples=[],
            at_ns=last.at_ns,
            read_s=last.read_s,
            read_samples=last.read_samples,
        )
        return [*self._newest(), *((sample, {}) for sample in agent_samples(looking, self._clock_ns()))]

    def close(self) -> None:
        """Stop looking; abandon a look that hangs."""
        self._task.close(_CLOSE_S)

    def _begin(self, pause_s: float) -> None:
        with self._beginning:
            if self._task.wait(0.0):
                now_ns = self._clock_ns()
                if self._begun_ns is None or now_ns - self._begun_ns >= round(pause_s * 1e9):
                    self._begun_ns = now_ns
                    self._task.ask()
        if self._state() == "late":
            self._on_notice(
                f"runs: reading their logs sometimes takes more than {self._late_s:g} s; the last reading is"
                " shown meanwhile"
            )

    def _state(self) -> CollectorState:
        begun_ns = self._begun_ns
        is_in_time = begun_ns is None or self._clock_ns() - begun_ns <= round(self._late_s * 1e9)
        if not is_in_time and not self._task.wait(0.0):
            return "late"
        return "failed" if self._last.has_failed else "answering"

    def _newest(self) -> list[Owned]:
        """Return the last look's result; nothing if it failed or is too old."""
        state, last = self._state(), self._last
        if last.at_ns is None:
            return []
        is_held = state == "answering" or self._clock_ns() - last.at_ns <= round(self._hold_s * 1e9)
        return last.samples if is_held else []

    def _look(self) -> None:
        before, begun_ns = self._last, self._clock_ns()
        samples: list[Owned] = []
        has_failed = False
        try:
            samples = self._read()
        except Exception as error:  # noqa: BLE001  # The node is shown whatever is wrong with the runs.
            has_failed = True
            self._on_notice(f"runs: {in_words(error)}; none is shown until a later read succeeds")
        at_ns = self._clock_ns()
        self._last = _Look(
            samples=samples,
            at_ns=at_ns,
            has_failed=has_failed,
            read_s=before.read_s + (at_ns - begun_ns) / 1e9,
            read_samples=before.read_samples + len(samples),
        )
        if not has_failed and self._on_look is not None:
            self._on_look(samples)
