"""One GPU as it is watched: found, asked, lost and found again, all of it in a thread of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from collectors.catalogue import gpu_identity as identity
from collectors.catalogue import gpu_reading as reading
from collectors.error_words import in_words
from collectors.metric import Sample
from collectors.nvml.answering import Answerer
from collectors.nvml.gpu import Gpu, Reading
from collectors.nvml.library import RETRY_S, NVMLError, says_forbidden, says_lost
from collectors.nvml.standing import GpuLost

State = Literal["answering", "late", "lost", "failed", "forbidden"]
"""failed: by a mistake of ours. forbidden: this process may not look for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Missed:
    """It was not found, or gave no whole answer, and may at the next beat."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _GivenUp:
    """It is left alone for a while, and then looked for anew."""

    state: Literal["lost", "failed", "forbidden"]
    reason: str


_Outcome = Gpu | Reading | _Missed | _GivenUp
"""A GPU is what was looked for, and is asked at the next beat."""


class WatchedGpu:
    """A GPU that begins unknown and late. All but `_look` and what it calls is for one other thread.

    It is looked for and asked in turns; one that keeps its thread waiting is not waited for again until it has
    answered. One that is lost stays so until it is found again, which nobody waits for.

    find: gives the GPU at an index, or raises NVML's refusal. hold_s: how long the last answer of one that is late is
    shown.
    gpu: as last found. missed: beats without an answer while it was not lost.
    """

    def __init__(
        self,
        index: int,
        find: Callable[[int], Gpu],
        *,
        hold_s: float,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.label = str(index)
        self.state: State = "late"
        self.gpu: Gpu | None = None
        self.missed = 0
        self._index, self._find = index, find
        self._hold_s, self._clock_ns = hold_s, clock_ns
        self._reason: str | None = None
        self._misses: dict[str, None] = {}
        self._reading: Reading | None = None
        self._is_waited_for = True
        self._due_ns: int | None = None
        self._found: Gpu | None = None
        self._taken: _Outcome | None = None
        self._answerer: Answerer[_Outcome] = Answerer(f"nvml-gpu{index}", self._look)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is not shown, or not always."""
        return (*self._misses, *(() if self._reason is None else (f"GPU {self.label}: {self._reason}",)))

    @property
    def reading(self) -> Reading | None:
        """What it answered last; None of one that was never found, or is lost."""
        return self._reading

    @property
    def is_gone(self) -> bool:
        """It is lost, and has been left alone for long enough."""
        return self.state == "lost" and self._due_ns is not None and self._clock_ns() >= self._due_ns

    def ask(self) -> None:
        """Begin a question, unless the last one is not over or the GPU is left alone."""
        self._take(0.0)
        if self._due_ns is None or self._clock_ns() >= self._due_ns:
            self._answerer.ask()

    def settle(self, left_s: float) -> None:
        """Take the answer, if it is there in time; at most once a beat."""
        if self._is_waited_for and not self._take(left_s):
            self._miss("no answer by the deadline")
            self._is_waited_for = False
        if self.state == "late":
            self.missed += 1

    def await_found(self, left_s: float) -> None:
        """Wait until it has been looked for; without a verdict if that takes longer."""
        self._take(left_s)

    def samples(self) -> list[Sample]:
        """Its state, and what it answered last unless that is too old; nothing of one that may not be asked."""
        if self.state == "forbidden":
            return []
        samples = [
            identity.GPU_STATE.at(1, gpu=self.label, state=self.state),
            reading.GPU_MISSED.at(self.missed, gpu=self.label),
        ]
        if self._reading is None:
            return samples
        age_s = (self._clock_ns() - self._reading.at_ns) / 1e9
        samples.append(reading.GPU_AGE_SECONDS.at(age_s, gpu=self.label))
        return samples + self._reading.samples if age_s <= self._hold_s else samples

    def close(self, timeout_s: float) -> bool:
        """End the thread and give back what NVML lent; whether it ended, after at most so many seconds."""
        if not self._answerer.close(timeout_s):
            return False
        self._give_back()
        return True

    def _take(self, left_s: float) -> bool:
        if not self._answerer.wait(left_s):
            return False
        outcome = self._answerer.latest
        if outcome is None or outcome is self._taken:
            return True
        self._taken = outcome
        if isinstance(outcome, _GivenUp):
            self.state, self._reading = outcome.state, None
            self._reason = f"{outcome.reason}; its samples are left out until it is found again"
            self._leave_alone()
        elif isinstance(outcome, _Missed):
            if self._due_ns is None:
                self._miss(outcome.reason)
            else:
                self._leave_alone()
        elif isinstance(outcome, Gpu):
            if self.gpu is not None:
                outcome.timed.go_on_from(self.gpu.timed)
            self.gpu = outcome
            self._is_waited_for, self._due_ns = True, None
        else:
            self.state, self._reason, self._reading = "answering", None, outcome
            self._is_waited_for = True
        return True

    def _miss(self, reason: str) -> None:
        self.state, self._reason = "late", None
        self._misses.setdefault(f"GPU {self.label}: {reason} at times; what is shown then is old")

    def _leave_alone(self) -> None:
        self._is_waited_for = False
        self._due_ns = self._clock_ns() + round(RETRY_S * 1e9)

    def _look(self) -> _Outcome:
        try:
            if self._found is None:
                self._found = self._find(self._index)
                return self._found
            answer = self._found.read()
        except GpuLost as error:
            return self._give_up("lost", str(error))
        except NVMLError as error:
            if says_lost(error):
                return self._give_up("lost", str(error))
            if self._found is None and says_forbidden(error):
                return self._give_up("forbidden", str(error))
            return _Missed(reason=f"no whole answer ({error})")
        except Exception as error:  # noqa: BLE001  # Whatever ails one GPU, the others are read.
            return self._give_up("failed", in_words(error))
        if self._found.is_changed:
            self._give_back()
        return answer if answer.lost is None else self._give_up("lost", answer.lost)

    def _give_up(self, state: Literal["lost", "failed", "forbidden"], reason: str) -> _GivenUp:
        self._give_back()
        return _GivenUp(state=state, reason=reason)

    def _give_back(self) -> None:
        if self._found is not None:
            with suppress(NVMLError):  # Of a GPU that is lost.
                self._found.close()
            self._found = None
