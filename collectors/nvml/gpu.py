"""Polling of a GPU: its answers at a beat, and the thread that finds it, polls it, and finds it again after a loss."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal

from pynvml import nvmlMemory_v2

from collectors.background import BackgroundTask
from collectors.files import in_words
from collectors.host.process_owner import NOBODY
from collectors.metrics import gpu as gpu_metrics
from collectors.metrics import gpu_health as gpu_health_metrics
from collectors.metrics.gpu import GPU_PCIE_LINK
from collectors.metrics.metric import Sample
from collectors.nvml.fields import FieldBatch, fields_of
from collectors.nvml.gpm import Profile
from collectors.nvml.inventory import NvmlDevice, gpu_at, instances_of
from collectors.nvml.library import (
    RETRY_S,
    FieldSupportTable,
    GpuLost,
    Nvml,
    NVMLError,
    Timed,
    says_forbidden,
    says_lost,
)
from collectors.nvml.plausible import related
from collectors.nvml.processes import OwnerOf, ProcessUse
from collectors.nvml.queries import QUESTIONS, UNKNOWN, GpuProcess, Identity, nvlinks, processes_on

SLOW_S = 10.0
"""Maximum age of answers that rarely change: limits, links, counts of errors, MIG instances."""
_PROCESSES = "list of processes"
_UNNAMED = "in a container with its own PIDs the driver does not name all processes, so they are left out"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAnswer:
    """A GPU's answer. at_ns: when it was complete, on the monotonic clock. lost: NVML's message if the GPU is gone."""

    at_ns: int
    samples: list[Sample]
    processes: tuple[GpuProcess, ...] = ()
    lost: str | None = None


class PolledGpu:
    """Asks a GPU all questions that it has not refused for good; `support` lists them with the cost of their answers.

    Slow questions are asked every SLOW_S; readings in between repeat their answers.
    names_processes: whether the driver lists all computing processes to this process. owner_of: see `OwnerOf`; None if
    processes get no series of their own.
    is_changed: MIG was switched on or off, or its instances changed, so the GPU must be looked up again.
    timed: the called functions, with their time.

    Raises:
        NVMLError: the GPU cannot be found, or is gone.
        GpuLost: the GPU was lost while its links were counted.
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
        owner_of: OwnerOf | None = lambda pid: NOBODY,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.label = str(index)
        self.timed = Timed(nvml, clock_ns=clock_ns)
        self.support = FieldSupportTable(self.label, clock_ns=clock_ns)
        self._nvml = self.timed.nvml
        self._gpu = gpu_at(self._nvml, index)
        self.handle, self.uuid = self._gpu.handle, self._gpu.uuid
        self._clock_ns = clock_ns
        self._identity = Identity(
            self._nvml, self.handle, self.support, gpu=self.label, uuid=self.uuid, driver=driver, cuda=cuda
        )
        links = self.support.ask("NVLinks", partial(nvlinks, self._nvml, self.handle)) if per_link else None
        fields = fields_of(driver, per_link=len(links or ()))
        self._batch = FieldBatch(self._nvml, self.handle, self.label, fields, self.support, clock_ns=clock_ns)
        self._profile = Profile(self._nvml, self.handle, self.label, self.support, clock_ns=clock_ns)
        self._names_processes = names_processes
        self._uses: ProcessUse | None = None
        if names_processes and owner_of is not None:
            self._uses = ProcessUse(
                self._nvml, self.handle, self.support, gpu=self.label, owner_of=owner_of, clock_ns=clock_ns
            )
        self._instances: tuple[NvmlDevice, ...] = ()
        # Whether MIG is on, and the UUIDs of its instances.
        self._mig: tuple[str, frozenset[str]] | None = None
        self.is_changed = False
        self._slow: list[Sample] = []
        self._slow_due_ns = clock_ns()
        self._link: float | None = None

    def read(self) -> GpuAnswer:
        """Return a complete reading of the GPU, or one that reports its loss."""
        try:
            samples, processes = self._read()
        except GpuLost as error:
            return GpuAnswer(at_ns=self._clock_ns(), samples=[], lost=str(error))
        except NVMLError as error:
            if not says_lost(error):
                raise
            return GpuAnswer(at_ns=self._clock_ns(), samples=[], lost=str(error))
        return GpuAnswer(at_ns=self._clock_ns(), samples=samples, processes=processes)

    @property
    def is_split(self) -> bool:
        """Whether MIG splits the GPU into instances."""
        return bool(self._instances)

    @property
    def is_crowded(self) -> bool:
        """Whether the GPU ever had so many processes at once that some got no series of their own."""
        return self._uses is not None and self._uses.is_crowded

    def close(self) -> None:
        """Free what NVML allocated."""
        self._profile.close()

    def _read(self) -> tuple[list[Sample], tuple[GpuProcess, ...]]:
        now_ns = self._clock_ns()
        is_slow = now_ns >= self._slow_due_ns
        quick: list[Sample] = []
        slow: list[Sample] = []
        for question in QUESTIONS:
            if is_slow or not question.is_slow:
                ask = partial(question.read, self._nvml, self.handle, self.label)
                (slow if question.is_slow else quick).extend(self.support.ask(question.name, ask) or ())
        # The link is a slow answer, so remember it in between.
        links = (
            sample for sample in slow if sample.metric == GPU_PCIE_LINK.name and sample.labels["link"] == "maximum"
        )
        self._link = next((sample.value for sample in links), None) or self._link
        gpm = self._profile.read()
        quick_fields, slow_fields = self._batch.read(is_slow=is_slow, rates=gpm.pcie_bytes_per_second, link=self._link)
        if is_slow:
            instances = self.support.ask("MIG instances", lambda: instances_of(self._nvml, self._gpu) or ())
            self._instances = self._instances if instances is None else instances
            info = self._identity.read()
            self._slow = related([info, *slow, *slow_fields], (), self.support.refused)
            mig = (info.labels["mig"], frozenset(instance.uuid for instance in self._instances))
            if mig[0] != UNKNOWN:
                self.is_changed = self.is_changed or self._mig not in {None, mig}
                self._mig = mig
            self._slow_due_ns = now_ns + round(SLOW_S * 1e9)
        tasks, processes = self._processes()
        quick = related([*quick, *quick_fields, *gpm.samples], self._slow, self.support.refused)
        return [*self._slow, *quick, *tasks], processes

    def _processes(self) -> tuple[list[Sample], tuple[GpuProcess, ...]]:
        """Return the samples and the list of processes; for a split GPU, those of its instances.

        The GPU's count is absent if an instance does not list its processes.
        """
        samples: list[Sample] = []
        lists: list[tuple[GpuProcess, ...] | None] = []
        for instance in self._instances:
            of_instance, processes = _read_instance(self._nvml, instance, self.support)
            if not self._names_processes:
                of_instance = [sample for sample in of_instance if sample.metric != gpu_metrics.GPU_INSTANCE_TASKS.name]
            samples += of_instance
            lists.append(processes)
        if not self._instances:
            ask = partial(processes_on, self._nvml, self.handle, gpu=self.label, uuid=self.uuid)
            lists.append(self.support.ask(_PROCESSES, ask))
        on_gpu = tuple(process for processes in lists for process in processes or ())
        if not self._names_processes:
            self.support.doubted(_PROCESSES, _UNNAMED)
        elif None not in lists:
            samples.append(gpu_metrics.GPU_TASKS.at(len({process.pid for process in on_gpu}), gpu=self.label))
        if self._uses is not None:
            samples += self._uses.read(on_gpu, is_split=self.is_split)
        return samples, on_gpu


