"""What the node's agent costs with 8 GPUs and 8 ranks: its beats, its scrapes, its memory, and what a run's log takes.

The GPUs are the recorded ones, the host is this machine's; the ranks log their steps between the beats, in a folder
that keeps many runs that have ended. The runs are looked at after a beat as often as the agent does, and by its parts.
The clock is simulated, so that an hour of beats takes as long as its work. Each beat is charged the whole process's CPU
time, and so the look after it and the replaying of the recording, whose shares are printed: a real driver costs what it
costs instead. A scrape is charged its thread's.

    python -m tests.benchmarks.exporter [--hours N] [--step-ms N] [--ended-runs N]
"""

from __future__ import annotations

import argparse
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, cast

import psutil
from prometheus_client.exposition import choose_encoder

from bench.serve.gpu_placement import Placement
from bench.serve.live.looks import PAUSE_S, LiveRuns
from bench.serve.live.runs import RunLogs, Shown
from bench.serve.server import named
from bench.store.run_dir import begin
from collectors.host.collector import HostCollector
from collectors.metrics.registry import SHOWN
from collectors.node.registry import NodeCollector
from collectors.node.watch import NodeWatch
from collectors.nvml.collector import NvmlCollector
from collectors.nvml.library import Nvml
from collectors.nvml.recorder import EIGHT_GPUS, load
from collectors.nvml.replay import RecordedNvml
from collectors.prometheus.exposition import Exporter, Owned
from collectors.sample_log import NodeLogWriter, SampleLog
from tests.bench.made.examples import make_case, make_machine
from tests.benchmarks.exporter_parts.fast_time import FastTime
from tests.benchmarks.exporter_parts.logging_ranks import RANKS, LoggingRanks

