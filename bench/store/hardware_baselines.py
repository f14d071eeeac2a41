"""Baselines from earlier probes of the same hardware: MFU against a measured ceiling, and effects of measured links.

A ceiling is the fastest matrix product in a `matmul` run. `bench.store.links` has the links, by level: they give a
strategy's expected communication, the predicted step and efficiency, and the explanation of a pipeline's bubble.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from bench.case import Case
from bench.results.efficiency import expected_efficiency
from bench.results.estimate import Estimate, estimate, ratio
from bench.results.gpu_clocks import clock_and_power
from bench.results.pipeline import bubble_parts
from bench.store.history import History
from bench.store.links import MeasuredLinks, Runs, find_links, sweep_runs
from bench.store.summary import Summary
from collectors.metrics.probes import RUN_MATMUL_CLOCK_HERTZ, RUN_MATMUL_FLOPS, RUN_MATMUL_POWER_WATTS
from collectors.metrics.results import RUN_COMMUNICATION_SECONDS, RUN_FLOPS, RUN_MEASURED_MFU
from workloads.cost_models.absent import Absent
from workloads.cost_models.interconnect import traffic_times_s
from workloads.cost_models.terms import Transfer
from workloads.pipeline_parallel.expected_step import missing_link, slowest_message_s
from workloads.probes.spec import MatmulSpec, ProbeSpec

# The measured ceiling, and model FLOP/s as a share of it
#
# A data sheet gives a peak that no product reaches, and none for a CPU. What a `matmul` run measured on the same
# hardware at the same precision can be reached, so the gap to 1 belongs to the training itself.

RUNS_SEARCHED = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """The fastest shape of a `matmul` run: an m by k matrix times a k by n matrix.

    run: the run's id. flops_per_second: of the slowest rank. clock_hertz, power_watts: of that rank's GPU at that time;
    None if not read.
    """

    run: str
    m: int
    n: int
    k: int
    flops_per_second: Estimate
    clock_hertz: float | None = None
    power_watts: float | None = None

    @property
    def at(self) -> str:
        """Clock and power as text: "1,755 MHz, 690 W"; "" if neither is known."""
        return clock_and_power(self.clock_hertz, self.power_watts)


def ceiling_from(summary: Summary) -> Ceiling | Absent:
    """Return the shape with the highest median rate; absent if the run measured no product."""
    products = [figure for figure in summary.estimates if figure.metric == RUN_MATMUL_FLOPS.name]
    if not products:
        return Absent(
            reason=f"run {summary.run} measured no matrix product; `observatory show {summary.run}` shows why"
        )
    fastest = max(products, key=lambda product: product.median)
    m, n, k = (int(fastest.labels[name]) for name in RUN_MATMUL_FLOPS.labels)
    medians = {figure.metric: figure.median for figure in summary.estimates if figure.labels == fastest.labels}
    return Ceiling(
        run=summary.run,
        m=m,
        n=n,
        k=k,
        flops_per_second=fastest,
        clock_hertz=medians.get(RUN_MATMUL_CLOCK_HERTZ.name),
        power_watts=medians.get(RUN_MATMUL_POWER_WATTS.name),
    )


def find_ceiling(history: History, case: Case, hardware: str) -> Ceiling | Absent:
    """Return the highest ceiling among the `matmul` runs that ended well on the case's hardware, at its precision.

    The highest, not the newest: a later run of small products, or on a busy machine, does not lower what can be
    reached. On a CPU the ranks and threads must also be the same, since ranks share its clock and memory; a GPU belongs
    to its rank. The probe's version must be the current one. Only the newest RUNS_SEARCHED `matmul` runs are searched.
    """
    ceilings = comparable_ceilings(history, case, hardware)
    return max(ceilings, key=_rate) if ceilings else no_run_alike(MatmulSpec(), case, hardware)


def comparable_ceilings(history: Runs, case: Case, hardware: str) -> list[Ceiling]:
    """Return the ceiling of each `matmul` run that `find_ceiling` chooses from, newest first."""
    ceilings = (ceiling_from(summary) for summary in runs_alike(history, MatmulSpec(), case, hardware))
    return [ceiling for ceiling in ceilings if isinstance(ceiling, Ceiling)]


def runs_alike(history: Runs, probe: ProbeSpec, case: Case, hardware: str) -> list[Summary]:
    """Return the probe's runs that show what the case's ranks can reach, newest first; see `find_ceiling`.

    Raises:
        InfrastructureFailed: the history cannot be read.
    """
    conditions = _conditions(case, probe.version_on(case.device))
    return [
        summary
        for summary in history.runs(RUNS_SEARCHED, strategy=probe.name)
        if summary.outcome == "done"
        and summary.hardware == hardware
        and _conditions(summary.case, summary.case.version) == conditions
    ]


def no_run_alike(probe: ProbeSpec, case: Case, hardware: str) -> Absent:
    """Return why a probe's figure is absent, and the command that measures it."""
    command = f"observatory run {probe.name} --device {case.device} --precision {case.precision}"
    if case.device == "cpu":
        nodes = "" if case.nodes == 1 else f" --nodes {case.nodes}"
        command += f" --ranks {case.ranks}{nodes} --threads {case.threads}"
    return Absent(reason=f"the history has no comparable {probe.name} run on {hardware}; `{command}` makes one")


