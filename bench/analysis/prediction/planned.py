"""Forecasts the cases of a command line, on this machine or on a remote one.

Rates of this machine come from its history; those of a remote machine come from its data sheets, or from runs on its
hardware.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from bench.analysis.prediction.calibration import Calibration
from bench.analysis.prediction.forecast import Forecast, forecast, forecast_on
from bench.analysis.prediction.from_history import Place, history_calibration
from bench.analysis.prediction.memory import memory_within
from bench.case import Case, find_spec
from bench.errors import Misuse
from bench.machine.machine import hardware_here
from bench.machine.machines.machine_file import PlannedMachine, read_machine
from bench.results.mfu import Peak, peak_of
from bench.session.case_args import CaseArgs, NodeResources, case_of_args, default_lines, node_on, read_node
from bench.store.history import History, NoStoreYet
from bench.store.links import NoRuns, Runs
from workloads.cost_models.absent import Absent


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictOptions:
    """Options of a prediction. on: the machine's name; None for this one. nodes, ranks_per_node: of this machine."""

    on: str | None = None
    from_history: bool = False
    nodes: int = 1
    ranks_per_node: int | None = None
    store_url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """The forecast of a case. machine: that of --on; None for this machine. lines: notes for the reader."""

    forecast: Forecast
    machine: PlannedMachine | None
    lines: tuple[str, ...]


def predicted_cases(args: CaseArgs, options: PredictOptions) -> list[Predicted]:
    """Return a forecast for each requested number of ranks. Starts and writes nothing.

    Raises:
        Misuse: a name or value is unknown, not allowed or impossible, or there is no run to read rates from.
        InfrastructureFailed: the history cannot be read, or a case needs GPUs that cannot be used.
    """
    if find_spec(args.strategy).kind == "probe":
        raise Misuse(
            f"{args.strategy} is a probe, which trains no model, and there is nothing to predict; name a strategy"
            " (`observatory list` shows all)"
        )
    machine = None if options.on is None else read_machine(options.on)
    if machine is not None and (options.nodes, options.ranks_per_node) != (1, None):
        raise Misuse("--on defines the nodes, so --nodes and --ranks-per-node cannot be set with it; leave them out")
    node = read_node(options.nodes, options.ranks_per_node) if machine is None else node_on(machine)
    predicted = []
    for count in args.ranks or (None,):
        case = case_of_args(args, count, node)
        lines = tuple(default_lines(args, case, node))
        if machine is not None and not options.from_history:
            predicted.append(Predicted(forecast=forecast_on(case, machine), machine=machine, lines=lines))
            continue
        hardware = hardware_here(case.device, cores=node.cores, gpus=node.gpus.gpus)  # Written as in its runs.
        if machine is None and case.nodes != 1:
            hardware = f"{hardware}, as {case.nodes} nodes"
        place = Place(case=case, hardware=hardware)
        with _history(options.store_url) as history:
            calibration = history_calibration(place, history, machine)
        if machine is not None:
            if not calibration.runs:
                raise Misuse(
                    f"--from-history: the history has no run of matmul, copies or collectives on {hardware} at"
                    f" {case.precision}; leave it out for data sheets, or measure there: `observatory run matmul`,"
                    " `copies` and `collectives`"
                )
            calibration = replace(calibration, name=machine.name)
        predicted.append(Predicted(forecast=_at_rates(case, node, calibration), machine=machine, lines=lines))
    return predicted


def _at_rates(case: Case, node: NodeResources, calibration: Calibration) -> Forecast:
    """Return the forecast at these rates, with the memory of the node."""
    peak, words = _peak(case, node, calibration)
    # The memory that a rank may fill: its GPU's, or its share of the host's.
    here = case.ranks if node.planned is None else -(-case.ranks // case.nodes)
    room_bytes = node.host_bytes // here
    sizes = [gpu.memory_bytes for gpu in node.gpus.gpus if gpu.memory_bytes is not None]
    if case.device == "cuda" and sizes:
        room_bytes = min(sizes)
    return forecast(
        case,
        calibration,
        memory_within(case, room_bytes, node.host_bytes),
        peak=peak,
        peak_words=words,
    )


def _peak(case: Case, node: NodeResources, calibration: Calibration) -> tuple[Peak | Absent, str]:
    """Return the reference of MFU: the data sheet's peak, or else the measured ceiling."""
    if case.device == "cuda":
        gpus = node.gpus.gpus
        peak = peak_of(gpus[0].name if gpus else None, case.precision)
        if node.planned is not None:
            peak = node.planned.peak(case.precision)
        if isinstance(peak, Peak):
            return peak, "the data sheet's peak"
    if isinstance(calibration.products, Absent):
        return calibration.products, "the measured ceiling"
    # On a CPU all products are measured.
    ceiling = max(rate.value for _, rate in calibration.products)
    peak = Peak(
        device=calibration.name,
        precision=case.precision,
        flops_per_second=ceiling,
        bandwidth_bytes_per_second=0.0,
        source="matmul",
    )
    return peak, "the measured ceiling"


@contextmanager
def _history(url: str | None) -> Iterator[Runs]:
    """Open the history for reading; if there is none yet and `url` is None, yield an empty one."""
    try:
        with History(url, writable=False) as history:
            yield history
        return
    except NoStoreYet:
        if url is not None:
            raise
    yield NoRuns()
