"""What the ranks of a run write into their logs, as many steps as their time has."""

from __future__ import annotations

import socket
import time

from bench.store.run_dir import Run
from collectors.metrics import rank as rank_metrics
from collectors.metrics.metric import Metric, Sample
from collectors.sample_log import Mark, Opened, Reading, SampleLog

RANKS = 8
VALUES = {
    "phase": rank_metrics.PHASES,
    "category": ("parameters", "gradients", "optimizer", "activations", "buffers", "temporary", "other", "total"),
    "part": ("parameters", "gradients", "optimizer"),
    "collective": ("all_reduce",),
    "axis": ("data",),
    "stage": ("0",),
}
"""Values of the labels of ranks' metrics."""


class LoggingRanks:
    """Writes what ranks would, each of which names a GPU of the recorded node and has the pid that is there."""

    def __init__(self, run: Run, step_s: float, ranks: range = range(RANKS)) -> None:
        self._step_s = step_s
        self._steps = 0
        self._logs = [SampleLog(run.folder / f"rank{rank}.jsonl") for rank in ranks]
        seldom = (rank_metrics.LIVE_TENSOR_BYTES, rank_metrics.TIMELINE_PEAK_BYTES)
        traced = [metric for metric in rank_metrics.METRICS if metric.name.startswith("observatory_traced_")]
        each_step = [metric for metric in rank_metrics.METRICS if metric not in (*seldom, *traced)]
        self._step = [sample for metric in each_step for sample in _samples(metric)]
        tensors = [sample for metric in seldom for sample in _samples(metric)]
        for rank, log in enumerate(self._logs):
            uuid = f"00000000-0000-0000-0000-{rank:012d}"
            opened = Opened(
                run=run.id, trial=0, rank=rank, time_ns=0, pid=4000 + rank, host=socket.gethostname(), gpu_uuid=uuid
            )
            log.write(opened)
            log.write(self._reading("traced", [sample for metric in traced for sample in _samples(metric)]))
            log.write(self._reading("memory", tensors))

    def begin(self) -> None:
        """Their time begins anew."""
        self._steps = 0

    def log_until(self, at_s: float) -> None:
        """The steps that end by then."""
        steps = round(at_s / self._step_s)
        for log in self._logs:
            for _ in range(steps - self._steps):
                log.write(self._reading("measured", self._step))
        self._steps = steps

    def _reading(self, mark: Mark, samples: list[Sample]) -> Reading:
        return Reading(trial=0, time_ns=time.time_ns(), mark=mark, step=0, samples=samples)


def _samples(metric: Metric) -> list[Sample]:
    """One of each series that the metric has on such a rank."""
    combinations: list[dict[str, str]] = [{}]
    for label in metric.labels:
        combinations = [{**labels, label: value} for labels in combinations for value in VALUES[label]]
    return [metric.at(1234.56789, **labels) for labels in combinations]
