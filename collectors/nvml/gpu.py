"""One GPU: everything that it is asked at a beat, in the thread that is its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from collectors.catalogue import gpu as use
from collectors.catalogue.gpu_identity import GPU_PCIE_LINK
from collectors.metric import Sample
from collectors.nvml.batch import FieldBatch
from collectors.nvml.fields import fields_of
from collectors.nvml.identity import UNKNOWN, Identity, nvlinks
from collectors.nvml.instances import Instance, find_instances, read_instance
from collectors.nvml.library import Nvml, NVMLError, Timed, says_lost
from collectors.nvml.processes import GpuProcess, processes_on
from collectors.nvml.profile import Profile
from collectors.nvml.questions import QUESTIONS
from collectors.nvml.standing import GpuLost, Standings

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
            identity = self._identity.read()
            self._slow = [identity, *slow, *slow_fields]
            parts = (identity.labels["mig"], frozenset(instance.uuid for instance in self._instances))
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
                of_instance = [sample for sample in of_instance if sample.metric != use.GPU_INSTANCE_TASKS.name]
            samples += of_instance
            lists.append(processes)
        if not self._instances:
            ask = partial(processes_on, self._nvml, self.handle, gpu=self.label, uuid=self.uuid)
            lists.append(self.standings.ask(_PROCESSES, ask))
        found = tuple(process for processes in lists for process in processes or ())
        if not self._names_processes:
            self.standings.doubted(_PROCESSES, _UNNAMED)
        elif None not in lists:
            samples.append(use.GPU_TASKS.at(len({process.pid for process in found}), gpu=self.label))
        return samples, found


def _link_at_most(samples: list[Sample]) -> float | None:
    """What the PCIe link can carry in one direction, in bytes per second."""
    of_link = (one for one in samples if one.metric == GPU_PCIE_LINK.name and one.labels["link"] == "maximum")
    return next((one.value for one in of_link), None)
