"""What a scrape costs on a node with 8 GPUs and 8 ranks: CPU time, body size, and the reading of the logs before it.

The promise is on making the page from samples; what reading the logs costs depends on how fast the steps are, and is
printed beside it. Between two scrapes the ranks log as many steps as they would in 15 s, and the node polls 15 times.
CPU time is the thread's own.

    python -m tests.benchmarks.exporter [--scrapes N] [--step-ms N]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

from bench.live import LiveRuns
from bench.run import Run, begin
from collectors.catalogue import communication, gpu, host, memory, step
from collectors.catalogue.every import METRICS
from collectors.exporter import Exporter, Owned
from collectors.metric import Metric, Sample
from collectors.sample_log import Mark, Opened, Polled, Reading, SampleLog
from tests.bench.examples import make_case, make_machine

GPUS = RANKS = 8
SCRAPE_INTERVAL_S = 15
PROMISE_MS = 10.0
SERIES = 800
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
VALUES = {
    "phase": step.PHASES,
    "category": ("parameters", "gradients", "optimizer", "activations", "buffers", "temporary", "other", "total"),
    "clock": ("sm", "memory"),
    "mode": ("user", "system", "idle", "iowait"),
    "kind": ("total", "available"),
    "direction": ("received", "sent"),
}
"""Values of labels that have few; every other label counts GPUs or interfaces."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scrapes", type=int, default=20)
    parser.add_argument("--step-ms", type=float, default=100.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        run = begin(make_case(ranks=RANKS), make_machine(), Path(name))
        try:
            steps = round(1e3 * SCRAPE_INTERVAL_S / arguments.step_ms)
            _report(_Node(run), LiveRuns(Path(name), on_notice=print), arguments.scrapes, steps)
        finally:
            run.close()


def _report(node: _Node, live: LiveRuns, scrapes: int, steps: int) -> None:
    shown: list[Owned] = []
    exporter = Exporter(METRICS, [lambda: shown], on_notice=print)
    reading_ms, text_ms, openmetrics_ms = [], [], []
    body = b""
    for _ in range(scrapes + 1):
        node.log(steps)
        begun_ns = time.thread_time_ns()
        shown[:] = live.samples()
        reading_ms.append(_since_ms(begun_ns))
        begun_ns = time.thread_time_ns()
        body, _ = exporter.render("")
        text_ms.append(_since_ms(begun_ns))
        begun_ns = time.thread_time_ns()
        exporter.render(OPENMETRICS)
        openmetrics_ms.append(_since_ms(begun_ns))
    # The first scrape fills caches and reads what happened before it.
    reading, text, openmetrics = (median(values[1:]) for values in (reading_ms, text_ms, openmetrics_ms))
    series = sum(not line.startswith(b"#") for line in body.splitlines())
    verdict = "kept" if max(text, openmetrics) <= PROMISE_MS else "broken"
    core_ratio = (max(text, openmetrics) + reading) / (1e3 * SCRAPE_INTERVAL_S)
    print(
        f"{series} series of {GPUS} GPUs and {RANKS} ranks: {text:.1f} ms CPU a scrape as text ({len(body)} bytes),"
        f" {openmetrics:.1f} ms as OpenMetrics, medians of {scrapes}; the promise of {PROMISE_MS:g} ms is {verdict};"
        f" reading what the ranks logged since ({RANKS} x {steps} steps) {reading:.1f} ms more, which makes"
        f" {core_ratio:.2%} of a core at a scrape each {SCRAPE_INTERVAL_S} s"
    )


def _since_ms(begun_ns: int) -> float:
    return (time.thread_time_ns() - begun_ns) / 1e6


class _Node:
    """Writes what 8 ranks and the node's agent would."""

    def __init__(self, run: Run) -> None:
        self._ranks = [SampleLog(run.folder / f"rank{rank}.jsonl") for rank in range(RANKS)]
        self._agent = SampleLog(run.folder / "node0.jsonl")
        each_step = [*step.METRICS, *(metric for metric in memory.METRICS if metric is not memory.LIVE_TENSOR_BYTES)]
        self._step = [sample for metric in each_step for sample in _samples(metric)]
        tensors = _samples(memory.LIVE_TENSOR_BYTES)
        traced = [sample for metric in communication.METRICS for sample in _samples(metric)]
        polled = [sample for metric in (*gpu.METRICS, *host.METRICS) for sample in _samples(metric)]
        # What later collectors add: interfaces fill the node up to the promised number of series.
        missing = SERIES - RANKS * (len(self._step) + len(tensors) + len(traced) + 1) - len(polled) - 1
        polled += [host.HOST_NETWORK_BYTES.at(1e9, interface=f"x{n}", direction="sent") for n in range(missing)]
        self._polled = polled
        for rank, log in enumerate(self._ranks):
            log.write(Opened(run=run.id, trial=0, rank=rank, time_ns=0, pid=1, host="node0"))
            log.write(self._reading("traced", traced))
            log.write(self._reading("memory", tensors))

    def log(self, steps: int) -> None:
        """As much as comes between two scrapes."""
        for log in self._ranks:
            for _ in range(steps):
                log.write(self._reading("measured", self._step))
        for beat in range(SCRAPE_INTERVAL_S):
            self._agent.write(Polled(time_ns=beat, samples=self._polled))

    def _reading(self, mark: Mark, samples: list[Sample]) -> Reading:
        return Reading(trial=0, time_ns=time.time_ns(), mark=mark, step=0, samples=samples)


def _samples(metric: Metric) -> list[Sample]:
    """One of each series that the metric has on such a node."""
    combinations: list[dict[str, str]] = [{}]
    for label in metric.labels:
        is_identity = "gpu" in metric.labels and label not in ("gpu", "clock")
        values = VALUES.get(label, ("x",) if is_identity else tuple(str(number) for number in range(GPUS)))
        combinations = [{**labels, label: value} for labels in combinations for value in values]
    return [metric.at(1234.56789, **labels) for labels in combinations]


if __name__ == "__main__":
    main()
