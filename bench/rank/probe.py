"""One rank of a probe: joins the others, runs the probe, and logs each measurement as soon as it is known."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

from bench.rank.distributed import TrialLog, all_agree, joined, wait_for_all
from bench.rank.fault_commit import commit_at
from bench.rank.messages import RankOrder
from collectors.metrics import probes as probes_metrics
from collectors.metrics.metric import Metric, Sample
from collectors.rank import nccl_log
from collectors.rank.stopwatch import CudaStopwatch, HostStopwatch
from collectors.sample_log import Mark
from workloads.core.mesh import make_mesh
from workloads.protocols import Elapsed, Probe, Quantity
from workloads.registry import entry_of

METRICS: dict[Quantity, Metric] = {
    "collective_s": probes_metrics.COLLECTIVE_SECONDS,
    "rounds": probes_metrics.COLLECTIVE_ROUNDS,
    "sent_bytes": probes_metrics.COLLECTIVE_SENT_BYTES,
    "peak_node_bytes": probes_metrics.COLLECTIVE_PEAK_BYTES,
    "matmul_s": probes_metrics.MATMUL_SECONDS,
    "copy_s": probes_metrics.COPY_SECONDS,
    "pair_s": probes_metrics.PAIR_SECONDS,
}
WITH_HOST: dict[Quantity, Metric] = {
    "collective_s": probes_metrics.COLLECTIVE_WITH_HOST_SECONDS,
    "matmul_s": probes_metrics.MATMUL_WITH_HOST_SECONDS,
    "copy_s": probes_metrics.COPY_WITH_HOST_SECONDS,
    "pair_s": probes_metrics.PAIR_WITH_HOST_SECONDS,
}


def run_probe(order: RankOrder, log: TrialLog) -> None:
    """Run the probe of the order's case as one rank, and log each measurement.

    Raises:
        LogUnwritable: the log cannot be written.
        Exception: whatever the probe raises.
    """
    case = order.case
    # NCCL's log, a line for each call, disturbs the timing: only the first trial writes it, and its times do not count.
    is_logged = case.backend == "nccl" and case.trials > 1 and order.trial == 0
    mark: Mark = "nccl_log" if is_logged else "probe"
    path = Path(order.folder) / f"rank{order.rank}.nccl.log"
    if is_logged and order.rank == 0:  # NCCL writes on rank 0 only.
        nccl_log.ask(path)  # Before NCCL starts: it reads its settings once.

    def record(figures: Mapping[Quantity, float | Elapsed], **labels: str) -> None:
        for text in why_with_host(figures, labels):
            log.note(text)
        log.reading(mark, samples_of(figures, labels), begun_ns=begun_ns(figures))
        log.step += 1
        commit_at(order.fault, rank=order.rank, step=log.step, device=order.case.device)

    with joined(order, log) as membership:
        device = membership.device
        mesh = make_mesh(case.spec().mesh(case), case.device)
        membership.leave_store(has_communicated=False)
        ready = partial(wait_for_all, device)
        agree = partial(all_agree, device=device)
        stopwatch = CudaStopwatch(ready, device, agree=agree) if device.type == "cuda" else HostStopwatch(ready)
        probe: Probe = resolve_name(entry_of(case.strategy))
        probe(case, mesh, record, stopwatch)
        if is_logged and order.rank == 0:
            try:
                log.reading(mark, nccl_log.choices(path))
            except nccl_log.ChoicesUnknown as error:
                log.note(f"NCCL's choices are absent: {error}")


def samples_of(figures: Mapping[Quantity, float | Elapsed], labels: Mapping[str, str]) -> list[Sample]:
    """Return a sample for each figure, and one for a call's time including the host if that is known."""
    samples = []
    for quantity, value in figures.items():
        if isinstance(value, (int, float)):
            samples.append(METRICS[quantity].at(value, **labels))
            continue
        samples.append(METRICS[quantity].at(value.elapsed_s, **labels))
        if value.with_host_s is not None:
            samples.append(WITH_HOST[quantity].at(value.with_host_s, **labels))
    return samples


def begun_ns(figures: Mapping[Quantity, float | Elapsed]) -> int | None:
    """Return the Unix time in ns from which the device ran only what was measured; None if unknown for every call."""
    begun = [
        value.begun_ns
        for value in figures.values()
        if not isinstance(value, (int, float)) and value.begun_ns is not None
    ]
    return min(begun, default=None)


def why_with_host(figures: Mapping[Quantity, float | Elapsed], labels: Mapping[str, str]) -> list[str]:
    """Return a note for each call whose device time cannot be separated from the host's."""
    return [
        f"the time of {' '.join(labels.values())} includes the host: {value.why_with_host}"
        for value in figures.values()
        if not isinstance(value, (int, float)) and value.why_with_host is not None
    ]
