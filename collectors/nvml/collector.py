"""The NVML collector: reads all GPUs of a node, whether or not a run uses them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from collectors.background import BackgroundTask
from collectors.host.process_owner import NOBODY, read_owner
from collectors.metrics import gpu_health as gpu_health_metrics
from collectors.metrics.agent import IMPLAUSIBLE
from collectors.metrics.metric import Sample
from collectors.nvml.events import EventWatch
from collectors.nvml.gpu import PolledGpu, WatchedGpu
from collectors.nvml.inventory import cuda_version
from collectors.nvml.library import (
    RETRY_S,
    FieldSupport,
    Nvml,
    NVMLError,
    SupportState,
    Timed,
    installed_nvml,
    missing_driver,
)
from collectors.nvml.processes import MOST_PROCESSES, OwnerOf
from collectors.nvml.queries import UNKNOWN, GpuProcess, names_all_processes

# Refused questions, summarised in a few lines.

_REFUSED: dict[SupportState, str] = {
    "not supported": "driver {driver} does not report {questions}; they are left out of this run",
    "not permitted": "this process is not permitted to read {questions}; they are left out of this run",
    "not always": "sometimes no answer for {questions}; they are left out then",
}
_OF_SOME = ("NVLink", "GPM", "MIG", "NUMA", "pages", "rows")
"""Words in questions that some kinds of GPU never support: an A100 has no GPM, a PCIe card no NVLink and no MIG, few
GPUs are NUMA nodes, and new ones remap rows instead of retiring pages."""


def refusals(support: Iterable[FieldSupport], *, driver: str) -> list[str]:
    """Return one line for all GPUs that refuse the same questions for the same reason.

    Questions that some kinds of GPU never support are left out; `observatory doctor` lists them in its table of fields.
    """
    # GPUs 0 and 1 lack a and b: refused {(answer, "0"): [a, b], (answer, "1"): [a, b]},
    # then alike {(answer, (a, b)): ["0", "1"]}, which is one line.
    refused: dict[tuple[SupportState, str], list[str]] = {}
    for row in support:
        name = row.question
        is_missed = row.answer != "not supported" or not any(word in name for word in _OF_SOME)
        if row.answer in _REFUSED and is_missed:
            if row.answer == "not always":
                name += f" ({row.reason})"
            refused.setdefault((row.answer, row.gpu), []).append(name)
    alike: dict[tuple[SupportState, tuple[str, ...]], list[str]] = {}
    for (answer, gpu), questions in refused.items():
        alike.setdefault((answer, tuple(questions)), []).append(gpu)
    return [
        f"GPU{'s' if len(gpus) > 1 else ''} {', '.join(gpus)}: "
        + _REFUSED[answer].format(driver=driver, questions=", ".join(questions))
        for (answer, questions), gpus in alike.items()
    ]


def _of_gpus_alike(lines: Iterable[str]) -> list[str]:
    """Merge lines that are equal except for the GPU: "GPUs 0, 1: ..."."""
    gpus: dict[str, list[str]] = {}
    for line in lines:
        gpu, _, text = line.removeprefix("GPU ").partition(": ")
        gpus.setdefault(text, []).append(gpu)
    return [f"GPU{'s' if len(labels) > 1 else ''} {', '.join(labels)}: {text}" for text, labels in gpus.items()]


OPEN_S = 5.0
"""How long NVML may take to start and find its GPUs before polling begins without the missing ones."""
DEADLINE_S = 0.5
"""How long all GPUs together may take to answer at a beat."""
HOLD_S = 60.0
"""How long a late GPU's last answer is shown, with its age."""
_CLOSE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """The result of starting NVML. at_ns: when it started. reasons: why GPUs are missing."""

    at_ns: int
    watched: list[WatchedGpu] = field(default_factory=list)
    events: list[EventWatch] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


