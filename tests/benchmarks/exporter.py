"""What the node's agent costs with 8 GPUs and 8 ranks: its beats, its scrapes, its memory, and what a run's log takes.

The GPUs are the recorded ones, the host is this machine's; the ranks log as many steps between two scrapes as they
would in 15 s. The clock is simulated, so that an hour of beats takes as long as its work. Each beat is charged the
whole process's CPU time, and so the replaying of the recording, whose share is printed: a real driver costs what it
costs instead. A scrape is charged its thread's.

    python -m tests.benchmarks.exporter [--hours N] [--step-ms N]
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, cast

import psutil

from bench.live import LiveRuns
from bench.run import Run, begin
from collectors.catalogue import communication, memory, step
from collectors.catalogue.every import METRICS
from collectors.exporter import Exporter
from collectors.host.collector import HostCollector
from collectors.metric import Metric, Sample
from collectors.node_log import NodeLogWriter
from collectors.nvml.collector import NvmlCollector
from collectors.nvml.library import Nvml
from collectors.nvml.recorded import RecordedNvml
from collectors.nvml.recording import EIGHT_GPUS, load
from collectors.roster import NodeCollector
from collectors.sample_log import Mark, Opened, Reading, SampleLog
from collectors.watch import NodeWatch
from tests.bench.examples import make_case, make_machine

RANKS = 8
SCRAPE_INTERVAL_S = 15
SCRAPE_PROMISE_MS = 10.0
CORE_PROMISE = 0.01
WARM_UP_S = 60.0
SETTLED_S = 600.0
"""When memory is looked at first: the recording has been through all its GPUs' answers."""
QUICK_BEAT_S, QUICK_S = 0.1, 240.0
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
VALUES = {
    "phase": step.PHASES,
    "category": ("parameters", "gradients", "optimizer", "activations", "buffers", "temporary", "other", "total"),
    "part": ("parameters", "gradients", "optimizer"),
    "collective": ("all_reduce",),
    "axis": ("data",),
    "stage": ("0",),
}
"""Values of the labels of ranks' metrics."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--step-ms", type=float, default=100.0)
    arguments = parser.parse_args()
    steps = round(1e3 * SCRAPE_INTERVAL_S / arguments.step_ms)
    with tempfile.TemporaryDirectory() as name:
        run = begin(make_case(ranks=RANKS), make_machine(), Path(name))
        try:
            ranks = _Ranks(run)
            live = LiveRuns(Path(name), on_notice=print, has_nodes=False)
            hour = _agent(1.0, 3600.0 * arguments.hours, live, lambda: ranks.log(steps))
            quick = _agent(QUICK_BEAT_S, QUICK_S, live, lambda: ranks.log(steps))
            _report(hour, quick, steps)
            print(_logged(Path(name) / "node0.jsonl"))
        finally:
            run.close()


@dataclass(kw_only=True)
class _Cost:
    """What an agent took. beats_ms: CPU time of all measured beats together."""

    beat_s: float
    beats: int = 0
    beats_ms: float = 0.0
    replayed_ms: float = 0.0
    reading_ms: list[float] = field(default_factory=list)
    text_ms: list[float] = field(default_factory=list)
    openmetrics_ms: list[float] = field(default_factory=list)
    body: bytes = b""
    settled_bytes: int = 0
    ended_bytes: int = 0

    @property
    def beat_ms(self) -> float:
        """CPU time of a beat."""
        return self.beats_ms / self.beats

    @property
    def core_ratio(self) -> float:
        """Share of a core that beats take, and a scrape each 15 s with the reading of the logs before it."""
        scrape_ms = max(median(self.text_ms), median(self.openmetrics_ms)) + median(self.reading_ms)
        return self.beat_ms / (1e3 * self.beat_s) + scrape_ms / (1e3 * SCRAPE_INTERVAL_S)


class _FastTime:
    """A clock that waiting moves at once. at_wait: what else happens then; tells to stop after so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.at_wait: Callable[[float], None] = lambda at_s: None
        self.is_over = threading.Event()
        self._now_ns = 0
        self._end_ns = round(1e9 * seconds)

    def ns(self) -> int:
        return self._now_ns

    def seconds(self) -> float:
        return self._now_ns / 1e9

    def wait(self, told: threading.Event, seconds: float) -> bool:
        self.at_wait(self.seconds())
        self._now_ns += round(1e9 * seconds)
        if self._now_ns > self._end_ns:
            self.is_over.set()
        return self.is_over.is_set()