def _conditions(case: Case, version: int) -> tuple[object, ...]:
    shared = (case.ranks, case.nodes, case.threads) if case.device == "cpu" else ()
    return version, case.device, case.precision, *shared


def measured_mfu(flops: Estimate, ceiling: Ceiling) -> Estimate | Absent:
    """Return model FLOP/s of a device (RUN_FLOPS) as a share of the ceiling; absent if it would exceed 1.

    low, high: of the ratio of two medians, see `bench.results.estimate.ratio`, so that they include the ceiling's own
    noise; None if that ratio has no interval. trials: each trial's FLOP/s as a share of the ceiling's median.
    """
    share = ratio(flops, ceiling.flops_per_second)
    if share.value > 1:
        shape = f"{ceiling.m} x {ceiling.n} x {ceiling.k}"
        return Absent(
            reason=f"measured MFU would be {share.value:.2f}, which is impossible:"
            f" {flops.median / 1e12:.4g} TFLOP/s of a ceiling of {ceiling.flops_per_second.median / 1e12:.4g}"
            f" (run {ceiling.run}, {shape}); its products were too small, or its clock was lower:"
            f" `observatory run {MatmulSpec.name}` with its default sizes measures it again"
        )
    return Estimate(
        metric=RUN_MEASURED_MFU.name,
        labels={},
        median=share.value,
        low=share.low,
        high=share.high,
        trials=tuple(trial / ceiling.flops_per_second.median for trial in flops.trials),
    )


def against_history(summary: Summary, history: History) -> Summary:
    """Return the summary with additions from the history; unchanged for a probe's run, and for a run without a trial.

    Raises:
        InfrastructureFailed: the history cannot be read.
    """
    if summary.case.model is None or not summary.trials_done:
        return summary
    additions = [*_mfu(summary, history), *_communication(summary, history), *_bubble(summary, history)]
    estimates = [addition for addition in additions if isinstance(addition, Estimate)]
    return replace(
        summary,
        # An addition replaces the summary's own estimate, for example a part of the bubble.
        estimates=(*(own for own in summary.estimates if not any(map(own.is_same_as, estimates))), *estimates),
        notes=(*summary.notes, *(addition for addition in additions if isinstance(addition, str))),
    )


def _mfu(summary: Summary, history: History) -> Iterator[Estimate | str]:
    """Yield MFU against the ceiling, and notes about the ceiling or about why MFU is absent."""
    ceiling = find_ceiling(history, summary.case, summary.hardware)
    if isinstance(ceiling, Absent):
        yield f"MFU against a measured ceiling is absent: {ceiling.reason}"
        return
    flops = next(figure for figure in summary.estimates if figure.metric == RUN_FLOPS.name)
    share = measured_mfu(flops, ceiling)
    if isinstance(share, Absent):
        yield f"MFU against a measured ceiling is absent: {share.reason}"
        return
    yield share
    words = f"the measured ceiling is {ceiling.flops_per_second.median / 1e9:,.4g} GFLOP/s, of a product of"
    at = f", at {ceiling.at}" if ceiling.at else ""
    yield f"{words} {ceiling.m} x {ceiling.n} x {ceiling.k} in {ceiling.run}{at}"
    if share.low is None:
        yield f"the interval of that MFU is absent: {ratio(flops, ceiling.flops_per_second).why_no_interval}"


