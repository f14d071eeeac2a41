"""One GPU: everything that it is asked at a beat, in the thread that is its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal

from collectors.background import Answerer
from collectors.errors import in_words
from collectors.metrics import gpu as gpu_metrics
from collectors.metrics import gpu_health as gpu_health_metrics
from collectors.metrics.gpu import GPU_PCIE_LINK
from collectors.metrics.metric import Sample
from collectors.nvml.fields import FieldBatch, fields_of
from collectors.nvml.gpm import Profile
from collectors.nvml.library import RETRY_S, GpuLost, Nvml, NVMLError, Standings, Timed, says_forbidden, says_lost
from collectors.nvml.mig import Instance, find_instances, read_instance
from collectors.nvml.queries import QUESTIONS, UNKNOWN, GpuProcess, Identity, nvlinks, processes_on

SLOW_S = 10.0
"""How old an answer may be that rarely changes: limits, links, counts of errors, MIG's instances."""
_PROCESSES = "list of processes"
_UNNAMED = "in a container with PIDs of its own the driver does not name all processes, so they are not counted"
_Parts = tuple[str, frozenset[str]]
"""Whether MIG is on, and the UUIDs of its instances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a GPU answered. at_ns: by the monotonic clock, when it had. lost: NVML's words, where it is gone."""

    at_ns: int
    samples: list[Sample]
    processes: tuple[GpuProcess, ...] = ()
    lost: str | None = None


class Gpu:
    """Questions that were refused for good are not asked again; `standings` knows which, and what answers cost.

    Slow answers are repeated between the readings that ask for them.
    names_processes: whether the driver names all of them to this process.
    is_changed: MIG was switched, or split it otherwise; what it answers is another thing, and it is best found anew.
    timed: the functions that were called, with their time.

    Raises:
        NVMLError: the GPU cannot be found, or is gone.
        GpuLost: it went as its links were counted.
    """

    def __init__(
        self,
        nvml: Nvml,
        index: int,
        *,
        driver: str,
        cuda: str,
        per_link: bool,
        names_processes: bool = True,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.label = str(index)
        self.timed = Timed(nvml, clock_ns=clock_ns)
        self.standings = Standings(self.label, clock_ns=clock_ns)
        self._nvml = self.timed.nvml
        self.handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        self.uuid = self._nvml.nvmlDeviceGetUUID(self.handle)
        self._clock_ns = clock_ns
        self._identity = Identity(
            self._nvml, self.handle, self.standings, gpu=self.label, uuid=self.uuid, driver=driver, cuda=cuda
        )
        links = self.standings.ask("NVLinks", partial(nvlinks, self._nvml, self.handle)) if per_link else None
        fields = fields_of(driver, per_link=len(links or ()))
        self._batch = FieldBatch(self._nvml, self.handle, self.label, fields, self.standings, clock_ns=clock_ns)
        self._profile = Profile(self._nvml, self.handle, self.label, self.standings, clock_ns=clock_ns)
        self._names_processes = names_processes
        self._instances: tuple[Instance, ...] = ()
        self._parts: _Parts | None = None
        self.is_changed = False
        self._slow: list[Sample] = []
        self._slow_due_ns = clock_ns()
        self._link: float | None = None

    def read(self) -> Reading:
        """All that the GPU answers now, or that it is lost; never a half."""
        try:
            samples, processes = self._read()
        except GpuLost as error:
            return Reading(at_ns=self._clock_ns(), samples=[], lost=str(error))
        except NVMLError as error:
            if not says_lost(error):
                raise
            return Reading(at_ns=self._clock_ns(), samples=[], lost=str(error))
        return Reading(at_ns=self._clock_ns(), samples=samples, processes=processes)

    @property
    def is_split(self) -> bool:
        """By MIG, into instances."""
        return bool(self._instances)

    def close(self) -> None:
        """Give back what NVML lent."""
        self._profile.close()

    def _read(self) -> tuple[list[Sample], tuple[GpuProcess, ...]]:
        now_ns = self._clock_ns()
        is_slow = now_ns >= self._slow_due_ns
        quick, slow = self._questions(is_slow)
        self._link = _link_at_most(slow) or self._link
        seen = self._profile.read()
        quick_fields, slow_fields = self._batch.read(is_slow=is_slow, rates=seen.pcie_bytes_per_second, link=self._link)
        if is_slow:
            found = self.standings.ask("MIG instances", partial(find_instances, self._nvml, self.handle))
            self._instances = self._instances if found is None else found
            gpu_metrics = self._identity.read()
            self._slow = [gpu_metrics, *slow, *slow_fields]
            parts = (gpu_metrics.labels["mig"], frozenset(instance.uuid for instance in self._instances))
            if parts[0] != UNKNOWN:
                self.is_changed = self.is_changed or self._parts not in {None, parts}
                self._parts = parts
            self._slow_due_ns = now_ns + round(SLOW_S * 1e9)
        tasks, processes = self._processes()
        return [*self._slow, *quick, *quick_fields, *seen.samples, *tasks], processes

    def _questions(self, is_slow: bool) -> tuple[list[Sample], list[Sample]]:
        quick: list[Sample] = []
        slow: list[Sample] = []
        for question in QUESTIONS:
            if is_slow or not question.is_slow:
                ask = partial(question.read, self._nvml, self.handle, self.label)
                (slow if question.is_slow else quick).extend(self.standings.ask(question.name, ask) or ())
        return quick, slow

    def _processes(self) -> tuple[list[Sample], tuple[GpuProcess, ...]]:
        """Counts, and who they are; of a GPU that MIG split, those of its instances, and no sum if one is not told."""
        samples: list[Sample] = []
        lists: list[tuple[GpuProcess, ...] | None] = []
        for instance in self._instances:
            of_instance, processes = read_instance(self._nvml, instance, self.standings, gpu=self.label)
            if not self._names_processes:
                of_instance = [sample for sample in of_instance if sample.metric != gpu_metrics.GPU_INSTANCE_TASKS.name]
            samples += of_instance
            lists.append(processes)
        if not self._instances:
            ask = partial(processes_on, self._nvml, self.handle, gpu=self.label, uuid=self.uuid)
            lists.append(self.standings.ask(_PROCESSES, ask))
        found = tuple(process for processes in lists for process in processes or ())
        if not self._names_processes:
            self.standings.doubted(_PROCESSES, _UNNAMED)
        elif None not in lists:
            samples.append(gpu_metrics.GPU_TASKS.at(len({process.pid for process in found}), gpu=self.label))
        return samples, found


def _link_at_most(samples: list[Sample]) -> float | None:
    """What the PCIe link can carry in one direction, in bytes per second."""
    of_link = (one for one in samples if one.metric == GPU_PCIE_LINK.name and one.labels["link"] == "maximum")
    return next((one.value for one in of_link), None)


# One GPU as it is watched: found, asked, lost and found again, all of it in a thread of its own.

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
            gpu_metrics.GPU_STATE.at(1, gpu=self.label, state=self.state),
            gpu_health_metrics.GPU_MISSED.at(self.missed, gpu=self.label),
        ]
        if self._reading is None:
            return samples
        age_s = (self._clock_ns() - self._reading.at_ns) / 1e9
        samples.append(gpu_health_metrics.GPU_AGE_SECONDS.at(age_s, gpu=self.label))
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
