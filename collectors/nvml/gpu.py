"""One GPU: everything that it is asked at a beat, in the thread that is its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from collectors.catalogue import gpu as use
from collectors.metric import Sample
from collectors.nvml.batch import FieldBatch
from collectors.nvml.fields import fields_of
from collectors.nvml.identity import identify, nvlinks
from collectors.nvml.instances import Instance, find_instances, read_instance
from collectors.nvml.library import Nvml, NVMLError, Timed, says_lost
from collectors.nvml.processes import GpuProcess, processes_on
from collectors.nvml.profile import Profile
from collectors.nvml.questions import QUESTIONS, Question
from collectors.nvml.standing import GpuLost, Standings

SLOW_S = 10.0
"""How old an answer may be that rarely changes: limits, links, counts of errors, MIG's instances."""


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
    timed: the functions that were called, with their time.

    Raises:
        NVMLError: the GPU cannot be found, or is gone.
    """

    def __init__(
        self,
        nvml: Nvml,
        index: int,
        *,
        driver: str,
        cuda: str,
        per_link: bool,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.label = str(index)
        self.timed = Timed(nvml, clock_ns=clock_ns)
        self.standings = Standings(self.label)
        self._nvml = self.timed.nvml
        self.handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        self.uuid = self._nvml.nvmlDeviceGetUUID(self.handle)
        self._driver, self._cuda = driver, cuda
        self._clock_ns = clock_ns
        links = len(nvlinks(self._nvml, self.handle)) if per_link else 0
        fields = fields_of(driver, per_link=links)
        self._batch = FieldBatch(self._nvml, self.handle, self.label, fields, self.standings)
        self._profile = Profile(self._nvml, self.handle, self.label, self.standings, clock_ns=clock_ns)
        self._instances: tuple[Instance, ...] = ()
        self._slow: list[Sample] = []
        self._slow_due_ns = clock_ns()
        self._read_ns: int | None = None

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
        seen = self._profile.read()
        elapsed_s = 0.0 if self._read_ns is None else (now_ns - self._read_ns) / 1e9
        expected = {direction: rate * elapsed_s for direction, rate in seen.pcie_bytes_per_second.items()}
        quick_fields, slow_fields = self._batch.read(is_slow=is_slow, expected=expected)
        self._read_ns = now_ns
        if is_slow:
            info = identify(self._nvml, self.handle, gpu=self.label, driver=self._driver, cuda=self._cuda)
            self._instances = find_instances(self._nvml, self.handle)
            self._slow = [info, *slow, *slow_fields]
            self._slow_due_ns = now_ns + round(SLOW_S * 1e9)
        tasks, processes = self._processes()
        return [*self._slow, *quick, *quick_fields, *seen.samples, *tasks], processes

    def _questions(self, is_slow: bool) -> tuple[list[Sample], list[Sample]]:
        quick: list[Sample] = []
        slow: list[Sample] = []
        for question in QUESTIONS:
            if is_slow or not question.is_slow:
                (slow if question.is_slow else quick).extend(self._ask(question))
        return quick, slow

    def _ask(self, question: Question) -> list[Sample]:
        if not self.standings.is_asked(question.name):
            return []
        begun_ns = self._clock_ns()
        try:
            samples = question.read(self._nvml, self.handle, self.label)
        except NVMLError as error:
            self.standings.refused(question.name, error)
            return []
        self.standings.answered(question.name, (self._clock_ns() - begun_ns) / 1e9)
        return samples

    def _processes(self) -> tuple[list[Sample], tuple[GpuProcess, ...]]:
        """Counts, and who they are; of a GPU that MIG split, those of its instances."""
        samples: list[Sample] = []
        found: tuple[GpuProcess, ...] = ()
        for instance in self._instances:
            of_instance, processes = read_instance(self._nvml, instance, gpu=self.label)
            samples += of_instance
            found += processes
        name = "list of processes"
        if not self._instances and self.standings.is_asked(name):
            begun_ns = self._clock_ns()
            try:
                found = processes_on(self._nvml, self.handle, gpu=self.label, uuid=self.uuid)
            except NVMLError as error:
                self.standings.refused(name, error)
                return samples, ()
            self.standings.answered(name, (self._clock_ns() - begun_ns) / 1e9)
        if self._instances or self.standings.is_asked(name):
            samples.append(use.GPU_TASKS.at(len({process.pid for process in found}), gpu=self.label))
        return samples, found
