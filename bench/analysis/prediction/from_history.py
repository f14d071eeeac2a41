"""Calibrates a forecast from the history: the rates that runs on the same hardware reached.

Products take their rates from `matmul`, element-wise kernels and the optimizer from `copies`, and transfers from
`collectives`; the hidden share of communication comes from runs of the same strategy, and on a CPU also the host's
time. Each range spans all trials. A rate that no run measured is reported with the command that measures it; on a GPU,
the data sheet's rate replaces it (`bench.analysis.prediction.calibration`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from bench.analysis.prediction.calibration import (
    ELEMENTWISE_SHARE,
    FULLY_HIDDEN,
    HIDDEN_ELSEWHERE,
    HIDING_WORDS,
    OF_SHEETS,
    Calibration,
    Corner,
    Range,
    SheetRates,
    can_hide,
    sheet_links,
    sheet_rates,
)
from bench.analysis.prediction.forecast import hidden_ratio, pass_host_s
from bench.case import Case, options_set, written
from bench.errors import plural
from bench.machine.machine import gpu_named
from bench.machine.machines.machine_file import PlannedMachine
from bench.report.format import digits, whole_percent
from bench.results.estimate import Estimate, of_metric
from bench.results.mfu import peak_of
from bench.store.hardware_baselines import no_run_alike, runs_alike
from bench.store.links import Runs, bandwidth_spread, find_links
from bench.store.summary import Summary
from collectors.metrics.probes import RUN_COPY_BANDWIDTH, RUN_MATMUL_FLOPS
from collectors.metrics.results import RUN_OVERLAP_RATIO, RUN_STEP_SECONDS
from workloads.core.precision_options import is_fp8
from workloads.cost_models.absent import Absent
from workloads.cost_models.interconnect import Interconnect
from workloads.cost_models.terms import Collective
from workloads.pipeline_parallel.expected_step import missing_link
from workloads.probes.spec import CopiesSpec, MatmulSpec

COPIES: Mapping[str, str] = {"cpu": "memory_copy", "cuda": "device_copy"}
"""The kind of copy, by device, that reads and writes memory like element-wise kernels."""
LIKE_RUNS = 50
"""Number of the strategy's newest runs that are searched for hidden communication."""
HOST_RUNS = 10
"""Number of the newest like runs that show the host's time."""
LEAST_HIDDEN = 0.05
"""If the cost model hides less than this share, a run does not show how much of it is reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A case that has not run, and the hardware for it, written like `Summary.hardware`.

    also: collectives of other cases there, which the command that measures a missing link also sweeps.
    """

    case: Case
    hardware: str
    also: tuple[Collective, ...] = ()


def history_calibration(place: Place, history: Runs, machine: PlannedMachine | None = None) -> Calibration:
    """Return the rates that runs on this hardware reached; for a GPU, unmeasured rates come from the data sheet.

    machine: that of --on, whose data sheets give its links; None for this machine.

    Raises:
        InfrastructureFailed: the history cannot be read.
    """
    return _with_host(place, history, history_rates(place, history, machine))


def history_rates(place: Place, history: Runs, machine: PlannedMachine | None = None) -> Calibration:
    """Return the same without the host's time, which a strategy has only after a run.

    Raises:
        InfrastructureFailed: as `history_calibration`.
    """
    calibration = _without_hiding(place, history, machine)
    if not can_hide(place.case):
        return calibration
    hiding = _hiding(place, history, calibration)
    if hiding is None:
        rests_on = () if calibration.hiding == FULLY_HIDDEN else (HIDING_WORDS,)
        return replace(
            calibration,
            rests_on=(*calibration.rests_on, *rests_on),
            missing=(*calibration.missing, _no_like_run(place.case, calibration.hiding)),
        )
    return replace(
        calibration,
        hiding=hiding,
        rests_on=(
            *calibration.rests_on,
            f"{whole_percent(hiding.value)} [{100 * hiding.low:.0f}, {100 * hiding.high:.0f}] of the hiding that the"
            f" cost model allows, by {hiding.origin}",
        ),
    )


def sheet_rates_of(place: Place, machine: PlannedMachine | None) -> SheetRates:
    """Return the rates by the GPU's data sheet; absent for a CPU and for a GPU without a data sheet."""
    case = place.case
    if is_fp8(case):
        nothing = Absent(reason="no rate is assumed for fp8 products")
        return sheet_rates(nothing, nothing)
    if machine is not None:
        return sheet_rates(machine.peak(case.precision), machine.memory_bandwidth())
    if case.device == "cpu":
        nothing = Absent(reason="a CPU has no data sheet here")
        return sheet_rates(nothing, nothing)
    peak = peak_of(gpu_named(place.hardware), case.precision)
    return sheet_rates(peak, peak if isinstance(peak, Absent) else peak.bandwidth_bytes_per_second)