class _Metered:
    """NVML, and the CPU time that its functions took."""

    def __init__(self, nvml: Nvml) -> None:
        self.spent_ns = 0
        self._nvml = nvml

    @property
    def nvml(self) -> Nvml:
        return cast(Nvml, self)

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._nvml, name)

        def metered(*arguments: Any, **named: Any) -> Any:
            begun_ns = time.thread_time_ns()
            try:
                return function(*arguments, **named)
            finally:
                self.spent_ns += time.thread_time_ns() - begun_ns

        setattr(self, name, metered)
        return metered


def _agent(beat_s: float, seconds: float, live: LiveRuns, between_scrapes: Callable[[], None]) -> _Cost:
    """An agent that beats and is scraped for so many simulated seconds."""
    cost, clock = _Cost(beat_s=beat_s), _FastTime(seconds)
    metered = _Metered(RecordedNvml(load(EIGHT_GPUS), clock_s=clock.seconds).nvml)

    def opener() -> Sequence[NodeCollector]:
        return HostCollector(clock_ns=clock.ns), NvmlCollector(metered.nvml, clock_ns=clock.ns)

    watch = NodeWatch(opener, beat_s=beat_s, on_notice=lambda text: None, clock_ns=clock.ns, wait=clock.wait)
    ranks = [*live.samples()]
    exporter = Exporter(METRICS, [watch.samples, lambda: ranks], on_notice=print)
    process = psutil.Process()
    begun_ms, begun_replayed_ns, scraped_s = time.process_time() * 1e3, 0, 0.0

    def at_wait(at_s: float) -> None:
        nonlocal begun_ms, begun_replayed_ns, scraped_s
        if at_s >= WARM_UP_S:
            cost.beats += 1
            cost.beats_ms += time.process_time() * 1e3 - begun_ms
            cost.replayed_ms += (metered.spent_ns - begun_replayed_ns) / 1e6
        if at_s - scraped_s >= SCRAPE_INTERVAL_S:
            scraped_s = at_s
            between_scrapes()
            _scrape(cost, exporter, live, ranks)
        if at_s <= SETTLED_S:
            cost.settled_bytes = process.memory_info().rss
        begun_ms, begun_replayed_ns = time.process_time() * 1e3, metered.spent_ns

    clock.at_wait = at_wait
    with watch:
        clock.is_over.wait()
    cost.ended_bytes = process.memory_info().rss
    return cost


def _scrape(cost: _Cost, exporter: Exporter, live: LiveRuns, ranks: list[Any]) -> None:
    begun_ns = time.thread_time_ns()
    ranks[:] = live.samples()
    cost.reading_ms.append(_since_ms(begun_ns))
    begun_ns = time.thread_time_ns()
    cost.body, _ = exporter.render("")
    cost.text_ms.append(_since_ms(begun_ns))
    begun_ns = time.thread_time_ns()
    exporter.render(OPENMETRICS)
    cost.openmetrics_ms.append(_since_ms(begun_ns))