SCRAPE_INTERVAL_S = 15
SCRAPE_PROMISE_MS = 10.0
CORE_PROMISE = 0.01
WARM_UP_S = 60.0
SETTLED_S = 600.0
"""When memory is looked at first: the recording has been through all its GPUs' answers."""
QUICK_BEAT_S, QUICK_S = 0.1, 240.0
LOOK_S = 60.0
"""What no look takes, however busy the machine is."""
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--step-ms", type=float, default=100.0)
    parser.add_argument("--ended-runs", type=int, default=1000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        runs = Path(name)
        for number in range(arguments.ended_runs):
            _end(runs / f"20200101-000000-ended-{number:06d}")
        run = begin(make_case(ranks=RANKS), make_machine(), runs)
        try:
            ranks = LoggingRanks(run, arguments.step_ms / 1e3)
            hour = _agent(1.0, 3600.0 * arguments.hours, runs, ranks)
            quick = _agent(QUICK_BEAT_S, QUICK_S, runs, ranks)
            _report(hour, quick, arguments)
            print(_logged(run.folder / "node0.jsonl"))
        finally:
            run.close()


def _end(folder: Path) -> None:
    """A folder as that of a run that has ended, as far as the agent looks into it."""
    folder.mkdir()
    for name in ("case.json", "summary.json"):
        (folder / name).touch()


@dataclass(kw_only=True)
class _Cost:
    """What an agent took. beats_ms: CPU time of all measured beats together, their looks included."""

    beat_s: float
    beats: int = 0
    beats_ms: float = 0.0
    replayed_ms: float = 0.0
    looks_ms: list[float] = field(default_factory=list)
    text_ms: list[float] = field(default_factory=list)
    openmetrics_ms: list[float] = field(default_factory=list)
    body: bytes = b""
    settled_bytes: int = 0
    ended_bytes: int = 0

    @property
    def beat_ms(self) -> float:
        """CPU time of a beat and of the look after it, where there is one."""
        return self.beats_ms / self.beats

    @property
    def core_ratio(self) -> float:
        """Share of a core that beats take, the looks after them, and a scrape each 15 s."""
        scrape_ms = max(median(self.text_ms), median(self.openmetrics_ms))
        return self.beat_ms / (1e3 * self.beat_s) + scrape_ms / (1e3 * SCRAPE_INTERVAL_S)


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


class _Looks:
    """The looks at the runs, begun on the beat as the agent begins them, and over before the clock moves on."""

    def __init__(self, look: Callable[[], list[Owned]], cost: _Cost, clock: FastTime) -> None:
        self.followed = LiveRuns(self._metered, on_notice=print, clock_ns=clock.ns)
        self._look, self._cost, self._clock = look, cost, clock
        self._begun_ns: int | None = None
        self._over = threading.Semaphore(0)

    def begin(self) -> None:
        """What is done on a beat."""
        self.followed.ask()

    def finish(self) -> None:
        """Wait for the look of this beat, where there is one."""
        now_ns = self._clock.ns()
        if self._begun_ns is None or now_ns - self._begun_ns >= round(PAUSE_S * 1e9):
            self._begun_ns = now_ns
            until_s = time.monotonic() + LOOK_S
            while not self._over.acquire(timeout=0.01):
                assert time.monotonic() < until_s, "the look that was due at this beat did not end"
                # Time stands still here: the thread may not have been done with the last look when it was asked.
                self.followed.ask()

    def _metered(self) -> list[Owned]:
        begun_ns = time.thread_time_ns()
        try:
            return self._look()
        finally:
            if self._clock.seconds() >= WARM_UP_S:
                self._cost.looks_ms.append(_since_ms(begun_ns))
            self._over.release()


def _agent(beat_s: float, seconds: float, runs: Path, ranks: LoggingRanks) -> _Cost:
    """An agent that beats, looks and is scraped for so many simulated seconds."""
    cost, clock = _Cost(beat_s=beat_s), FastTime(seconds)
    metered = _Metered(RecordedNvml(load(EIGHT_GPUS), clock_s=clock.seconds).nvml)

    def opener() -> Sequence[NodeCollector]:
        return HostCollector(clock_ns=clock.ns), NvmlCollector(metered.nvml, clock_ns=clock.ns)

    watch = NodeWatch(
        opener,
        beat_s=beat_s,
        on_notice=lambda text: None,
        clock_ns=clock.ns,
        wait=clock.wait,
    )
    placement = Placement(watch.node_samples, watch.processes, host=socket.gethostname())
    live = RunLogs(
        runs, on_notice=print, shown=Shown(has_nodes=False), places_of=placement.places_of, clock_ns=clock.ns
    )
    looks = _Looks(live.read, cost, clock)
    watch.on_beat = looks.begin
    exporter = Exporter(SHOWN, [named([watch.samples, looks.followed.samples])], on_notice=print)
    process = psutil.Process()
    ranks.begin()
    begun_ms, begun_replayed_ns, scraped_s = time.process_time() * 1e3, 0, 0.0

    def at_wait(at_s: float) -> None:
        nonlocal begun_ms, begun_replayed_ns, scraped_s
        looks.finish()
        if at_s >= WARM_UP_S:
            cost.beats += 1
            cost.beats_ms += time.process_time() * 1e3 - begun_ms
            cost.replayed_ms += (metered.spent_ns - begun_replayed_ns) / 1e6
        if at_s - scraped_s >= SCRAPE_INTERVAL_S:
            scraped_s = at_s
            _scrape(cost, exporter)
        ranks.log_until(at_s)
        if at_s <= SETTLED_S:
            cost.settled_bytes = process.memory_info().rss
        begun_ms, begun_replayed_ns = time.process_time() * 1e3, metered.spent_ns

    clock.at_wait = at_wait
    threading.excepthook = clock.end_by
    with closing(looks.followed), watch:
        clock.is_over.wait()
    if clock.error is not None:
        raise clock.error
    cost.ended_bytes = process.memory_info().rss
    return cost


def _scrape(cost: _Cost, exporter: Exporter) -> None:
    for accept, spent_ms in (("", cost.text_ms), (OPENMETRICS, cost.openmetrics_ms)):
        begun_ns = time.thread_time_ns()
        encode, _ = choose_encoder(accept)
        body = encode(exporter)
        spent_ms.append(_since_ms(begun_ns))
        if not accept:
            cost.body = body


def _report(hour: _Cost, quick: _Cost, arguments: argparse.Namespace) -> None:
    text, openmetrics = median(hour.text_ms), median(hour.openmetrics_ms)
    series = sum(not line.startswith(b"#") for line in hour.body.splitlines())
    print(
        f"{series} series of 8 GPUs, {RANKS} ranks and the host: {text:.1f} ms CPU a scrape as text"
        f" ({len(hour.body)} bytes), {openmetrics:.1f} ms as OpenMetrics, medians of"
        f" {len(hour.text_ms)}; the promise of {SCRAPE_PROMISE_MS:g} ms is"
        f" {_verdict(max(text, openmetrics), SCRAPE_PROMISE_MS)}"
    )
    for cost in (hour, quick):
        print(
            f"a beat each {cost.beat_s:g} s: {cost.beat_ms:.2f} ms CPU a beat, of which the replaying takes"
            f" {cost.replayed_ms / cost.beats:.2f} ms and looking at the runs {sum(cost.looks_ms) / cost.beats:.2f} ms"
            f" (a look at {RANKS} ranks with steps of {arguments.step_ms:g} ms beside {arguments.ended_runs} runs that"
            f" have ended: {median(cost.looks_ms):.2f} ms, median of {len(cost.looks_ms)}); with a scrape each"
            f" {SCRAPE_INTERVAL_S} s {cost.core_ratio:.2%} of a core"
        )
    print(f"the promise of {CORE_PROMISE:.0%} at a beat each 1 s is {_verdict(hour.core_ratio, CORE_PROMISE)}")
    grown = (hour.ended_bytes - hour.settled_bytes) / (1 << 20)
    print(
        f"memory of the process, this benchmark included: {hour.settled_bytes / (1 << 20):.1f} MiB after"
        f" {SETTLED_S / 60:g} minutes, {grown:+.1f} MiB after {hour.beats} beats"
    )


def _logged(path: Path) -> str:
    """What a run's log of such a node takes, and what writing it costs."""
    clock = FastTime(600.0)
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


if __name__ == "__main__":
    main()
