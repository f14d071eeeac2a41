"""`observatory run`: measures one strategy on this machine, and its baseline beside it where asked."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import click
from click.core import ParameterSource

from bench.asking import Asked, asked_case, baseline_case, refuse_training_words
from bench.case import SEED, USUAL, Case, find_card
from bench.cli import CASE_FAILED, FINE, INFRASTRUCTURE, INTERRUPTED
from bench.completion import complete_option, complete_run, complete_strategy
from bench.controller import Conduct, Measured, measure
from bench.convergence import NOT_IN_CHECKS, check_cases, conclude, refuse_measuring_words
from bench.device_checks import TorchBuild, check_torch, torch_build, why_no_gpu
from bench.engines.roster import ENGINES
from bench.errors import Misuse
from bench.faults import Fault, parse_fault
from bench.gpus import Gpus, read_gpus, read_memory
from bench.judgement.ceiling import Ceiling, find_ceiling
from bench.judgement.convergence import Verdict
from bench.keeping import Kept, adopt, check_baseline, keep
from bench.looks import Looks, check_looks
from bench.machine import Machine
from bench.notices import say
from bench.places import RUNS, STORE, NamedText
from bench.preflight import available_bytes, check_memory, check_processes
from bench.purpose import Purpose, check_purpose
from bench.reports.convergence import print_verdict
from bench.reports.formats import DETAILS, FORMAT, to_reader
from bench.reports.memory_by_category import show_memory
from bench.reports.progress import Progress
from bench.reports.terminal import cause_lines, print_summaries
from bench.reports.timeline import show_timeline
from bench.run import check_place
from bench.serving import PORT, serving
from bench.stage_trace import require_stages
from bench.store.connecting import parse_url
from bench.store.history import History, find_run
from bench.summary import Summary
from workloads.cards.card import Backend, Device, Precision
from workloads.cards.check_options import MISTAKES, Mistake
from workloads.parts.shape import DIMENSIONS, PRESETS

TRAINING_WORDS = (
    "shape_name",
    *DIMENSIONS,
    "trace_steps",
    "keep_traces",
    "trace_every",
    "memory_snapshot",
    "with_baseline",
    "baseline_run",
    "is_check",
    "mistakes",
    "with_timeline",
)
"""Parameters of the command that a probe does not take."""


def _dimensions(function: Any) -> Any:
    for name in reversed(DIMENSIONS):
        text = "Sequences of one step over all ranks." if name == "batch" else f"Overrides the shape's {name}."
        function = click.option(f"--{name.replace('_', '-')}", name, type=int, help=text)(function)
    return function


def _usual(name: str, text: str) -> Callable[[Any], Any]:
    """An option that says how often or how long a case is measured."""
    return click.option(
        f"--{name.replace('_', '-')}", name, type=int, default=USUAL[name], show_default=True, help=text
    )


@click.command(name="run")
@click.argument("strategy", shell_complete=complete_strategy)
@click.option("--ranks", type=int, help="Number of ranks.  [default: the GPUs, or 2 on a CPU, as the strategy allows]")
@click.option("--shape", "shape_name", default="tiny", show_default=True, help=f"One of {', '.join(PRESETS)}.")
@_dimensions
@click.option(
    "--trials", type=int, default=USUAL["trials"], show_default=True, help="Times that fresh ranks measure it."
)
@_usual("steps", "Measured steps of a trial.")
@click.option(
    "--warm-up", type=int, default=USUAL["warm_up"], show_default=True, help="Steps before them that are not measured."
)
@click.option(
    "--trace-steps",
    type=int,
    default=USUAL["trace_steps"],
    show_default=True,
    help="Steps under the profiler, after them.",
)
@click.option("--keep-traces", is_flag=True, help="Keep each rank's trace beside its Timeline.")
@click.option("--trace-every", type=int, metavar="STEPS", help="Measured steps from one such window to the next.")
@click.option("--memory-snapshot", is_flag=True, help="Look at the memory of one step: by category, and its blocks.")
@click.option("--precision", type=click.Choice(get_args(Precision)), default="fp32", show_default=True)
@click.option("--device", type=click.Choice(get_args(Device)), help="[default: cuda where a GPU is, else cpu]")
@click.option("--backend", type=click.Choice(get_args(Backend)), help="[default: nccl on cuda, gloo on cpu]")
@click.option("--threads", type=int, default=1, show_default=True, help="CPU threads of a rank.")
@click.option("--seed", type=int, default=SEED, show_default=True, help="Of weights and data.")
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=complete_option,
    help="See `observatory list`.",
)
@click.option("--with-baseline", type=click.Choice(["weak", "strong"]), help="Measure `single` too, in turn with it.")
@click.option(
    "--baseline",
    "baseline_run",
    type=NamedText(),
    metavar="RUN",
    shell_complete=complete_run,
    help="Run to read the scaling efficiency against.",
)
@click.option("--limit", "limit_s", type=float, default=600.0, show_default=True, help="Seconds that a trial may take.")
@click.option("--engine", "engine_name", type=click.Choice(list(ENGINES)), default="local", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="Of this run's /metrics.")
@click.option("--note", metavar="TEXT", help="What the run is for; it is ad hoc then, and not shown at /metrics.")
@click.option("--nightly", "is_nightly", is_flag=True, help="Show it at /metrics though it measures less than usual.")
@click.option("--inject", "fault_text", metavar="KIND@RANK:STEP", help="A fire drill: raise, kill, hang, exit, leave.")
@click.option("--check-convergence", "is_check", is_flag=True, help="Compare losses with one rank's, and name causes.")
@click.option(
    "--inject-cause", "mistakes", multiple=True, type=click.Choice(MISTAKES), help="A fire drill of that check."
)
@click.option("--timeline", "with_timeline", is_flag=True, help="Draw a step of a pipeline's stages, and trace it.")
@RUNS
@STORE
@FORMAT
@DETAILS
def command(
    strategy: str,
    ranks: int | None,
    shape_name: str,
    trials: int,
    steps: int,
    warm_up: int,
    trace_steps: int,
    keep_traces: bool,
    trace_every: int | None,
    memory_snapshot: bool,
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
    note: str | None,
    is_nightly: bool,
    is_check: bool,
    mistakes: tuple[Mistake, ...],
    with_timeline: bool,
    runs_folder: Path,
    store_url: str | None,
    format_name: str,
    has_details: bool,
    **dimensions: int | None,
) -> int:
    """Measure one strategy on this machine.

    \b
    Example:
      observatory run ddp --ranks 2 --with-baseline weak
    """
    card = find_card(strategy)
    refuse_training_words(card, _said(TRAINING_WORDS))
    purpose = check_purpose(Purpose(origin="nightly" if is_nightly else "run", note=note))
    if store_url is not None:
        parse_url(store_url)
    cores = len(os.sched_getaffinity(0))
    gpus, torch = read_gpus(on_late=say), torch_build()
    case = asked_case(
        card,
        Asked(
            shape_name=shape_name,
            dimensions=dimensions,
            ranks=ranks,
            device=device,
            backend=backend,
            precision=precision,
            threads=threads,
            trials=trials,
            steps=steps,
            warm_up=warm_up,
            trace_steps=trace_steps,
            seed=seed,
            options=options,
            cores=cores,
            gpus=gpus,
            torch=torch,
        ),
    )
    crowds = check_processes(case, host_bytes=available_bytes(), cores=cores)
    memory = read_memory(gpus.gpus) if case.device == "cuda" else ()
    check_memory(case, host_bytes=available_bytes(), gpus=gpus.gpus, memory=memory)
    if not 1 <= limit_s < float("inf"):
        raise Misuse(f"limit is {limit_s:g}; it must be a number of seconds, 1 or more")
    fault = None if fault_text is None else parse_fault(fault_text, ranks=case.ranks, steps=case.positions())
    cases: list[tuple[Case, Fault | None]] = [(case, fault)]
    if with_timeline:
        require_stages(case)
    if with_baseline is not None:
        cases.insert(0, (baseline_case(case, with_baseline), None))
    if is_check:
        refuse_measuring_words(_said(NOT_IN_CHECKS))
        cases = [(checked, None) for checked in check_cases(case, mistakes)]
    elif mistakes:
        raise Misuse("--inject-cause is for a check; add --check-convergence")
    looks = check_looks(Looks(trace_every=trace_every, memory_snapshot=memory_snapshot), case)
    conduct = Conduct(limit_s=limit_s, keep_traces=keep_traces, looks=looks, store=store_url, purpose=purpose)
    told = None if baseline_run is None else find_run(baseline_run, store_url)
    check_place(runs_folder)
    if device is None:
        say(f"device: {case.device} ({_found(gpus, torch)})")
    for crowd in crowds:
        say(crowd)
    measured, verdict, kept = _measure(cases, engine_name, conduct, told, runs_folder, port, is_check=is_check)
    with to_reader():
        if verdict is not None:
            print_verdict(verdict, cases[-1][0], format_name)
        elif not is_check:
            print_summaries(kept.summaries, format_name, has_details=has_details, has_stages=with_timeline)
        if memory_snapshot and format_name == "table":
            for summary in kept.summaries:
                show_memory(summary)
        if with_timeline and kept.summaries[-1].trials_done:
            is_drawn = format_name == "table"  # JSON and CSV are of the run alone; `show --timeline` prints the other.
            if is_drawn:
                click.echo()
            drawn = show_timeline(kept.summaries[-1], "table" if is_drawn else None)
            say(f"timeline: {drawn} opens in ui.perfetto.dev")
    problems = [line for summary in kept.summaries for line in cause_lines(summary)]
    for line in [*problems, *(str(failure) for failure in kept.failures)]:
        say(line)
    say("`observatory serve` goes on showing results at /metrics, and `observatory show` here")
    return _code(measured, kept)


def _measure(
    cases: Sequence[tuple[Case, Fault | None]],
    engine_name: str,
    conduct: Conduct,
    told: Summary | None,
    runs_folder: Path,
    port: int,
    *,
    is_check: bool,
) -> tuple[Measured, Verdict | None, Kept]:
    """Measure the cases, judge them where they are a check, and keep what came of them."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    case = cases[-1][0]
    with (
        History(conduct.store) as history,
        serving(runs_folder, conduct.store, port=port, on_notice=say),
    ):
        for problem in adopt(runs_folder, history, conduct.store).problems:
            say(problem)
        with ENGINES[engine_name]() as engine, Progress([case for case, _ in cases]) as progress:
            machine = engine.machine()
            check_torch(case, machine)
            if told is not None:
                check_baseline(case, machine, told)
            conduct = replace(conduct, ceiling_of=lambda case: _ceiling(history, case, machine))
            measured = measure(
                cases, engine=engine, machine=machine, folder=runs_folder, conduct=conduct, watch=progress.update
            )
        try:
            measured, verdict = conclude(measured) if is_check else (measured, None)
            return measured, verdict, keep(measured.summaries, machine, history, told)
        finally:
            measured.close()


def _found(gpus: Gpus, torch: TorchBuild) -> str:
    """Why a run that named no device takes the one that it takes."""
    if not gpus.gpus:
        return why_no_gpu(gpus, torch)
    hidden = "" if gpus.hidden is None else f"; {gpus.hidden.text}"
    return f"{len(gpus.gpus)} GPU(s) found{hidden}"


def _ceiling(history: History, case: Case, machine: Machine) -> float | None:
    """FLOP/s that training is seen as a share of while it goes on."""
    found = None if case.model is None else find_ceiling(history, case, machine.hardware(case.device))
    return found.flops_per_second.median if isinstance(found, Ceiling) else None


def _said(names: Sequence[str]) -> list[str]:
    """Those of the parameters that stand on the command line, as they are written there."""
    context = click.get_current_context()
    return [
        parameter.opts[0].removeprefix("--")
        for parameter in context.command.params
        if parameter.name in names and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    ]


def _code(measured: Measured, kept: Kept) -> int:
    if measured.is_interrupted:
        return INTERRUPTED
    causes = {summary.cause.kind for summary in kept.summaries if summary.cause is not None}
    if kept.failures or causes & {"agent", "disk"}:
        return INFRASTRUCTURE
    return CASE_FAILED if causes else FINE
