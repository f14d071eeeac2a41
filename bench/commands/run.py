"""`observatory run`: measures one strategy on this machine, and its baseline beside it where asked."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import click

from bench.case import Case, check, find_card, one_rank_baseline, parse_options
from bench.cli import CASE_FAILED, FINE, INFRASTRUCTURE, INTERRUPTED
from bench.controller import Conduct, Measured, measure
from bench.engines.roster import ENGINES
from bench.errors import InfrastructureFailed, Misuse
from bench.faults import Fault, parse_fault
from bench.gpus import visible_gpus
from bench.keeping import Kept, adopt, check_baseline, keep
from bench.notices import say
from bench.places import RUNS, STORE
from bench.reports.formats import FORMAT, to_reader
from bench.reports.progress import Progress
from bench.reports.terminal import cause_lines, print_summaries
from bench.serving import PORT, serving
from bench.store.history import History
from workloads.cards.card import Backend, Card, Device, Precision
from workloads.parts.shape import DIMENSIONS, PRESETS, Shape


def _dimensions(function: Any) -> Any:
    for name in reversed(DIMENSIONS):
        text = "Sequences of one step over all ranks." if name == "batch" else f"Overrides the shape's {name}."
        function = click.option(f"--{name.replace('_', '-')}", name, type=int, help=text)(function)
    return function


@click.command(name="run")
@click.argument("strategy")
@click.option("--ranks", type=int, help="Number of ranks.  [default: the GPUs, or 2 on a CPU, as the strategy allows]")
@click.option("--shape", "shape_name", default="tiny", show_default=True, help=f"One of {', '.join(PRESETS)}.")
@_dimensions
@click.option("--trials", type=int, default=3, show_default=True, help="Times that fresh ranks measure it.")
@click.option("--steps", type=int, default=20, show_default=True, help="Measured steps of a trial.")
@click.option("--warm-up", type=int, default=5, show_default=True, help="Steps before them that are not measured.")
@click.option("--trace-steps", type=int, default=3, show_default=True, help="Steps under the profiler, after them.")
@click.option("--keep-traces", is_flag=True, help="Keep each rank's trace beside its Timeline.")
@click.option("--precision", type=click.Choice(get_args(Precision)), default="fp32", show_default=True)
@click.option("--device", type=click.Choice(get_args(Device)), help="[default: cuda where a GPU is, else cpu]")
@click.option("--backend", type=click.Choice(get_args(Backend)), help="[default: nccl on cuda, gloo on cpu]")
@click.option("--threads", type=int, default=1, show_default=True, help="CPU threads of a rank.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of weights and data.")
@click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="See `observatory list`.")
@click.option("--with-baseline", type=click.Choice(["weak", "strong"]), help="Measure `single` too, in turn with it.")
@click.option("--baseline", "baseline_run", metavar="RUN", help="Run to read the scaling efficiency against.")
@click.option("--limit", "limit_s", type=float, default=600.0, show_default=True, help="Seconds that a trial may take.")
@click.option("--engine", "engine_name", type=click.Choice(list(ENGINES)), default="local", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="Of this run's /metrics.")
@click.option("--inject", "fault_text", metavar="KIND@RANK:STEP", help="A fire drill: raise, kill, hang, exit, leave.")
@RUNS
@STORE
@FORMAT
def command(
    strategy: str,
    ranks: int | None,
    shape_name: str,
    trials: int,
    steps: int,
    warm_up: int,
    trace_steps: int,
    keep_traces: bool,
    precision: Precision,
    device: Device | None,
    backend: Backend | None,
    threads: int,
    seed: int,
    options: tuple[str, ...],
    with_baseline: str | None,
    baseline_run: str | None,
    limit_s: float,
    engine_name: str,
    port: int,
    fault_text: str | None,
    runs_folder: Path,
    store_url: str | None,
    format_name: str,
    **dimensions: int | None,
) -> int:
    """Measure one strategy on this machine.

    \b
    Example:
      observatory run ddp --ranks 2 --with-baseline weak
    """
    card = find_card(strategy)
    gpus = len(visible_gpus())
    chosen = _device(device, gpus)
    case = check(
        Case(
            strategy=card.name,
            version=card.version,
            ranks=_default_ranks(card, chosen, gpus) if ranks is None else ranks,
            shape=_shape(shape_name, dimensions),
            device=chosen,
            backend=backend or ("nccl" if chosen == "cuda" else "gloo"),
            precision=precision,
            threads=threads,
            trials=trials,
            steps=steps,
            warm_up=warm_up,
            trace_steps=trace_steps,
            seed=seed,
            options=parse_options(card, options),
        )
    )
    if case.backend == "nccl" and case.ranks > gpus:
        raise Misuse(f"ranks is {case.ranks} and NCCL wants a GPU for each; {gpus} can be seen (--backend gloo shares)")
    if not 1 <= limit_s < float("inf"):
        raise Misuse(f"limit is {limit_s:g}; it must be a number of seconds, 1 or more")
    fault = None if fault_text is None else parse_fault(fault_text, ranks=case.ranks, steps=case.warm_up + case.steps)
    cases: list[tuple[Case, Fault | None]] = [(case, fault)]
    if with_baseline is not None:
        cases.insert(0, (_baseline_case(case, with_baseline), None))
    if device is None:
        found = f"{gpus} GPU(s) found" if gpus else "no NVIDIA GPU found"
        say(f"device: {chosen} ({found})")
    conduct = Conduct(limit_s=limit_s, keep_traces=keep_traces, store=store_url)
    measured, kept = _measure(cases, engine_name, conduct, baseline_run, runs_folder, port)
    with to_reader():
        print_summaries(kept.summaries, format_name)
    problems = [line for summary in kept.summaries for line in cause_lines(summary)]
    for line in [*problems, *(str(failure) for failure in kept.failures)]:
        say(line)
    say("`observatory serve` goes on showing results at /metrics, and `observatory show` here")
    return _code(measured, kept)


def _measure(
    cases: Sequence[tuple[Case, Fault | None]],
    engine_name: str,
    conduct: Conduct,
    baseline_run: str | None,
    runs_folder: Path,
    port: int,
) -> tuple[Measured, Kept]:
    """Measure the cases, and keep what came of them."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    case = cases[-1][0]
    with (
        History(conduct.store) as history,
        serving(runs_folder, conduct.store, port=port, on_notice=say),
    ):
        for problem in adopt(runs_folder, history, conduct.store):
            say(problem)
        told = None if baseline_run is None else history.find(baseline_run)
        with ENGINES[engine_name]() as engine, Progress([case for case, _ in cases]) as progress:
            machine = engine.machine()
            if case.device == "cuda" and machine.torch_cuda_version is None:
                raise InfrastructureFailed(
                    f"torch {machine.torch_version} is built without CUDA; install a CUDA build, or take --device cpu"
                )
            if told is not None:
                check_baseline(case, machine, told)
            measured = measure(
                cases, engine=engine, machine=machine, folder=runs_folder, conduct=conduct, watch=progress.update
            )
        try:
            return measured, keep(measured.summaries, machine, history, told)
        finally:
            measured.close()


