"""Prints a convergence check as a table, JSON or CSV: losses step by step, then the findings."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from rich.console import Console

from bench.analysis.convergence.check import ConvergenceVerdict, limits_of
from bench.case import Case
from bench.report.table import Block, Table, whole, write
from workloads.core.precision_options import WEIGHTS

STEPS_SHOWN = 12
COLUMNS = ("step", "one_rank", "all_ranks", "difference_ratio", "tolerance_ratio")


def print_verdict(verdict: ConvergenceVerdict, case: Case, format_name: str, console: Console | None = None) -> None:
    losses = [{name: getattr(step, name) for name in COLUMNS} for step in verdict.losses]
    head = {"strategy": case.strategy, "ranks": case.ranks, "options": dict(case.options)}
    write(
        format_name,
        _page(verdict, case),
        lambda: {**head, **msgspec.to_builtins(verdict), "losses": losses, "tolerance": tolerance_words(case)},
        losses,
        COLUMNS,
        console,
    )


def _page(verdict: ConvergenceVerdict, case: Case) -> Iterator[Block]:
    # Equally spaced steps, the first, the last, and the two between which the losses diverge.
    count = len(verdict.losses)
    steps = {*range(0, count, -(-count // STEPS_SHOWN)), count - 1}
    if verdict.parted_at is not None:
        steps |= {max(0, verdict.parted_at - 1), verdict.parted_at}
    rows = []
    for losses in (verdict.losses[step] for step in sorted(steps)):
        cells = ("not finite" if loss is None else f"{loss:.6f}" for loss in (losses.one_rank, losses.all_ranks))
        ratios = (_ratio(losses.difference_ratio), _ratio(losses.tolerance_ratio))
        rows.append((str(losses.step), *cells, *ratios, "" if losses.agree else "parts"))
    yield Table(("step", "loss, one rank", f"loss, {case.title}", "apart", "tolerance", ""), rows, words=())
    yield ""
    yield from map(whole, lines(verdict, case))


def lines(verdict: ConvergenceVerdict, case: Case) -> Iterator[str]:
    """Yield the verdict in sentences: the outcome, a line for each cause, and the causes that are ruled out."""
    title, steps = f"{case.strategy} on {case.ranks} ranks", len(verdict.losses)
    finite = [losses for losses in verdict.losses if losses.difference_ratio is not None]
    widest = "no loss is finite"
    if finite:
        apart = max(finite, key=lambda losses: losses.difference_ratio or 0.0)
        widest = f"losses are at most {_ratio(apart.difference_ratio)} apart, in step {apart.step}"
    if verdict.outcome == "agrees":
        yield f"agrees: {title} trains as one rank does, in all {steps} steps; {widest}"
    elif verdict.parted_at is None:
        yield f"disagrees: losses of {title} agree in all {steps} steps ({widest}), but the computations differ"
    else:
        first = verdict.losses[verdict.parted_at]
        gap = "one of them is not finite"
        if first.difference_ratio is not None:
            allowed = f"{_ratio(first.tolerance_ratio)} is allowed"
            gap = f"they differ by {_ratio(first.difference_ratio)} of the loss; {allowed}"
        yield f"disagrees: losses of {title} and of one rank diverge in step {verdict.parted_at}; {gap}"
    for culprit in verdict.causes:
        yield f"cause: {culprit.cause}, from step {culprit.step}: {culprit.text}. Next: {culprit.next_move}"
    if not verdict.is_explained:
        yield (
            f"cause: unknown: no examined quantity differs up to step {verdict.parted_at}. Next: see below what"
            " was not examined; then leave options that change the result out, one by one"
        )
    yield from (f"ruled out: {text}" for text in verdict.ruled_out)
    yield from (f"not examined: {text}" for text in verdict.not_examined)
    if verdict.clip:
        yield (
            f"clip: the gradient norm of the one rank exceeded {verdict.clip:g} and was clipped in"
            f" {verdict.clipped_steps} of {steps} steps"
        )
    else:
        yield "clip: 0, so no gradient was clipped"
    yield f"tolerance: {tolerance_words(case)}"


def tolerance_words(case: Case) -> str:
    """Return how far the losses of a check may differ."""
    limits = limits_of(case)
    arithmetic = f"bf16 with weights={WEIGHTS.of(case)}" if case.precision == "bf16" else case.precision
    return (
        f"{limits.loss:.0e} of the loss and {limits.loss_per_step:.0e} more with each step, as measured in"
        f" {arithmetic}; and at least {limits.rounding_factor:g} times the change that reversed batches cause on the"
        " one rank"
    )


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"