def _without_hiding(place: Place, history: Runs, machine: PlannedMachine | None) -> Calibration:
    case, hardware = place.case, place.hardware
    sheet = sheet_rates_of(place, machine)
    rests_on: list[str] = []
    missing: list[str] = []
    runs: list[str] = []
    matmuls = runs_alike(history, MatmulSpec(), case, hardware)
    products: tuple[tuple[float, Range], ...] | Absent
    if ladder := _ladder(matmuls):
        products = ladder
        runs.append(matmuls[0].run)
        ends = dict.fromkeys((ladder[0], ladder[-1]))
        words = " to ".join(f"{_rate_words(rate.value)} of {rows:,.0f} rows" for rows, rate in ends)
        rests_on.append(f"products at {words}, {ladder[-1][1].origin}")
    else:
        products = no_run_alike(MatmulSpec(), case, hardware)
        missing.append(products.reason)
        if isinstance(sheet.products, Range):
            products = ((1.0, sheet.products),)
            rests_on.append(sheet.products_words)
    copies = runs_alike(history, CopiesSpec(), case, hardware)
    memory: Range | Absent
    if (measured := _bandwidth(copies, COPIES[case.device])) is not None:
        memory = measured
        runs.append(copies[0].run)
        rests_on.append(
            f"memory at {digits(memory.value / 1e9)} GB/s [{digits(memory.low / 1e9)}, {digits(memory.high / 1e9)}],"
            f" {memory.origin}"
        )
    else:
        memory = no_run_alike(CopiesSpec(), case, hardware)
        missing.append(memory.reason)
        if isinstance(sheet.memory, Range):
            memory = sheet.memory
            rests_on.append(sheet.memory_words)
    links, origin = _links(place, history, machine, rests_on, missing, runs)
    return Calibration(
        name=hardware,
        products=products,
        attention=sheet.attention,
        memory=memory,
        elementwise=1.0 if case.device == "cpu" else ELEMENTWISE_SHARE,
        links=links,
        links_origin=origin,
        hiding=FULLY_HIDDEN if case.device == "cpu" or not can_hide(case) else HIDDEN_ELSEWHERE,
        rests_on=tuple(rests_on),
        missing=tuple(missing),
        runs=tuple(dict.fromkeys(runs)),
    )


def _rate_words(rate: float) -> str:
    return f"{digits(rate / 1e12)} TFLOP/s" if rate >= 1e11 else f"{digits(rate / 1e9)} GFLOP/s"


def _ladder(runs: Sequence[Summary]) -> tuple[tuple[float, Range], ...]:
    """Return FLOP/s by the rows of square matrices, ascending; empty if no run measured any."""
    by_rows: dict[float, list[Estimate]] = defaultdict(list)
    for run in runs:
        for product in of_metric(run.estimates, RUN_MATMUL_FLOPS):
            if len({product.labels[name] for name in ("m", "n", "k")}) == 1:
                by_rows[float(product.labels["m"])].append(product)
    return tuple((rows, _scatter(products, "matmul")) for rows, products in sorted(by_rows.items()))


def _bandwidth(runs: Sequence[Summary], kind: str) -> Range | None:
    copies = [
        copy for run in runs for copy in of_metric(run.estimates, RUN_COPY_BANDWIDTH) if copy.labels["kind"] == kind
    ]
    return _scatter(copies, "copies") if copies else None


def _scatter(estimates: Sequence[Estimate], probe: str) -> Range:
    """Return the median of the runs' medians, with the range of all trials."""
    trials = [value for each in estimates for value in (each.median, *each.trials)]
    return Range(
        value=median(each.median for each in estimates),
        low=min(trials),
        high=max(trials),
        origin=_range_words(len(estimates), sum(len(each.trials) for each in estimates), probe),
    )


def _range_words(runs: int, trials: int, what: str) -> str:
    return f"range of {plural(trials, 'trial')} in {plural(runs, 'run')} of {what}"


def _links(
    place: Place,
    history: Runs,
    machine: PlannedMachine | None,
    rests_on: list[str],
    missing: list[str],
    runs: list[str],
) -> tuple[Mapping[Corner, Interconnect] | Absent, str]:
    """Return the interconnect at each corner and the origin of its range; append to `rests_on`, `missing` and `runs`.

    A strategy that sends nothing needs none. If a link was not measured, all links come from the machine's data sheets:
    measured levels and data-sheet levels are not mixed.
    """
    case = place.case
    transfers, axes = case.spec().transfers(case), case.spec().mesh(case)
    if not transfers or case.ranks == 1:
        return Absent(reason="nothing is sent"), ""
    links = find_links(place, history, also=place.also)
    unknown = links if isinstance(links, Absent) else missing_link(transfers, axes, links.interconnect)
    if isinstance(links, Absent) or unknown is not None:
        assert unknown is not None, "it is the links' own reason"
        missing.append(unknown.reason)
        if machine is None:
            return unknown, ""
        by_sheet, words = sheet_links(case, machine)
        rests_on += words
        return by_sheet, OF_SHEETS
    runs += [sweep.run for sweep in links.sweeps]
    spread = bandwidth_spread(place, history)
    assert spread is not None, "a sweep gave the links"
    origin = _range_words(spread.runs, spread.trials, "collectives")
    rests_on.append(
        f"links: {links.basis}; {whole_percent(spread.low)} to {whole_percent(spread.high)} of that, {origin}"
    )
    corners: dict[Corner, float] = {"low": min(1.0, spread.low), "value": 1.0, "high": max(1.0, spread.high)}
    return {
        corner: Interconnect(levels=tuple(level.scaled(share) for level in links.interconnect.levels))
        for corner, share in corners.items()
    }, origin


