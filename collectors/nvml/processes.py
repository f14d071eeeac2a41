"""Use of a GPU by each process: memory, share of the multiprocessors, and the process's owner."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pynvml import NVML_ERROR_NOT_FOUND

from collectors.host.process_owner import ProcessOwner
from collectors.metrics import gpu as gpu_metrics
from collectors.metrics.metric import Sample
from collectors.nvml.library import FieldSupportTable, Nvml, NVMLError, code_of
from collectors.nvml.plausible import ImplausibleAnswer, check_percent
from collectors.nvml.queries import GpuProcess

MOST_PROCESSES = 64
"""Maximum number of a GPU's processes, including those in its slices, with series: those with the most memory."""
_SHARES = "utilization by process"
_SAMPLED_S = 2.0
"""Time without a newer sample after which processes count as idle; the driver's sample period is at most 1 s."""

OwnerOf = Callable[[int], ProcessOwner]
"""Returns the owner of the process with this pid."""


class ProcessUse:
    """Reads the use of a GPU by its processes.

    is_crowded: the GPU had more than MOST_PROCESSES at once.

    Raises:
        GpuLost: from each reading; the GPU is gone.
    """

    def __init__(
        self,
        nvml: Nvml,
        handle: Any,
        support: FieldSupportTable,
        *,
        gpu: str,
        owner_of: OwnerOf,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.is_crowded = False
        self._nvml, self._handle, self._support = nvml, handle, support
        self._gpu, self._owner_of, self._clock_ns = gpu, owner_of, clock_ns
        # _newest: the driver's time of its newest sample; None before the first. _read_ns: when we read it. _ratios: by
        # pid, None for impossible values.
        self._newest: int | None = None
        self._read_ns = 0
        self._ratios: Mapping[int, float | None] | None = None

    def read(self, processes: Sequence[GpuProcess], *, is_split: bool) -> list[Sample]:
        """Return the samples of these processes of the GPU. is_split: under MIG, NVML reports memory alone."""
        if is_split or not processes:
            self._newest, self._ratios = None, None
        else:
            self._support.ask(_SHARES, self._read_ratios)
        memory: dict[tuple[str, int], int | None] = {}
        for process in processes:
            key = (process.instance or "", process.pid)
            before = memory.get(key, 0)
            memory[key] = None if before is None or process.memory_bytes is None else before + process.memory_bytes
        self.is_crowded = self.is_crowded or len(memory) > MOST_PROCESSES
        largest = sorted(memory.items(), key=lambda item: (-(item[1] or 0), item[0]))[:MOST_PROCESSES]
        # Sorted by slice and pid, since a change of order would make the node's log write a whole beat.
        return [
            sample
            for (part, pid), used in sorted(largest, key=lambda item: item[0])
            for sample in self._samples(part, pid, used)
        ]

    def _samples(self, part: str, pid: int, used: int | None) -> list[Sample]:
        owner = self._owner_of(pid)
        labels = {
            "gpu": self._gpu,
            "slice": part,
            "pid": str(pid),
            "process": owner.process,
            "run": "",
            "rank": "",
            "container_id": owner.container_id,
            "pod_uid": owner.pod_uid,
            "slurm_job": owner.slurm_job,
        }
        samples = [] if used is None else [gpu_metrics.GPU_PROCESS_MEMORY.at(used, **labels)]
        ratio = None if self._ratios is None else self._ratios.get(pid, 0.0)
        if ratio is not None:
            samples.append(gpu_metrics.GPU_PROCESS_UTILIZATION.at(ratio, **labels))
        return samples

    def _read_ratios(self) -> None:
        """Take the driver's samples since the last reading; discard the first, which covers an unknown time.

        The driver lists only processes that were not idle; the GPU's other processes have 0.
        """
        now_ns = self._clock_ns()
        try:
            answer = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, self._newest or 0)
        except NVMLError as error:
            if code_of(error) != NVML_ERROR_NOT_FOUND:
                self._ratios = None
                raise
            answer = []
        if not answer and self._newest is not None and now_ns - self._read_ns <= round(_SAMPLED_S * 1e9):
            return
        is_first, self._read_ns = self._newest is None, now_ns
        self._newest = max((self._newest or 0, *(utilization.timeStamp for utilization in answer)))
        ratios: dict[int, float | None] = {}
        for utilization in sorted(answer, key=lambda utilization: utilization.timeStamp):
            try:
                check_percent(utilization.smUtil)
            except ImplausibleAnswer as error:
                self._support.refused(_SHARES, error)
                ratios[utilization.pid] = None
            else:
                ratios[utilization.pid] = utilization.smUtil / 100
        self._ratios = None if is_first else ratios
