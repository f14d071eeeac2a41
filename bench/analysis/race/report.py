"""Reports a race, fastest case first, for people and programs: the winner, or about how long a decision would take."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from bench.analysis.race.looks import MOST_ROUNDS
from bench.analysis.race.race import RaceCase, RaceEnd
from bench.analysis.race.referee import costs
from bench.errors import plural
from bench.report.format import digits, duration, figure, readable
from bench.report.table import Block, Table
from bench.results.comparison import MARGIN
from bench.results.estimate import Estimate, of_metric
from bench.results.results import TOTALS
from bench.store.summary import Summary
from bench.suite.results import CaseResult
from collectors.metrics.results import RUN_PEAK_MEMORY_BYTES, RUN_TOKENS_PER_SECOND

MOST_LINES = 10
"""Lines of a race, with its header and its sentence."""
_BAR = 12
"""Letters of the longest bar."""


def race_page(end: RaceEnd) -> list[Block]:
    """Return the race for people: its table, the cases that did not run, and the sentence."""
    by_name = {case.name: case for case in end.cases}
    measured = _in_order(end)
    room = MOST_LINES - 3 - (1 if len(measured) < len(end.result.cases) else 0)
    most = max((_throughput(case.summary) for case in measured), default=0.0)
    rows = [_row(case, by_name[case.name], most, end) for case in measured[:room]]
    page: list[Block] = []
    if rows:
        head = ("case", "", "tokens/s", "memory", "predicted", "rounds", "outcome", "what limits it")
        page.append(Table(head, rows, words=(0, 1, 6, 7), keys=1))
    if out := _left_out(end, measured[room:]):
        page.append(out)
    # The options with which `run` and suites measure the first case.
    ahead = end.referee.standing.ahead
    if ahead and (options := by_name[ahead[0]].args.options):
        page.append(f"{ahead[0]} has {' '.join(f'--option {text}' for text in options)}")
    return [*page, sentence(end)]


def sentence(end: RaceEnd) -> str:
    """Return the conclusion: the winner and its lead, or about how long a decision would take."""
    referee, standing = end.referee, end.referee.standing
    if not standing.ahead:
        reason = "no case is left" if standing.rounds else "no case has reached the first look"
        return f"no winner: {reason}{_resume(end)}"
    first = standing.ahead[0]
    if standing.winner is not None:
        drop = min(standing.dropped.values(), key=lambda drop: drop.ratio, default=None)
        if drop is None:
            return f"{first} pays: no other case has run to the end"
        second = next(name for name, each in standing.dropped.items() if each is drop)
        if drop.by != first:  # The second was dropped because of a case that was dropped later.
            worse = "slower" if end.objective == "throughput" else "larger"
            return f"{first} pays: every other case is shown to be {worse} than another"
        by = f"{drop.ratio:.2f}x [{drop.low:.2f}, {drop.high:.2f}]"
        if end.objective == "memory":
            return f"{first} pays: {second} needs {by} of its memory"
        return f"{first} pays: {by} {second}{_memory_words(end, first)}"
    if standing.unsettled:
        names = ", ".join(standing.unsettled)
        return f"no winner: {names} was dropped for a case that failed later; run the race again without that case"
    if not standing.rounds or standing.pair is None:
        return f"no winner yet: no case has reached the first look{_resume(end)}"
    between = " and ".join(standing.ahead[:2]) if len(standing.ahead) == 2 else ", ".join(standing.ahead)
    if standing.is_same:
        return (
            f"no winner between {between}: they differ by less than {100 * MARGIN:.0f} % after {standing.rounds} rounds"
        )
    if (more_s := referee.more_s) is None:
        apart = 100 * math.expm1(abs(standing.pair.value))
        return (
            f"no winner between {between}: {standing.ahead[0]} seems {apart:.1f} % ahead, and {MOST_ROUNDS} rounds"
            " would hardly decide; longer trials (--steps) might"
        )
    more = duration(60 * math.ceil(more_s / 60))
    return f"no winner yet between {between}; about {more} more would decide{_resume(end)}"


def _resume(end: RaceEnd) -> str:
    is_left = end.end.is_interrupted or bool(end.result.named("left_out", "interrupted"))
    return f" (`--resume {end.result.id}` with the same options continues)" if is_left else ""


def _memory_words(end: RaceEnd, first: str) -> str:
    """Return which case needs the least memory and how much less than the winner, if that is at least one per cent."""
    sizes = {case.name: size for case in end.result.cases if (size := _memory(case.summary)) is not None}
    if first not in sizes:
        return ""
    least = min(sizes, key=lambda name: sizes[name].median)
    share = 1 - sizes[least].median / sizes[first].median
    return "" if share < 0.01 else f"; {least} needs {100 * share:.0f} % less memory"


# The table


def _in_order(end: RaceEnd) -> list[CaseResult]:
    """Return the cases with measurements, cheapest first; cases that failed or timed out come last."""
    cases = [case for case in end.result.cases if case.summary is not None and case.summary.trials_done]
    means = {}
    for case in cases:
        values = costs(end.referee.known[case.name], end.objective)
        means[case.name] = math.fsum(map(math.log, values)) / len(values)
    return sorted(cases, key=lambda case: (case.outcome in ("failed", "timed_out"), means[case.name]))


def _row(case: CaseResult, raced: RaceCase, most: float, end: RaceEnd) -> Sequence[str]:
    assert case.summary is not None
    rate = next(iter(of_metric(case.summary.estimates, RUN_TOKENS_PER_SECOND)), None)
    length = round(_BAR * _throughput(case.summary) / most) if most else 0
    predicted = "-"
    if raced.predicted is not None:
        is_rate = end.objective == "throughput"
        predicted = digits(raced.predicted) if is_rate else readable(raced.predicted, "bytes")
    return (
        case.name,
        "#" * max(1, length),
        figure(rate),
        figure(_memory(case.summary)),
        predicted,
        str(case.summary.trials_done),
        case.words,
        raced.limit or "-",
    )


def _throughput(summary: Summary | None) -> float:
    rates = [] if summary is None else of_metric(summary.estimates, RUN_TOKENS_PER_SECOND)
    return rates[0].median if rates else 0.0


def _memory(summary: Summary | None) -> Estimate | None:
    """Return the highest peak of a rank: of tensors if they were counted, else of the process."""
    sizes = (
        {}
        if summary is None
        else {each.labels["account"]: each for each in of_metric(summary.estimates, RUN_PEAK_MEMORY_BYTES)}
    )
    return next((sizes[account] for account in (*TOTALS, "resident", "rss") if account in sizes), None)


def _left_out(end: RaceEnd, beyond: Sequence[CaseResult]) -> str | None:
    """Return a line on the cases that are not in the table, each with its reason."""
    words = [
        f"{case.name} {case.words}" + ("" if case.reason is None else f": {case.reason}")
        for case in end.result.cases
        if case.summary is None or not case.summary.trials_done
    ]
    if beyond:
        words.append(f"{plural(len(beyond), 'more case')}: {', '.join(case.name for case in beyond)}")
    return "; ".join(words) or None


# For programs

COLUMNS = (
    *("case", "strategy", "options", "outcome", "reason", "rounds"),
    *("tokens_per_second", "tokens_per_second_low", "tokens_per_second_high", "memory_bytes"),
    *("predicted", "limit", "dropped_by", "cost_ratio", "cost_ratio_low", "cost_ratio_high", "run"),
)


def race_rows(end: RaceEnd) -> Iterator[dict[str, Any]]:
    """Yield one row for each case, in the order of the table, then the cases without measurements.

    predicted: tokens per second, or bytes in a race for memory. cost_ratio: of a dropped case, its seconds per token
        (or bytes) divided by those of `dropped_by`, with an interval that holds over all looks and pairs.
    """
    by_name = {case.name: case for case in end.cases}
    measured = _in_order(end)
    others = [case for case in end.result.cases if all(case.name != each.name for each in measured)]
    for case in (*measured, *others):
        raced, drop = by_name[case.name], end.referee.standing.dropped.get(case.name)
        rates = [] if case.summary is None else of_metric(case.summary.estimates, RUN_TOKENS_PER_SECOND)
        rate, memory = rates[0] if rates else None, _memory(case.summary)
        yield {
            "case": case.name,
            "strategy": raced.args.strategy,
            "options": " ".join(raced.args.options),
            "outcome": case.outcome,
            "reason": case.reason,
            "rounds": 0 if case.summary is None else case.summary.trials_done,
            "tokens_per_second": None if rate is None else rate.median,
            "tokens_per_second_low": None if rate is None else rate.low,
            "tokens_per_second_high": None if rate is None else rate.high,
            "memory_bytes": None if memory is None else memory.median,
            "predicted": raced.predicted,
            "limit": raced.limit,
            "dropped_by": None if drop is None else drop.by,
            "cost_ratio": None if drop is None else drop.ratio,
            "cost_ratio_low": None if drop is None else drop.low,
            "cost_ratio_high": None if drop is None else drop.high,
            "run": case.run,
        }


def race_document(end: RaceEnd) -> dict[str, Any]:
    """Return the whole race, for JSON. undecided: the cases that may still win, if there is no winner yet."""
    standing = end.referee.standing
    return {
        "suite_run": end.result.id,
        "objective": end.objective,
        "rounds": standing.rounds,
        "winner": standing.winner,
        "undecided": [] if standing.winner is not None else list(standing.ahead),
        "are_equal": standing.is_same,
        "seconds_to_tell": None if standing.winner is not None or standing.is_same else end.referee.more_s,
        "conclusion": sentence(end),
        "cases": list(race_rows(end)),
    }