# Communication that runs of the same strategy hid


def _hiding(place: Place, history: Runs, calibration: Calibration) -> Range | None:
    """Return the communication that similar runs hid, as a share of what the cost model hides; None if no run shows it.

    Similar runs have the same strategy, backend and hardware, and the same or else the nearest number of ranks.
    """
    case = place.case
    like = [
        run
        for run in history.runs(LIKE_RUNS, strategy=case.strategy)
        if (run.outcome, run.hardware, run.case.backend) == ("done", place.hardware, case.backend)
        and run.drill is None
        and of_metric(run.estimates, RUN_OVERLAP_RATIO)
    ]
    settings = {(run.case.ranks, run.case.nodes) for run in like}
    for setting in sorted(settings, key=lambda each: (abs(each[1] - case.nodes), abs(each[0] - case.ranks))):
        runs = [run for run in like if (run.case.ranks, run.case.nodes) == setting]
        own = calibration
        if setting != (case.ranks, case.nodes) or case.device == "cpu":
            own = _without_hiding(Place(case=runs[0].case, hardware=place.hardware), history, None)
        shares = [share for run in runs for share in _reached(run, own)]
        if shares:
            ranks = plural(setting[0], "rank")
            return Range(
                value=median(shares),
                low=min(shares),
                high=max(shares),
                origin=f"{plural(len(shares), 'run')} of {case.strategy} on {ranks}",
            )
    return None


def _reached(run: Summary, calibration: Calibration) -> list[float]:
    """Return the run's hidden share divided by that of the cost model; nothing if the cost model hides little."""
    allowed = hidden_ratio(run.case, calibration)
    if allowed is None or allowed < LEAST_HIDDEN:
        return []
    (measured, *_) = of_metric(run.estimates, RUN_OVERLAP_RATIO)
    return [min(1.0, measured.median / allowed)]


# Host time: what runs of the same strategy took beyond the model


def _with_host(place: Place, history: Runs, calibration: Calibration) -> Calibration:
    """Return the rates with the host's time on a CPU, where Python and small operators take the cores of the products.

    Like runs have the same strategy in the same version, mesh, backend, precision and hardware. They are of other
    cases, because a case that has run would be predicted by its own step.
    """
    case = place.case
    if case.device != "cpu" or case.model is None:
        return calibration
    like = [
        (run, step)
        for run in history.runs(LIKE_RUNS, strategy=case.strategy)
        if (run.outcome, run.hardware, run.drill) == ("done", place.hardware, None) and _is_alike(run.case, case)
        for step in of_metric(run.estimates, RUN_STEP_SECONDS)
    ]
    values: list[float] = []
    ends: list[float] = []
    trials = 0
    runs: list[str] = []
    for run, step in like[:HOST_RUNS]:
        steps_s = (step.median, min(step.trials), max(step.trials))
        passes = [pass_host_s(run.case, calibration, step_s) for step_s in steps_s]
        known = [pass_s for pass_s in passes if pass_s is not None]
        values += known[:1]
        ends += known
        trials += len(step.trials) if known else 0
        runs += [run.run] if known else []
    if not values:
        return calibration
    origin = _range_words(len(values), trials, case.strategy)
    host = Range(value=median(values), low=min(ends), high=max(ends), origin=origin)
    low, value, high = (digits(1e3 * each) for each in (host.low, host.value, host.high))
    return replace(
        calibration,
        pass_host=host,
        runs=(*calibration.runs, *runs[:1]),
        rests_on=(
            *calibration.rests_on,
            f"host: {value} ms [{low}, {high}] for forward or backward of a block and microbatch, which is what steps"
            f" took beyond the cost models, {origin}",
        ),
    )


def _is_alike(run: Case, case: Case) -> bool:
    """Whether the run is of another case, whose ranks make the same calls for a block on as many cores.

    A run that saves checkpoints is not: saving may slow its steps, and its case may be the same otherwise.
    """
    names = ("version", "nodes", "threads", "device", "backend", "precision")
    is_same = all(getattr(run, name) == getattr(case, name) for name in names)
    is_same &= run.options.get("compile", "none") == case.options.get("compile", "none")
    is_other = run.save_every is None and run.key() != replace(case, save_every=None).key()
    return is_same and is_other and run.spec().mesh(run) == case.spec().mesh(case)


def _no_like_run(case: Case, hiding: Range) -> str:
    options = "".join(f" --option {name}={written(value)}" for name, value in options_set(case).items())
    much = "as much as" if hiding == FULLY_HIDDEN else f"{whole_percent(hiding.value)} of what"
    return (
        f"no run of {case.strategy} shows how much is hidden, so {much} the cost model allows is assumed;"
        f" `observatory run {case.strategy} --ranks {case.ranks}{options}` measures it"
    )