def _communication(summary: Summary, history: History) -> Iterator[Estimate | str]:
    """Yield the expected time of a step's collectives on the measured link, or a note on why it is absent."""
    transfers = summary.case.spec().transfers(summary.case)
    if not transfers:
        return
    links = find_links(summary, history)
    expected_s = links if isinstance(links, Absent) else expected_communication_s(summary, transfers, links)
    if isinstance(expected_s, Absent):
        yield f"expected communication is absent: {expected_s.reason}"
    elif expected_s > 0:
        yield estimate(RUN_COMMUNICATION_SECONDS, [expected_s], account="expected")


def expected_efficiencies(
    summary: Summary, baselines: Mapping[str, Summary], history: History
) -> tuple[tuple[Estimate, ...], tuple[str, ...]]:
    """Return the efficiencies that the cost model expects, for the measured ones, and notes on those that are absent.

    baselines: baselines by run, which may not be in the history yet.

    Raises:
        InfrastructureFailed: the history cannot be read.
    """
    efficiencies: list[Estimate] = []
    notes: list[str] = []
    for measured in summary.scaling:
        baseline = baselines.get(measured.baseline_run) or history.find(measured.baseline_run)
        links = find_links(summary, history)
        expected = expected_efficiency(
            summary.case,
            baseline.case,
            baseline.estimates,
            links if isinstance(links, Absent) else links.interconnect,
            scaling=measured.scaling,
            baseline=measured.baseline,
        )
        if isinstance(expected, Absent):
            notes.append(f"expected {measured.scaling} scaling efficiency is absent: {expected.reason}")
        else:
            efficiencies.append(expected)
    return tuple(efficiencies), tuple(notes)


def _bubble(summary: Summary, history: History) -> Iterator[Estimate | str]:
    """Yield the parts of a pipeline's bubble; without a link, all but the transfer."""
    case = summary.case
    pipeline = case.spec().pipeline(case)
    if pipeline is None:
        return
    links = find_links(summary, history)
    transfer_s = links if isinstance(links, Absent) else slowest_message_s(case, case.spec(), links.interconnect)
    yield from bubble_parts(pipeline, summary.estimates, transfer_s)


def expected_communication_s(summary: Summary, transfers: tuple[Transfer, ...], links: MeasuredLinks) -> float | Absent:
    """Return the time of all transfers of a step in turn, or why a needed link is unknown."""
    axes = summary.case.spec().mesh(summary.case)
    if (missing := missing_link(transfers, axes, links.interconnect)) is not None:
        return missing
    return sum(traffic_times_s(transfers, axes, links.interconnect, summary.case.backend).values())


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedStep:
    """Predicted time of a step. basis: its parts and sources, in words. has_host: whether one is the host's time."""

    step_s: float
    basis: str
    has_host: bool = False


# All references at once


def reference_runs(history: History) -> dict[str, str]:
    """Return the probe runs that serve as references for later runs, and what each gives: a ceiling or a link.

    Raises:
        InfrastructureFailed: the history cannot be read.
    """
    ceilings: dict[tuple[object, ...], Ceiling] = {}
    for summary in history.runs(RUNS_SEARCHED, strategy=MatmulSpec.name):
        case, ceiling = summary.case, ceiling_from(summary)
        if summary.outcome != "done" or isinstance(ceiling, Absent):
            continue
        setup = (summary.hardware, *_conditions(case, case.version))
        if setup not in ceilings or _rate(ceilings[setup]) < _rate(ceiling):
            ceilings[setup] = ceiling
    return dict.fromkeys(sweep_runs(history), "a link") | {ceiling.run: "a ceiling" for ceiling in ceilings.values()}


def _rate(ceiling: Ceiling) -> float:
    return ceiling.flops_per_second.median