def _read_instance(
    nvml: Nvml, instance: NvmlDevice, support: FieldSupportTable
) -> tuple[list[Sample], tuple[GpuProcess, ...] | None]:
    """Return the samples and processes of a MIG instance; processes are None if the driver refuses to list them.

    Memory and processes are separate questions: without root, the driver may answer one and refuse the other. NVML
    reports no utilization for an instance or a split GPU.

    Raises:
        GpuLost: the GPU is gone.
    """
    gpu = str(instance.index)
    labels = {"gpu": gpu, "slice": instance.instance}
    samples = [gpu_metrics.GPU_INSTANCE.at(1, **labels, uuid=instance.uuid, name=instance.name or UNKNOWN)]
    memory = support.ask(
        f"memory of slice {instance.instance}",
        lambda: nvml.nvmlDeviceGetMemoryInfo(instance.handle, version=nvmlMemory_v2),
    )
    if memory is not None:
        samples += [
            gpu_metrics.GPU_INSTANCE_MEMORY_USED_BYTES.at(memory.total - memory.free - memory.reserved, **labels),
            gpu_metrics.GPU_INSTANCE_MEMORY_BYTES.at(memory.total, **labels),
        ]
    processes = support.ask(
        f"processes of slice {instance.instance}",
        lambda: processes_on(nvml, instance.handle, gpu=gpu, uuid=instance.uuid, instance=instance.instance),
    )
    if processes is not None:
        samples.append(gpu_metrics.GPU_INSTANCE_TASKS.at(len({process.pid for process in processes}), **labels))
    return samples, processes


# A watched GPU, with a thread that finds it, polls it, and finds it again after a loss.

GpuState = Literal["answering", "late", "lost", "failed", "forbidden"]
"""failed: through a bug of ours. forbidden: this process may not access the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Missed:
    """The GPU was not found or gave no complete answer; the next beat retries."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _GivenUp:
    """The GPU is not polled for RETRY_S, then looked up again."""

    state: Literal["lost", "failed", "forbidden"]
    reason: str


_Outcome = PolledGpu | GpuAnswer | _Missed | _GivenUp
"""Result of a turn of the thread; a `PolledGpu` was just found, and the next beat polls it."""