class NvmlCollector:
    """Reads all GPUs of a node, with NVML open until `close`. A node without a driver has no samples and one reason.

    Each GPU has threads of its own, which find it, poll it and listen to it, so a GPU that fails or hangs affects no
    other. A late GPU's last answer is shown with its age. (A driver that locks all its GPUs at once makes them all
    late.) A lost GPU is looked up again every RETRY_S; if no GPU is left, NVML itself is restarted, which finds a
    driver that was loaded or reloaded meanwhile. (Not covered: a driver of another version, for which this process
    would have to reload the library.)

    per_process: also read each process's use. owner_of: see `OwnerOf`; by default from /proc, or nobody for a given
    NVML, whose processes may not be this node's. per_link: also read the bytes of each NVLink. reads_costs: also report
    the time that functions and fields take. deadline_s: see DEADLINE_S; must be below the beat. hold_s: see HOLD_S;
    should be several beats. clock_ns: a monotonic clock.
    """

    name = "nvml"

    def __init__(
        self,
        nvml: Nvml | None = None,
        *,
        per_process: bool = True,
        owner_of: OwnerOf | None = None,
        per_link: bool = False,
        reads_costs: bool = False,
        deadline_s: float = DEADLINE_S,
        hold_s: float = HOLD_S,
        open_s: float = OPEN_S,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._nvml = installed_nvml() if nvml is None else nvml
        self._names_processes = nvml is not None or names_all_processes()
        if owner_of is None:
            owner_of = read_owner if nvml is None else lambda pid: NOBODY
        self._owner_of = owner_of if per_process else None
        self._per_link, self._reads_costs = per_link, reads_costs
        self._deadline_s, self._hold_s, self._open_s = deadline_s, hold_s, open_s
        self._clock_ns = clock_ns
        self._timed = Timed(self._nvml, clock_ns=clock_ns)
        self._is_begun = False
        self._driver = self._cuda = ""
        self._opening: BackgroundTask[_Opened] = BackgroundTask("nvml-open", self._open)
        self._opening.ask()
        self._await_opened()

    @property
    def absent(self) -> tuple[str, ...]:
        """The GPUs and fields that do not answer, each with its reason."""
        opened = self._opening.latest
        if opened is None:
            return (
                f"NVML does not start: no answer within {self._open_s:g} s; samples of GPUs are left out until it does",
            )
        events = _of_gpus_alike([events.reason for events in opened.events if events.reason is not None])
        gpus = [watched.gpu for watched in opened.watched if watched.gpu is not None]
        split = [
            f"GPU {gpu.label}: split by MIG; NVML reports no utilization of the GPU, an instance or a process"
            for gpu in gpus
            if gpu.is_split
        ]
        crowded = [
            f"GPU {gpu.label}: sometimes more than {MOST_PROCESSES} processes compute on it; only the {MOST_PROCESSES}"
            " with the most memory have series of their own then"
            for gpu in gpus
            if gpu.is_crowded
        ]
        refused = refusals(self.support(), driver=self._driver)
        own = [reason for watched in opened.watched for reason in watched.reasons]
        return tuple(dict.fromkeys([*opened.reasons, *events, *split, *crowded, *refused, *own]))

    def read(self) -> list[Sample]:
        """Return each GPU's current or last answer, and the metrics of the reading itself."""
        before = self._opening.latest
        is_due = before is not None and self._clock_ns() - before.at_ns >= round(RETRY_S * 1e9)
        if before is not None and is_due and all(watched.is_gone for watched in before.watched):
            self._opening.ask()
        is_open = self._opening.wait(0.0)
        opened = self._opening.latest
        if opened is None or not opened.watched:
            return []
        if is_open:
            for watched in opened.watched:
                watched.ask()
            until_ns = self._clock_ns() + round(self._deadline_s * 1e9)
            for watched in opened.watched:
                watched.settle((until_ns - self._clock_ns()) / 1e9)
        return [
            *(sample for watched in opened.watched for sample in watched.samples()),
            *(sample for events in opened.events for sample in events.samples()),
            *self._implausible(opened),
            *(self._costs(opened) if self._reads_costs else ()),
        ]

    def processes(self) -> dict[int, tuple[GpuProcess, ...]]:
        """Return the GPUs or MIG instances that each process computes on, by pid, as last read."""
        by_pid: dict[int, tuple[GpuProcess, ...]] = {}
        for watched in self._watched():
            answer = watched.reading
            for process in () if answer is None else answer.processes:
                by_pid[process.pid] = (*by_pid.get(process.pid, ()), process)
        return by_pid

    @property
    def fields_requested(self) -> int:
        """Number of fields, GPM metrics and single values requested from GPUs so far."""
        return sum(watched.gpu.timed.requested for watched in self._watched() if watched.gpu is not None)

    def support(self) -> tuple[FieldSupport, ...]:
        """Return the support of each question that was put to a GPU."""
        gpus = [watched.gpu for watched in self._watched()]
        return tuple(row for gpu in gpus if gpu is not None for row in gpu.support.all())

    def close(self) -> None:
        """End the threads and shut NVML down; a thread that hangs is abandoned, and NVML then stays open."""
        opened = self._opening.latest
        are_ended = [self._opening.close(_CLOSE_S)]
        if opened is not None:
            are_ended += _ended(opened.events)
            are_ended += [watched.close(_CLOSE_S) for watched in opened.watched]
        if all(are_ended) and self._is_begun:
            with suppress(NVMLError):
                self._nvml.nvmlShutdown()

    def _watched(self) -> list[WatchedGpu]:
        return [] if self._opening.latest is None else self._opening.latest.watched

    def _await_opened(self) -> None:
        until_ns = self._clock_ns() + round(self._open_s * 1e9)
        self._opening.wait(self._open_s)
        opened = self._opening.latest
        if opened is None:
            return
        for watched in opened.watched:
            watched.ask()
        for watched, events in zip(opened.watched, opened.events, strict=True):
            watched.await_found((until_ns - self._clock_ns()) / 1e9)
            events.await_begun((until_ns - self._clock_ns()) / 1e9)

    def _open(self) -> _Opened:
        before = self._opening.latest or _Opened(at_ns=0)
        count, reasons = 0, list[str]()
        try:
            count = self._begin(before)
            if count == 0:
                reasons = [f"NVML: driver {self._driver} shows no GPU; samples of GPUs are left out of this run"]
        except NVMLError as error:
            missing = missing_driver(error)
            reasons = [
                f"NVML does not start: {error}; samples of GPUs are left out of this run"
                if missing is None
                else f"no NVIDIA driver: {missing}"
            ]
        new = range(len(before.watched), count)
        events = [*before.events, *(EventWatch(self._nvml, index, clock_ns=self._clock_ns) for index in new)]
        for listener in events:
            listener.start()
        return _Opened(
            at_ns=self._clock_ns(),
            watched=[
                *before.watched,
                *(WatchedGpu(index, self._find, hold_s=self._hold_s, clock_ns=self._clock_ns) for index in new),
            ],
            events=events,
            reasons=reasons,
        )

    def _begin(self, before: _Opened) -> int:
        """Start NVML and return its number of GPUs. If it is running and nothing hangs, shut it down first."""
        nvml = self._timed.nvml
        if self._is_begun and all(_ended(before.events)):
            with suppress(NVMLError):
                nvml.nvmlShutdown()
            self._is_begun = False
        if not self._is_begun:
            nvml.nvmlInit()
            self._is_begun = True
        self._driver, self._cuda = nvml.nvmlSystemGetDriverVersion(), UNKNOWN
        with suppress(NVMLError):
            self._cuda = cuda_version(nvml)
        return nvml.nvmlDeviceGetCount()

    def _find(self, index: int) -> PolledGpu:
        return PolledGpu(
            self._nvml,
            index,
            driver=self._driver,
            cuda=self._cuda,
            per_link=self._per_link,
            names_processes=self._names_processes,
            owner_of=self._owner_of,
            clock_ns=self._clock_ns,
        )

    def _implausible(self, opened: _Opened) -> list[Sample]:
        counts = Counter[str]()
        for watched in opened.watched:
            if watched.gpu is not None:
                counts.update(watched.gpu.support.implausible)
        counts["XID"] += sum(events.implausible for events in opened.events)
        return [
            IMPLAUSIBLE.at(count, source=self.name, question=name) for name, count in sorted(counts.items()) if count
        ]

    def _costs(self, opened: _Opened) -> list[Sample]:
        seconds: dict[str, float] = {}
        calls: dict[str, int] = {}
        of_gpus = [watched.gpu.timed for watched in opened.watched if watched.gpu is not None]
        for timed in (self._timed, *of_gpus, *(listener.timed for listener in opened.events)):
            for function, spent_s in dict(timed.seconds).items():
                seconds[function] = seconds.get(function, 0.0) + spent_s
                calls[function] = calls.get(function, 0) + timed.calls[function]
        slowest: dict[str, float] = {}
        for row in self.support():
            if row.cost_s is not None:
                slowest[row.question] = max(slowest.get(row.question, 0.0), row.cost_s)
        return [
            *(
                gpu_health_metrics.GPU_CALL_SECONDS.at(spent_s, function=function)
                for function, spent_s in seconds.items()
            ),
            *(gpu_health_metrics.GPU_CALLS.at(count, function=function) for function, count in calls.items()),
            *(gpu_health_metrics.GPU_FIELD_SECONDS.at(cost_s, field=name) for name, cost_s in slowest.items()),
        ]


def _ended(events: list[EventWatch]) -> list[bool]:
    """Request the end of all, then wait for each; return whether each ended."""
    for listener in events:
        listener.end()
    return [listener.close() for listener in events]