def _report(hour: _Cost, quick: _Cost, steps: int) -> None:
    text, openmetrics = median(hour.text_ms), median(hour.openmetrics_ms)
    series = sum(not line.startswith(b"#") for line in hour.body.splitlines())
    print(
        f"{series} series of 8 GPUs, {RANKS} ranks and the host: {text:.1f} ms CPU a scrape as text"
        f" ({len(hour.body)} bytes), {openmetrics:.1f} ms as OpenMetrics, medians of {len(hour.text_ms)}; the promise"
        f" of {SCRAPE_PROMISE_MS:g} ms is {_verdict(max(text, openmetrics), SCRAPE_PROMISE_MS)}; reading what the ranks"
        f" logged since ({RANKS} x {steps} steps) {median(hour.reading_ms):.1f} ms more"
    )
    for cost in (hour, quick):
        print(
            f"a beat each {cost.beat_s:g} s: {cost.beat_ms:.2f} ms CPU a beat, of which the replaying takes"
            f" {cost.replayed_ms / cost.beats:.2f} ms; with a scrape each {SCRAPE_INTERVAL_S} s"
            f" {cost.core_ratio:.2%} of a core"
        )
    print(f"the promise of {CORE_PROMISE:.0%} at a beat each 1 s is {_verdict(hour.core_ratio, CORE_PROMISE)}")
    grown = (hour.ended_bytes - hour.settled_bytes) / (1 << 20)
    print(
        f"memory of the process, this benchmark included: {hour.settled_bytes / (1 << 20):.1f} MiB after"
        f" {SETTLED_S / 60:g} minutes, {grown:+.1f} MiB after {hour.beats} beats"
    )


def _logged(path: Path) -> str:
    """What a run's log of such a node takes, and what writing it costs."""
    clock = _FastTime(600.0)
    nvml = NvmlCollector(RecordedNvml(load(EIGHT_GPUS), clock_s=clock.seconds).nvml, clock_ns=clock.ns)
    host = HostCollector(clock_ns=clock.ns)
    log = SampleLog(path)
    writer, spent_ms, beats = NodeLogWriter(log), 0.0, 300
    for beat in range(beats):
        samples = [*host.read(), *nvml.read()]
        begun_ns = time.thread_time_ns()
        writer.write(samples, time_ns=beat)
        spent_ms += _since_ms(begun_ns)
        clock.wait(threading.Event(), 1.0)
    nvml.close()
    log.close()
    each = path.stat().st_size / beats
    return (
        f"a run's log of {len(samples)} series: {each / 1e3:.1f} kB and {spent_ms / beats:.2f} ms CPU a beat"
        f" ({each * 3600 / 1e6:.0f} MB an hour at a beat each 1 s)"
    )


def _verdict(measured: float, promised: float) -> str:
    return "kept" if measured <= promised else "broken"


def _since_ms(begun_ns: int) -> float:
    return (time.thread_time_ns() - begun_ns) / 1e6


class _Ranks:
    """Writes what 8 ranks would."""

    def __init__(self, run: Run) -> None:
        self._logs = [SampleLog(run.folder / f"rank{rank}.jsonl") for rank in range(RANKS)]
        seldom = (memory.LIVE_TENSOR_BYTES, memory.TIMELINE_PEAK_BYTES)
        each_step = [*step.METRICS, *(metric for metric in memory.METRICS if metric not in seldom)]
        self._step = [sample for metric in each_step for sample in _samples(metric)]
        tensors = [sample for metric in seldom for sample in _samples(metric)]
        traced = [sample for metric in communication.METRICS for sample in _samples(metric)]
        for rank, log in enumerate(self._logs):
            log.write(Opened(run=run.id, trial=0, rank=rank, time_ns=0, pid=1, host="node0"))
            log.write(self._reading("traced", traced))
            log.write(self._reading("memory", tensors))

    def log(self, steps: int) -> None:
        """As much as comes between two scrapes."""
        for log in self._logs:
            for _ in range(steps):
                log.write(self._reading("measured", self._step))

    def _reading(self, mark: Mark, samples: list[Sample]) -> Reading:
        return Reading(trial=0, time_ns=time.time_ns(), mark=mark, step=0, samples=samples)


def _samples(metric: Metric) -> list[Sample]:
    """One of each series that the metric has on such a rank."""
    combinations: list[dict[str, str]] = [{}]
    for label in metric.labels:
        combinations = [{**labels, label: value} for labels in combinations for value in VALUES[label]]
    return [metric.at(1234.56789, **labels) for labels in combinations]


if __name__ == "__main__":
    main()
