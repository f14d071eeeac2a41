"""Nodes of recorded GPUs for tests, a clock that stands still until it is told to go, and NVMLs with a fault."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
from pynvml import NVML_ERROR_FUNCTION_NOT_FOUND

from collectors.metrics.metric import Sample
from collectors.nvml.collector import NvmlCollector
from collectors.nvml.library import Nvml, NVMLError
from collectors.nvml.recorder import EIGHT_GPUS, AnswerTrack, NodeRecording, RecordedGpu, load
from collectors.nvml.replay import RecordedNvml

DRIVER = "590.48.01"


def eight_gpus() -> NodeRecording:
    """The node that comes with the program: eight GPUs, and all that happens to them within ten minutes."""
    return load(EIGHT_GPUS)


HEALTHY = eight_gpus().gpus[0]


@dataclass(slots=True)
class FakeClock:
    """Stands at `now_s`."""

    now_s: float = 0.0

    def seconds(self) -> float:
        return self.now_s

    def ns(self) -> int:
        return round(self.now_s * 1e9)


def always(value: Any) -> AnswerTrack:
    """One answer, all the time."""
    return AnswerTrack(at_s=[0.0], values=[value])


def a_gpu(answers: dict[str, Any] | None = None, *, without: tuple[str, ...] = (), **changes: Any) -> RecordedGpu:
    """A healthy H200, but for these answers, and without those questions."""
    tracks = {**HEALTHY.tracks, **{question: always(answer) for question, answer in (answers or {}).items()}}
    kept = {question: track for question, track in tracks.items() if question not in without}
    return msgspec.structs.replace(HEALTHY, tracks=kept, **changes)


def a_node(*gpus: RecordedGpu, driver: str = DRIVER) -> NodeRecording:
    """A node of these GPUs."""
    system = {**eight_gpus().system, "nvmlSystemGetDriverVersion": always(driver)}
    return NodeRecording(note="for tests", duration_s=600, system=system, gpus=list(gpus))


def replayed(recording: NodeRecording, clock: FakeClock) -> Nvml:
    """NVML on the node; waiting for an event takes a moment only."""
    return RecordedNvml(recording, clock_s=clock.seconds, wait=lambda _: time.sleep(0.005)).nvml


@contextmanager
def opened(nvml: Nvml, clock: FakeClock, **options: Any) -> Iterator[NvmlCollector]:
    """A collector that is closed again; what hangs by the recording is let go before.

    It waits for its answers as long as a busy machine may need; a test of late answers gives its own limits.
    """
    collector = NvmlCollector(nvml, clock_ns=clock.ns, **{"deadline_s": 30.0, "open_s": 30.0, **options})
    try:
        yield collector
    finally:
        nvml.nvmlShutdown()
        collector.close()


@dataclass
class FakeFault:
    """NVML with a fault: `spoil` may raise or wait before a function is called. missing: functions it has not."""

    nvml: Nvml
    spoil: Callable[[str, tuple[Any, ...]], None] = lambda name, arguments: None
    missing: frozenset[str] = frozenset()

    @property
    def spoilt(self) -> Nvml:
        return cast(Nvml, self)

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.nvml, name)

        def call(*arguments: Any, **named: Any) -> Any:
            if name in self.missing:
                raise NVMLError(NVML_ERROR_FUNCTION_NOT_FOUND)
            self.spoil(name, arguments)
            return function(*arguments, **named)

        return call


@dataclass
class FakeHang:
    """A GPU whose driver does not return from one function until it is let go."""

    index: int
    function: str = "nvmlDeviceGetUtilizationRates"
    is_hanging: bool = True
    let_go: threading.Event = field(default_factory=threading.Event)

    def __call__(self, name: str, arguments: tuple[Any, ...]) -> None:
        if self.is_hanging and name == self.function and arguments[0].index == self.index:
            self.let_go.wait()


def of(samples: list[Sample], gpu: str) -> list[Sample]:
    """Those of one GPU."""
    return [sample for sample in samples if sample.labels.get("gpu") == gpu]


def values(samples: list[Sample], **labels: str) -> dict[str, float]:
    """By metric, of the samples that bear the labels."""
    return {sample.metric: sample.value for sample in samples if labels.items() <= sample.labels.items()}
