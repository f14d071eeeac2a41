"""Executes the plan of `observatory run`: measures and stores the cases, and presents the results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import click

from bench.analysis.convergence.check import ConvergenceVerdict, conclude
from bench.analysis.convergence.report import print_verdict
from bench.analysis.prediction.scoring.before_run import predicted_steps
from bench.cli.run.planning import Plan, RunOptions
from bench.engines.cluster import NodeRequest
from bench.engines.registry import nodes_to_ask
from bench.errors import FINE, say
from bench.report.run.pipeline import show_timeline
from bench.report.run.summary import cause_lines, print_curve, print_curve_json, print_summaries, show_memory
from bench.report.table import to_reader
from bench.serve.server import serving
from bench.session.measure import alike
from bench.session.persist import PersistedRuns, check_hardware
from bench.session.session import exit_code, open_session
from bench.store.hardware_baselines import PredictedStep
from bench.store.scaling_baseline import curve_of
from bench.suite.progress import Progress
from workloads.cost_models.absent import Absent


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The results of a run. predicted: steps by the cost model, by the run's id. verdict: of a convergence check."""

    runs: PersistedRuns
    predicted: Mapping[str, PredictedStep | Absent]
    verdict: ConvergenceVerdict | None


def execute(plan: Plan, options: RunOptions) -> Results:
    """Measure the cases, reach the verdict of a convergence check, and store the results.

    Raises:
        Misuse: ranks cannot use torch or the GPUs as requested, or the baseline ran on other hardware.
        InfrastructureFailed: nothing can be started or stored.
    """
    cases = [case for case, _ in plan.cases]
    nodes = nodes_to_ask(options.engine_name, options.nodes, cases)
    orders = alike(plan.cases, plan.settings)
    is_drawn = False if options.quiet or options.verbose else None  # Bars would hide the lines of --verbose.
    with open_session(
        runs=options.runs_folder,
        store_url=options.store_url,
        tell=options.tell,
        work="run",
        serving=partial(serving, port=options.port, cluster=plan.cluster),
        engine=options.engine_name,
        request=NodeRequest(nodes=nodes, file=options.engine_file, tell=options.tell),
    ) as session:
        with Progress(orders, tell=options.tell, is_drawn=is_drawn, is_long=options.verbose) as bars:
            machine = session.machine()
            if plan.explicit_baseline is not None:
                check_hardware(plan.case, machine, plan.explicit_baseline)
            measured = session.measure(orders, bars)
        with measured:
            session.stop_engine()
            judged, verdict = conclude(measured) if options.is_check else (measured, None)
            runs = session.keep(judged, explicit_baseline=plan.explicit_baseline, is_curve=plan.is_curve, is_last=True)
        is_shown = options.format_name == "table" and not options.is_check
        predicted = predicted_steps(
            runs.summaries if is_shown else (), session.store.history or Absent(reason="the store does not answer")
        )
    return Results(runs=runs, predicted=predicted, verdict=verdict)


def present(plan: Plan, options: RunOptions, results: Results) -> None:
    """Print the results in the requested format, and failures to standard error."""
    summaries = results.runs.summaries
    is_table = options.format_name == "table"
    with to_reader():
        if results.verdict is not None:
            print_verdict(results.verdict, plan.case, options.format_name)
        elif plan.is_curve and options.format_name == "json":
            print_curve_json(curve_of(summaries))
        elif not options.is_check:
            print_summaries(
                summaries,
                options.format_name,
                has_details=options.has_details,
                has_stages=options.with_timeline,
                predicted=results.predicted,
            )
            if plan.is_curve and is_table:
                print_curve(curve_of(summaries))
        if options.memory_snapshot and is_table:
            for summary in summaries:
                show_memory(summary)
        if options.with_timeline and summaries[-1].trials_done:
            if is_table:  # JSON and CSV contain only the run; `show --timeline` prints the timeline.
                click.echo()
            drawn = show_timeline(summaries[-1], "table" if is_table else None)
            options.tell(f"timeline: {drawn} opens in ui.perfetto.dev")
    for line in [line for summary in summaries for line in cause_lines(summary)]:
        say(line)
    for failure in results.runs.failures:
        say(str(failure))
    if exit_code([results.runs]) == FINE:
        options.tell("`observatory serve` keeps showing results at /metrics; `observatory show` lists them here")
