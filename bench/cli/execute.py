"""Carries out `observatory run`: plans, measures, stores and prints, and chooses the exit code."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace

import click

from bench.case import Case
from bench.cli.dry_run import plan_lines, print_plan
from bench.cli.main import CASE_FAILED, FINE, INFRASTRUCTURE, INTERRUPTED
from bench.cli.planning import Plan, Words, plan
from bench.convergence.check import Verdict, conclude
from bench.engines.local import ENGINES
from bench.errors import say
from bench.exporter.server import serving
from bench.machine.device_checks import check_torch
from bench.machine.machine import Machine
from bench.reports.convergence import print_verdict
from bench.reports.format import to_reader
from bench.reports.pipeline import show_timeline
from bench.reports.progress import Progress
from bench.reports.summary import cause_lines, print_curve, print_curve_json, print_summaries, show_memory
from bench.runner import Kept, Measured, check_hardware, measure, persist, recover_runs
from bench.runs.hardware_baselines import Ceiling, find_ceiling
from bench.runs.history import History
from bench.runs.scaling_baseline import curve_of


def run(words: Words) -> int:
    """Carry out the command and return its exit code.

    Raises:
        Misuse, InfrastructureFailed: the run is refused before anything starts, or cannot be stored.
    """
    planned = plan(words)
    tell: Callable[[str], None] = _nobody if words.quiet else say
    if words.is_dry:
        for crowd in planned.crowds:
            tell(crowd)
        print_plan(planned, words)
        return FINE
    if planned.device_reason is not None:
        tell(planned.device_reason)
    for crowd in planned.crowds:
        tell(crowd)
    if words.verbose:
        for line in plan_lines(planned, words):
            tell(line)
    measured, verdict, kept = _measure(planned, words, tell)
    with to_reader():
        _present(planned, words, verdict, kept, tell)
    problems = [line for summary in kept.summaries for line in cause_lines(summary)]
    for line in [*problems, *(str(failure) for failure in kept.failures)]:
        say(line)
    tell("`observatory serve` goes on showing results at /metrics, and `observatory show` here")
    return _code(measured, kept)


def _nobody(line: str) -> None:
    """Drop the line (--quiet)."""


def _measure(planned: Plan, words: Words, tell: Callable[[str], None]) -> tuple[Measured, Verdict | None, Kept]:
    """Measure the cases, reach the verdict of a convergence check, and store the results."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    cases, conduct = planned.cases, planned.conduct
    case = cases[-1][0]
    with (
        History(conduct.store) as history,
        serving(words.runs_folder, conduct.store, port=words.port, on_notice=tell),
    ):
        for notice in recover_runs(words.runs_folder, history, conduct.store).notices():
            tell(notice)
        with (
            ENGINES[words.engine_name]() as engine,
            Progress([case for case, _ in cases], tell=tell, is_drawn=_is_drawn(words), is_long=words.verbose) as bars,
        ):
            machine = engine.machine()
            check_torch(case, machine)
            if planned.explicit_baseline is not None:
                check_hardware(case, machine, planned.explicit_baseline)
            conduct = replace(conduct, ceiling_of=lambda case: _ceiling(history, case, machine))
            measured = measure(
                cases, engine=engine, machine=machine, folder=words.runs_folder, conduct=conduct, watch=bars.update
            )
        try:
            measured, verdict = conclude(measured) if words.is_check else (measured, None)
            kept = persist(measured.summaries, machine, history, planned.explicit_baseline, is_curve=planned.is_curve)
            return measured, verdict, kept
        finally:
            measured.close()


def _is_drawn(words: Words) -> bool | None:
    """Return False where no bars may be drawn: --quiet wants none, and --verbose prints lines that they would hide."""
    return False if words.quiet or words.verbose else None


def _present(planned: Plan, words: Words, verdict: Verdict | None, kept: Kept, tell: Callable[[str], None]) -> None:
    """Print the results in the requested format."""
    is_table = words.format_name == "table"
    if verdict is not None:
        print_verdict(verdict, planned.cases[-1][0], words.format_name)
    elif planned.is_curve and words.format_name == "json":
        print_curve_json(curve_of(kept.summaries))
    elif not words.is_check:
        print_summaries(
            kept.summaries, words.format_name, has_details=words.has_details, has_stages=words.with_timeline
        )
        if planned.is_curve and is_table:
            print_curve(curve_of(kept.summaries))
    if words.memory_snapshot and is_table:
        for summary in kept.summaries:
            show_memory(summary)
    if words.with_timeline and kept.summaries[-1].trials_done:
        if is_table:  # JSON and CSV hold the run alone; `show --timeline` prints the timeline.
            click.echo()
        drawn = show_timeline(kept.summaries[-1], "table" if is_table else None)
        tell(f"timeline: {drawn} opens in ui.perfetto.dev")


def _ceiling(history: History, case: Case, machine: Machine) -> float | None:
    """Return the measured FLOP/s that live MFU is relative to; None for a probe, or where nobody measured it."""
    found = None if case.model is None else find_ceiling(history, case, machine.hardware(case.device))
    return found.flops_per_second.median if isinstance(found, Ceiling) else None


def _code(measured: Measured, kept: Kept) -> int:
    if measured.is_interrupted:
        return INTERRUPTED
    causes = {summary.cause.kind for summary in kept.summaries if summary.cause is not None}
    if kept.failures or causes & {"agent", "disk"}:
        return INFRASTRUCTURE
    return CASE_FAILED if causes else FINE
