"""What the cost models expect of a run's step: communication left exposed, bus bandwidths, computing done again."""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from bench.analysis.diagnosis.observed import Observed
from bench.analysis.estimate import of_metric
from bench.analysis.step_parts import MeasuredStep, step_account
from bench.case import Case
from collectors.metrics import results
from workloads.cost_models.communication import Link, bus_factor, transfer_time_s
from workloads.cost_models.step_time import FORWARD_SHARE, ComputeTime, step_time

NEAR_CEILING = 0.9
"""Share of a device's memory from which an allocator begins to fragment and to retry."""
NO_LAW_OF_PIPELINES = "the cost model of a step's time has no bubble of a pipeline"


def recomputed_share(case: Case) -> float:
    """Return the share of computing that is done again to save memory: a quarter where whole blocks are checkpointed.

    Forward is a third of the FLOPs of forward and backward, so with it done again the third of four parts. What
    `selective` computes again is little and not modelled: 0.
    """
    return FORWARD_SHARE / (1 + FORWARD_SHARE) if case.options.get("checkpoint") == "full" else 0.0


def exposed_ratio(observed: Observed, case: Case | None = None) -> float | None:
    """Return the share of the run's step that the law expects to be exposed communication; None without link or trace.

    The transfers of a step on the probed link hide behind the forward and backward that the run was seen to compute,
    and not behind those that it would compute at the ceiling: what a slow kernel hides is hidden.
    case: in place of the run's own, to ask for other options.
    """
    case = case or observed.case
    account = step_account(MeasuredStep(case=observed.case, estimates=observed.estimates))
    if isinstance(observed.link, str) or isinstance(account, str) or not account.traces:
        return None
    divided = account.divide(account.absent)
    optimizer = [
        estimate.median
        for estimate in of_metric(observed.estimates, results.RUN_PHASE_SECONDS)
        if estimate.labels["phase"] == "optimizer"
    ]
    compute_s = median(divided["compute"])
    compute_s = max(compute_s - sum(optimizer), compute_s / 2)
    again = recomputed_share(observed.case)
    forward_s = compute_s * (1 - again) * FORWARD_SHARE
    compute = ComputeTime(forward_s=forward_s, backward_s=compute_s - forward_s)
    predicted = step_time(
        compute,
        case.spec().transfers(case),
        axes=case.spec().mesh(case),
        link=observed.link,
        backend=case.backend,
    )
    return min(1.0, predicted.exposed_s / median(account.steps_s))


def law_bus_bandwidths(case: Case, link: Link) -> dict[str, float]:
    """Return the bus bandwidth, in bytes per second, that each collective of the strategy should have on this link.

    It is that of all its calls: bytes times the collective's factor, divided by their time. Collectives are named as
    the backend runs them: gloo's reduce_scatter is an all_reduce.
    """
    axes = case.spec().mesh(case)
    moved: dict[str, float] = defaultdict(float)
    taken_s: dict[str, float] = defaultdict(float)
    for transfer in case.spec().transfers(case):
        ranks = transfer.ranks or axes[transfer.axis]
        is_reduced_whole = case.backend == "gloo" and transfer.collective == "reduce_scatter"
        name = "all_reduce" if is_reduced_whole else transfer.collective
        moved[name] += transfer.payload_bytes * float(bus_factor(name, ranks))
        taken_s[name] += transfer_time_s(transfer, ranks, link, case.backend)
    return {name: moved[name] / taken_s[name] for name in moved if moved[name] > 0 and taken_s[name] > 0}


def peak_bytes(observed: Observed) -> float | None:
    """Return the most memory that a rank held: by the allocator on a GPU, as a process on a CPU; None if unknown."""
    account = "allocator" if observed.case.device == "cuda" else "resident"
    peaks = of_metric(observed.estimates, results.RUN_PEAK_MEMORY_BYTES)
    return next((peak_estimate.median for peak_estimate in peaks if peak_estimate.labels["account"] == account), None)


def memory_in_use(observed: Observed) -> float | None:
    """Return the share of its memory that a device had in use at the peak; None where either is unknown.

    A GPU has one rank, a host all ranks of its node, whose shared pages count for each.
    """
    peak = peak_bytes(observed)
    if peak is None or not observed.device_bytes:
        return None
    holders = 1 if observed.case.device == "cuda" else observed.case.ranks / observed.case.nodes
    return holders * peak / observed.device_bytes
