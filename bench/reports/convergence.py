"""Prints a convergence check as a table, JSON or CSV: losses step by step, then what the evidence says."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from rich.console import Console
from rich.table import Table

from bench.case import Case
from bench.convergence.check import LEAST_TOLERANCE, ROUNDING_FACTOR, TOLERANCE_PER_STEP, Losses, Verdict
from bench.reports.format import open_console, print_csv, print_json

STEPS_SHOWN = 12
TOLERANCE = (
    f"{LEAST_TOLERANCE:.0e} of the loss and {TOLERANCE_PER_STEP:.0e} more with each step, as measured in fp32; and at"
    f" least {ROUNDING_FACTOR:g} times what reading each batch backwards did to the one rank"
)
COLUMNS = ("step", "one_rank", "all_ranks", "difference_ratio", "tolerance_ratio")


def print_verdict(verdict: Verdict, case: Case, format_name: str, console: Console | None = None) -> None:
    """Print what a check of the case found."""
    if format_name == "json":
        print_json(_record(verdict, case))
        return
    if format_name == "csv":
        print_csv([_row(losses) for losses in verdict.losses], COLUMNS)
        return
    console = console or open_console()
    console.print(_table(verdict, case))
    console.print()
    for line in lines(verdict, case):
        console.print(line, soft_wrap=True, markup=False)


def lines(verdict: Verdict, case: Case) -> Iterator[str]:
    """Yield the verdict in sentences: the outcome, a line for each cause, and what speaks against others."""
    title, steps = f"{case.strategy} on {case.ranks} ranks", len(verdict.losses)
    if verdict.outcome == "agrees":
        yield f"agrees: {title} trains as one rank does, in all {steps} steps; {_widest(verdict)}"
    elif verdict.parted_at is None:
        yield f"disagrees: losses of {title} agree in all {steps} steps ({_widest(verdict)}), but their making does not"
    else:
        yield f"disagrees: losses of {title} and of one rank part in step {verdict.parted_at}; {_gap(verdict)}"
    for culprit in verdict.causes:
        yield f"cause: {culprit.cause}, from step {culprit.step}: {culprit.text}. Next: {culprit.next_move}"
    if not verdict.is_explained:
        yield (
            f"cause: unknown: nothing that was looked at differs up to step {verdict.parted_at}. Next: see below what"
            " was not examined; then leave options that change the result out, one by one"
        )
    yield from (f"ruled out: {text}" for text in verdict.ruled_out)
    yield from (f"not examined: {text}" for text in verdict.not_examined)
    yield f"clip: {_clip(verdict)}"
    yield f"tolerance: {TOLERANCE}"


def _clip(verdict: Verdict) -> str:
    if not verdict.clip:
        return "0, so that no gradient was clipped"
    steps = len(verdict.losses)
    return (
        f"the norm of the one rank's gradient was above {verdict.clip:g}, and cut to it, in {verdict.clipped_steps} of"
        f" {steps} steps"
    )


def _widest(verdict: Verdict) -> str:
    known = [losses for losses in verdict.losses if losses.difference_ratio is not None]
    if not known:
        return "no loss is finite"
    widest = max(known, key=lambda losses: losses.difference_ratio or 0.0)
    return f"losses are at most {_ratio(widest.difference_ratio)} apart, in step {widest.step}"


def _gap(verdict: Verdict) -> str:
    assert verdict.parted_at is not None, "losses part"
    losses = verdict.losses[verdict.parted_at]
    if losses.difference_ratio is None:
        return "one of them is not finite"
    return (
        f"they are {_ratio(losses.difference_ratio)} of the loss apart, where {_ratio(losses.tolerance_ratio)} may be"
    )


def _table(verdict: Verdict, case: Case) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("step", justify="right")
    for title in ("loss, one rank", f"loss, {case.strategy} on {case.ranks}", "apart", "tolerance", ""):
        table.add_column(title, justify="right")
    for losses in _shown(verdict):
        table.add_row(
            str(losses.step),
            _loss(losses.one_rank),
            _loss(losses.all_ranks),
            _ratio(losses.difference_ratio),
            _ratio(losses.tolerance_ratio),
            "" if losses.agree else "parts",
        )
    return table


def _shown(verdict: Verdict) -> list[Losses]:
    """Return the steps to show: equally spaced ones, the first, the last, and the two between which losses part."""
    count = len(verdict.losses)
    stride = -(-count // STEPS_SHOWN)
    shown = {*range(0, count, stride), count - 1}
    if verdict.parted_at is not None:
        shown |= {max(0, verdict.parted_at - 1), verdict.parted_at}
    return [verdict.losses[step] for step in sorted(shown)]


def _record(verdict: Verdict, case: Case) -> dict[str, object]:
    record: dict[str, object] = msgspec.to_builtins(verdict)
    return {
        "strategy": case.strategy,
        "ranks": case.ranks,
        "options": dict(case.options),
        **record,
        "losses": [_row(losses) for losses in verdict.losses],
        "tolerance": TOLERANCE,
    }


def _row(losses: Losses) -> dict[str, object]:
    return {
        "step": losses.step,
        "one_rank": losses.one_rank,
        "all_ranks": losses.all_ranks,
        "difference_ratio": losses.difference_ratio,
        "tolerance_ratio": losses.tolerance_ratio,
    }


def _loss(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.6f}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"