def _code(measured: Measured, kept: Kept) -> int:
    if measured.is_interrupted:
        return INTERRUPTED
    causes = {summary.cause.kind for summary in kept.summaries if summary.cause is not None}
    if kept.failures or causes & {"agent", "disk"}:
        return INFRASTRUCTURE
    return CASE_FAILED if causes else FINE


def _shape(name: str, dimensions: Mapping[str, int | None]) -> Shape:
    if name not in PRESETS:
        raise Misuse(f'shape "{name}" is unknown; it may be {", ".join(PRESETS)}')
    try:
        return replace(PRESETS[name], **{key: value for key, value in dimensions.items() if value is not None})
    except ValueError as error:
        raise Misuse(f"shape {name}: {error}") from None


def _device(asked: Device | None, gpus: int) -> Device:
    if asked == "cuda" and not gpus:
        raise Misuse("device is cuda and no NVIDIA GPU can be seen; take --device cpu, or look at `nvidia-smi`")
    return asked or ("cuda" if gpus else "cpu")


def _default_ranks(card: Card, device: Device, gpus: int) -> int:
    ranks = max(card.needs.minimum_ranks, gpus if device == "cuda" else 2)
    return ranks if card.needs.maximum_ranks is None else min(ranks, card.needs.maximum_ranks)


def _baseline_case(case: Case, scaling: str) -> Case:
    if case.ranks == 1:
        raise Misuse("--with-baseline compares several ranks with one; ranks is 1")
    baseline = one_rank_baseline(case, scaling)
    if baseline is None:
        accumulate = case.options["accumulate"]
        raise Misuse(
            f"batch {case.shape.batch} over {case.ranks} ranks leaves no equal {scaling} share for one rank with"
            f" accumulate {accumulate}; choose a --batch that is a multiple of both"
        )
    return baseline