class WatchedGpu:
    """A GPU and the thread that finds and polls it; its initial state is late.

    A turn of the thread either finds the GPU or polls it. After a GPU is late, beats do not wait for it until it has
    answered. A lost GPU stays lost until it is found again, which no beat waits for.
    `_look` and its callees run in that thread; everything else must be called from a single other thread.

    find: returns the GPU at an index, or raises NVML's refusal. hold_s: how long a late GPU's last answer is shown.
    gpu: as last found. missed: number of beats at which it was late.
    """

    def __init__(
        self,
        index: int,
        find: Callable[[int], PolledGpu],
        *,
        hold_s: float,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.label = str(index)
        self.state: GpuState = "late"
        self.gpu: PolledGpu | None = None
        self.missed = 0
        self._index, self._find = index, find
        self._hold_s, self._clock_ns = hold_s, clock_ns
        self._reason: str | None = None
        self._misses: dict[str, None] = {}
        self._reading: GpuAnswer | None = None
        self._is_waited_for = True
        self._due_ns: int | None = None
        self._gpu: PolledGpu | None = None
        self._last_outcome: _Outcome | None = None
        self._answerer: BackgroundTask[_Outcome] = BackgroundTask(f"nvml-gpu{index}", self._look)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the GPU's samples are missing or old."""
        return (*self._misses, *(() if self._reason is None else (f"GPU {self.label}: {self._reason}",)))

    @property
    def reading(self) -> GpuAnswer | None:
        """The last answer; None for a GPU that was never found, or is lost."""
        return self._reading

    @property
    def is_gone(self) -> bool:
        """Whether the GPU is lost and due to be looked up again."""
        return self.state == "lost" and self._due_ns is not None and self._clock_ns() >= self._due_ns

    def ask(self) -> None:
        """Start a turn of the thread, unless one is running or the GPU is within its RETRY_S pause."""
        self._take(0.0)
        if self._due_ns is None or self._clock_ns() >= self._due_ns:
            self._answerer.ask()

    def settle(self, left_s: float) -> None:
        """Take the answer if it arrives within `left_s`, else count a miss; call this at most once a beat."""
        if self._is_waited_for and not self._take(left_s):
            self._miss("no answer by the deadline")
            self._is_waited_for = False
        if self.state == "late":
            self.missed += 1

    def await_found(self, left_s: float) -> None:
        """Wait at most `left_s` until the first lookup ends; the state does not change if it takes longer."""
        self._take(left_s)

    def samples(self) -> list[Sample]:
        """Return the state, and the last answer unless it is too old; nothing for a forbidden GPU."""
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
        """End the thread within `timeout_s` and free what NVML allocated; return whether the thread ended."""
        if not self._answerer.close(timeout_s):
            return False
        self._give_back()
        return True

    def _take(self, left_s: float) -> bool:
        if not self._answerer.wait(left_s):
            return False
        outcome = self._answerer.latest
        if outcome is None or outcome is self._last_outcome:
            return True
        self._last_outcome = outcome
        # Given up: pause for RETRY_S. Missed: late, or pause again. Found: polled at the next beat.
        if isinstance(outcome, _GivenUp):
            self.state, self._reading = outcome.state, None
            self._reason = f"{outcome.reason}; its samples are left out until it is found again"
            self._leave_alone()
        elif isinstance(outcome, _Missed):
            if self._due_ns is None:
                self._miss(outcome.reason)
            else:
                self._leave_alone()
        elif isinstance(outcome, PolledGpu):
            if self.gpu is not None:
                outcome.timed.go_on_from(self.gpu.timed)
                outcome.support.implausible.update(self.gpu.support.implausible)
            self.gpu = outcome
            self._is_waited_for, self._due_ns = True, None
        else:
            self.state, self._reason, self._reading = "answering", None, outcome
            self._is_waited_for = True
        return True

    def _miss(self, reason: str) -> None:
        self.state, self._reason = "late", None
        self._misses.setdefault(f"GPU {self.label}: sometimes {reason}; its last answer is shown meanwhile")

    def _leave_alone(self) -> None:
        self._is_waited_for = False
        self._due_ns = self._clock_ns() + round(RETRY_S * 1e9)

    def _look(self) -> _Outcome:
        try:
            if self._gpu is None:
                self._gpu = self._find(self._index)
                return self._gpu
            answer = self._gpu.read()
        except GpuLost as error:
            return self._give_up("lost", str(error))
        except NVMLError as error:
            if says_lost(error):
                return self._give_up("lost", str(error))
            if self._gpu is None and says_forbidden(error):
                return self._give_up("forbidden", str(error))
            return _Missed(reason=f"no complete answer ({error})")
        except Exception as error:  # noqa: BLE001  # A failing GPU must not affect the others.
            return self._give_up("failed", in_words(error))
        if self._gpu.is_changed:
            self._give_back()
        return answer if answer.lost is None else self._give_up("lost", answer.lost)

    def _give_up(self, state: Literal["lost", "failed", "forbidden"], reason: str) -> _GivenUp:
        self._give_back()
        return _GivenUp(state=state, reason=reason)

    def _give_back(self) -> None:
        if self._gpu is not None:
            with suppress(NVMLError):  # A lost GPU refuses.
                self._gpu.close()
            self._gpu = None
