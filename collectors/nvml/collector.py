"""The node's GPUs as NVML sees them: all of the node, whichever of them a run uses."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from collectors.catalogue import gpu_identity as identity
from collectors.catalogue import gpu_reading as reading
from collectors.metric import Sample
from collectors.nvml.answering import Answerer
from collectors.nvml.events import EventWatch
from collectors.nvml.gpu import Gpu, Reading
from collectors.nvml.identity import cuda_version
from collectors.nvml.library import Nvml, NVMLError, Timed, installed_nvml, missing_driver
from collectors.nvml.processes import GpuProcess
from collectors.nvml.refusals import refusals
from collectors.nvml.standing import Standing

OPEN_S = 5.0
"""How long NVML may take to start before the node is watched without it; it is taken in when it has started."""
DEADLINE_S = 0.5
"""How long the GPUs may take to answer at one beat, all of them together."""
HOLD_S = 60.0
"""How long the last answer of a GPU that is late is still shown, beside its age."""
_CLOSE_S = 1.0


@dataclass(slots=True, kw_only=True)
class _Watched:
    """A GPU and the thread that asks it. missed: beats at whose deadline it had not answered."""

    gpu: Gpu
    answerer: Answerer[Reading]
    missed: int = 0
    is_late: bool = False
    lost: str | None = None


@dataclass(slots=True, kw_only=True)
class _Opened:
    """What the start of NVML found. reasons: what it did not."""

    driver: str = ""
    watched: list[_Watched] = field(default_factory=list)
    events: EventWatch | None = None
    reasons: list[str] = field(default_factory=list)


class NvmlCollector:
    """Opens NVML for as long as the process lives. A node without a driver has no samples and one reason.

    Each GPU is asked in a thread of its own: one that fails is lost alone, and one that hangs is late alone, with the
    age of what is shown. (A driver that holds a lock over all its GPUs makes them all late.) A GPU that is late is
    not waited for again until it has answered. A GPU that is lost stays so until the next start.

    per_link: also the bytes of each NVLink. deadline_s: see DEADLINE_S; below the beat. clock_ns: never set back.
    """

    name = "nvml"

    def __init__(
        self,
        nvml: Nvml | None = None,
        *,
        per_link: bool = False,
        deadline_s: float = DEADLINE_S,
        open_s: float = OPEN_S,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._nvml = installed_nvml() if nvml is None else nvml
        self._per_link = per_link
        self._deadline_s = deadline_s
        self._clock_ns = clock_ns
        self._reasons: dict[str, None] = {}
        self._opening = Answerer("nvml-open", self._open)
        self._opening.ask()
        if not self._opening.wait(open_s):
            self._say(f"NVML does not start: no answer within {open_s:g} s; samples of GPUs are left out until then")

    @property
    def absent(self) -> tuple[str, ...]:
        """GPUs and fields that do not answer, each with its reason."""
        opened = self._opening.latest
        if opened is None:
            return tuple(self._reasons)
        events = [] if opened.events is None else opened.events.absent
        refused = refusals(self.standings(), driver=opened.driver)
        split = [
            f"GPU {one.gpu.label}: split by MIG; NVML tells utilization neither of the whole nor of an instance"
            for one in opened.watched
            if one.gpu.is_split
        ]
        return tuple(dict.fromkeys([*opened.reasons, *events, *split, *refused, *self._reasons]))

    def read(self) -> list[Sample]:
        """What each GPU answers now, or answered last, with what is known of the reading itself."""
        opened = self._opening.latest
        if opened is None:
            return []
        self._ask_all(opened.watched)
        samples = [sample for watched in opened.watched for sample in self._shown(watched)]
        if opened.events is not None:
            samples += opened.events.samples()
        return samples + self._costs(opened.watched)

    def processes(self) -> dict[int, tuple[GpuProcess, ...]]:
        """The GPUs, or instances of them, that each process computes on, by its pid, as last read."""
        found: dict[int, tuple[GpuProcess, ...]] = {}
        for watched in self._watched():
            answer = watched.answerer.latest
            for process in () if answer is None else answer.processes:
                found[process.pid] = (*found.get(process.pid, ()), process)
        return found

    def standings(self) -> tuple[Standing, ...]:
        """How each GPU stands to each question that it was asked: a table of questions by GPUs."""
        return tuple(one for watched in self._watched() for one in watched.gpu.standings.all())

    def close(self) -> None:
        """End the threads and give NVML back; what hangs is left behind, and NVML with it."""
        opened = self._opening.latest
        are_ended = self._opening.close(_CLOSE_S)
        if opened is None:
            return
        if opened.events is not None:
            opened.events.close()
        for watched in opened.watched:
            if watched.answerer.close(_CLOSE_S):
                with suppress(NVMLError):  # Of a GPU that is lost.
                    watched.gpu.close()
            else:
                are_ended = False
        if are_ended and opened.driver:
            with suppress(NVMLError):
                self._nvml.nvmlShutdown()

    def _watched(self) -> list[_Watched]:
        return [] if self._opening.latest is None else self._opening.latest.watched

    def _open(self) -> _Opened:
        opened = _Opened()
        try:
            self._nvml.nvmlInit()
            opened.driver = self._nvml.nvmlSystemGetDriverVersion()
            count = self._nvml.nvmlDeviceGetCount()
        except NVMLError as error:
            opened.reasons.append(_no_nvml(error))
            return opened
        if count == 0:
            opened.reasons.append(
                f"NVML: driver {opened.driver} shows no GPU; samples of GPUs are left out of this run"
            )
            return opened
        gpus = [gpu for index in range(count) if (gpu := self._find(index, opened)) is not None]
        opened.events = EventWatch(Timed(self._nvml).nvml, {gpu.label: gpu.handle for gpu in gpus})
        opened.watched = [_Watched(gpu=gpu, answerer=Answerer(f"nvml-gpu{gpu.label}", gpu.read)) for gpu in gpus]
        return opened

    def _find(self, index: int, opened: _Opened) -> Gpu | None:
        try:
            return Gpu(
                self._nvml,
                index,
                driver=opened.driver,
                cuda=cuda_version(Timed(self._nvml).nvml),
                per_link=self._per_link,
                clock_ns=self._clock_ns,
            )
        except NVMLError as error:
            opened.reasons.append(f"GPU {index}: {error}; its samples are left out of this run")
            return None

    def _ask_all(self, watched: list[_Watched]) -> None:
        asked = [one for one in watched if one.lost is None]
        for one in asked:
            one.answerer.ask()
        until_ns = self._clock_ns() + round(self._deadline_s * 1e9)
        for one in asked:
            left_s = 0.0 if one.is_late else (until_ns - self._clock_ns()) / 1e9
            try:
                one.is_late = not one.answerer.wait(left_s)
            except Exception as error:  # noqa: BLE001  # Whatever ails one GPU, the others are read.
                one.lost = f"{type(error).__name__}: {error}"
            answer = one.answerer.latest
            if one.is_late:
                one.missed += 1
                self._say(
                    f"GPU {one.gpu.label}: no answer within {self._deadline_s:g} s at times; what is shown then is old"
                )
            elif answer is not None and answer.lost is not None:
                one.lost = answer.lost
            if one.lost is not None:
                self._say(f"GPU {one.gpu.label}: {one.lost}; its samples end here")

    def _shown(self, one: _Watched) -> list[Sample]:
        label = one.gpu.label
        state = "lost" if one.lost is not None else "late" if one.is_late else "answering"
        samples = [
            identity.GPU_STATE.at(1, gpu=label, state=state),
            reading.GPU_MISSED.at(one.missed, gpu=label),
        ]
        answer = one.answerer.latest
        if answer is None or one.lost is not None:
            return samples
        age_s = (self._clock_ns() - answer.at_ns) / 1e9
        samples.append(reading.GPU_AGE_SECONDS.at(age_s, gpu=label))
        return samples + answer.samples if age_s <= HOLD_S else samples

    def _costs(self, watched: list[_Watched]) -> list[Sample]:
        seconds: dict[str, float] = {}
        for one in watched:
            for function, spent_s in dict(one.gpu.timed.seconds).items():
                seconds[function] = seconds.get(function, 0.0) + spent_s
        slowest: dict[str, float] = {}
        for standing in self.standings():
            if standing.cost_s is not None:
                slowest[standing.question] = max(slowest.get(standing.question, 0.0), standing.cost_s)
        return [
            *(reading.GPU_CALL_SECONDS.at(spent_s, function=function) for function, spent_s in seconds.items()),
            *(reading.GPU_FIELD_SECONDS.at(cost_s, field=name) for name, cost_s in slowest.items()),
        ]

    def _say(self, reason: str) -> None:
        self._reasons.setdefault(reason)


def _no_nvml(error: Exception) -> str:
    missing = missing_driver(error)
    if missing is not None:
        return f"no NVIDIA driver: {missing}"
    return f"NVML does not start: {error}; samples of GPUs are left out of this run"
