"""What `observatory run` does with its plan: measures and stores the cases, presents them, and gives the exit code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import click

from bench.cli.run.planning import Plan, RunOptions
from bench.convergence.check import ConvergenceVerdict, conclude
from bench.engines.cluster import NodeRequest
from bench.engines.registry import ENGINES, nodes_to_ask
from bench.errors import CASE_FAILED, FINE, INFRASTRUCTURE, INTERRUPTED, interrupt_in_order, say
from bench.exporter.server import serving
from bench.machine.device_checks import check_torch
from bench.reports.convergence import print_verdict
from bench.reports.pipeline import show_timeline
from bench.reports.suites.progress import Progress
from bench.reports.summary import cause_lines, print_curve, print_curve_json, print_summaries, show_memory
from bench.reports.table import to_reader
from bench.runner.measure import alike, measure
from bench.runner.patient_store import PatientStore
from bench.runner.persist import PersistedRuns, check_hardware, persist
from bench.runs.hardware_baselines import PredictedStep, predicted_steps
from bench.runs.history import History
from bench.runs.scaling_baseline import curve_of
from workloads.cost_models.absent import Absent


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What the run gave. predicted: steps by the cost model, by the run's id. verdict: of a convergence check.

    is_interrupted: a person ended the run.
    """

    kept: PersistedRuns
    predicted: Mapping[str, PredictedStep | Absent]
    verdict: ConvergenceVerdict | None
    is_interrupted: bool


def execute(plan: Plan, options: RunOptions) -> Results:
    """Measure the cases, reach the verdict of a convergence check, and store the results.

    Raises:
        Misuse: ranks cannot use torch or the GPUs as asked, or the baseline ran on other hardware.
        InfrastructureFailed: nothing can be started or stored.
    """
    interrupt_in_order()
    folder, url = options.runs_folder, options.store_url
    cases = [case for case, _ in plan.cases]
    asked = nodes_to_ask(options.engine_name, options.nodes, cases)
    request = NodeRequest(nodes=asked, file=options.engine_file, tell=options.tell)
    is_drawn = False if options.quiet or options.verbose else None  # Bars would hide the lines of --verbose.
    with (
        PatientStore(History(url), runs=folder, url=url, tell=options.tell, work="run") as store,
        serving(folder, url, port=options.port, on_notice=options.tell, cluster=plan.cluster),
        ENGINES[options.engine_name](request) as allocation,
    ):
        with (
            allocation.open(folder) as engine,
            Progress(cases, tell=options.tell, is_drawn=is_drawn, is_long=options.verbose) as bars,
        ):
            machine = engine.machine()
            check_torch(plan.case, machine)
            if plan.explicit_baseline is not None:
                check_hardware(plan.case, machine, plan.explicit_baseline)
            settings = replace(plan.settings, ceiling_of=lambda case: store.ceiling_of(case, machine))
            measured = measure(
                alike(plan.cases, settings),
                engine=engine,
                machine=machine,
                folder=folder,
                watch=bars.update,
            )
        try:
            measured, verdict = conclude(measured) if options.is_check else (measured, None)
            history = store.ready(is_last=True)
            kept = persist(measured.summaries, machine, history, plan.explicit_baseline, is_curve=plan.is_curve)
            if store.failure is not None:
                kept = replace(kept, failures=(*kept.failures, store.failure))
        finally:
            measured.close()
        is_shown = options.format_name == "table" and not options.is_check
        predicted = predicted_steps(
            kept.summaries if is_shown else (), history or Absent(reason="the store does not answer")
        )
    return Results(kept=kept, predicted=predicted, verdict=verdict, is_interrupted=measured.is_interrupted)


def present(plan: Plan, options: RunOptions, results: Results) -> None:
    """Print the results in the requested format, and what went wrong to standard error."""
    summaries = results.kept.summaries
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
            if is_table:  # JSON and CSV hold the run alone; `show --timeline` prints the timeline.
                click.echo()
            drawn = show_timeline(summaries[-1], "table" if is_table else None)
            options.tell(f"timeline: {drawn} opens in ui.perfetto.dev")
    for line in [line for summary in summaries for line in cause_lines(summary)]:
        say(line)
    for failure in results.kept.failures:
        say(str(failure))
    if exit_code(results) == FINE:
        options.tell("`observatory serve` goes on showing results at /metrics, and `observatory show` here")


def exit_code(results: Results) -> int:
    """Return the exit code: interrupted before infrastructure before a failed case."""
    if results.is_interrupted:
        return INTERRUPTED
    causes = {summary.cause.kind for summary in results.kept.summaries if summary.cause is not None}
    if results.kept.failures or causes & {"agent", "disk"}:
        return INFRASTRUCTURE
    return CASE_FAILED if causes else FINE
