"""Reports a choice: at most ten candidates, an explanation of the first, and the strategy that pays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.analysis.choosing.candidates import PLAINEST, Ranking
from bench.analysis.choosing.explain import Explanation, memory_words, placement
from bench.analysis.choosing.pricing import Candidate, speed_ratio
from bench.analysis.choosing.search import Unfit
from bench.analysis.prediction.nearest import nearest_fit
from bench.case import Case, options_set, written
from bench.errors import plural
from bench.report.format import readable, whole_percent
from bench.report.table import Block, Table, indented

BAR = 8
"""Characters of the longest bar."""
REASONS = 4
"""Limit of printed reasons of refusal; JSON has all."""
COLUMNS = (
    "strategy",
    "options",
    "step_s",
    "step_low_s",
    "step_high_s",
    "tokens_per_second",
    "memory_bytes",
    "memory_basis",
    "limit",
    "limit_share",
    "faster_than_it",
    "faster_low",
    "faster_high",
)


def choice_page(ranking: Ranking, explanations: list[Explanation]) -> Iterator[Block]:
    """Yield the candidates, the setups left out and why, the explanation of the first, and the conclusion."""
    yield from _table(ranking)
    yield ""
    yield from _left_out(ranking)
    if ranking.best is not None:
        if explanations:
            yield f"why the first, {ranking.best.case.strategy}, has these options, by predictions of its neighbours:"
            if (where := placement(ranking.best)) is not None:
                yield indented(f"mesh: {where}")
            yield from (indented(each.line) for each in explanations)
        if ranking.objective == "throughput":
            yield f"intervals: {ranking.ground.origin}"
            yield "ratios: both setups have the same rates, so errors of the rates count only where the setups differ"
        yield from (f"rests on {line}" for line in ranking.ground.rests_on)
        yield ""
    yield closing(ranking)


def _table(ranking: Ranking) -> Iterator[Block]:
    if ranking.best is None:
        return
    fastest = max(each.tokens_per_second for each in ranking.candidates)
    rows = []
    for each in ranking.candidates:
        low_s, high_s = each.interval_s
        tokens = each.case.shape.tokens
        name, share = each.limit
        about = {"peak": "", "papers": "about ", "states": ""}[each.memory.basis]
        rows.append(
            (
                each.case.strategy,
                "#" * max(1, round(BAR * each.tokens_per_second / fastest)),
                f"{_rate(each.tokens_per_second)} [{_rate(tokens / high_s)}, {_rate(tokens / low_s)}]",
                f"{about}{readable(each.memory.total_bytes, 'bytes')}",
                f"{name} {whole_percent(share)}",
                options_words(each.case),
            )
        )
    columns = ("strategy", "", "tokens/s", "memory", "limit", "options")
    yield Table(columns, rows, words=(0, 1, 4, 5), unbroken=(0, 1, 3), folds="always")


def _rate(tokens_per_second: float) -> str:
    return f"{tokens_per_second:,.0f}"


def options_words(case: Case) -> str:
    """Return the options that differ from the defaults: "accumulate=4 checkpoint=full"; "-" if there are none."""
    return " ".join(f"{name}={written(value)}" for name, value in options_set(case).items()) or "-"


def _left_out(ranking: Ranking) -> Iterator[str]:
    """Yield the counts of, and the reasons for, setups that are not in the table."""
    refused = sum(each.count for each in ranking.refused)
    yield (
        f"{ranking.setups_count:,} setups of {plural(len(ranking.searches), 'strategy', 'strategies')}:"
        f" {refused:,} refused, {ranking.unfit_count:,} do not fit, {ranking.slower_count:,} skipped because they"
        f" cannot be faster, {ranking.predicted_count:,} predicted in full"
    )
    reasons: dict[str, tuple[int, set[str]]] = {}
    for each in ranking.refused:
        count, strategies = reasons.get(each.reason, (0, set()))
        reasons[each.reason] = (count + each.count, {*strategies, each.strategy})
    most = sorted(reasons.items(), key=lambda item: -item[1][0])
    for reason, (count, strategies) in most[:REASONS]:
        if count:
            yield f"{count:,} refused, for example: {reason} ({', '.join(sorted(strategies)[:3])})"
    if len(most) > REASONS:
        yield f"{plural(len(most) - REASONS, 'further reason')} of refusal: --format json has all"
    for reason, count in ranking.unpredicted.items():
        yield f"{plural(count, 'setup')} without a predicted step: {reason}"
    if ranking.unfit:
        nearest = min(ranking.unfit.values(), key=_closeness)
        # If nothing fits, the conclusion names the nearest.
        words = "" if ranking.best is None else f"; the nearest is {_unfit_words(ranking, nearest)}"
        yield f"do not fit in any setup: {', '.join(ranking.unfit)}{words}"


def _closeness(unfit: Unfit) -> tuple[bool, int]:
    return unfit.memory.basis == "states", unfit.memory.total_bytes


def _unfit_words(ranking: Ranking, unfit: Unfit) -> str:
    room_bytes = ranking.ground.room_bytes
    room = "" if room_bytes is None else f", and a rank has {readable(room_bytes, 'bytes')}"
    return f"{unfit.case.strategy} with {options_words(unfit.case)}, which needs {memory_words(unfit)}{room}"


# The conclusion


def closing(ranking: Ranking) -> str:
    """Return which strategy pays, by how much over the next, and why the plainest strategies do not fit."""
    best = ranking.best
    if best is None:
        return _nothing_fits(ranking)
    if ranking.objective == "memory":
        return (
            f"{best.case.strategy} needs the least memory:"
            f" {'about ' * (best.memory.basis == 'papers')}{readable(best.memory.total_bytes, 'bytes')} a rank; "
            + _plainest(ranking)
        ).rstrip("; ")
    equals, others = ranking.equals(), ranking.best_of_others()
    names = list(dict.fromkeys(each.case.strategy for each in equals if each.case.strategy != best.case.strategy))
    if names:
        known = [each for each in (best, *equals) if each.memory.basis == "peak"]
        least = min(known, key=lambda each: each.memory.total_bytes, default=None)
        tied = [best.case.strategy, *names]
        line = (
            f"no winner between {', '.join(tied[:-1])} and {tied[-1]}: their intervals overlap"
            f" ({best.case.strategy} {_over(best, next(each for each in equals if each.case.strategy == names[0]))})"
        )
        if least is not None:
            size = readable(least.memory.total_bytes, "bytes")
            line += f"; of these, {least.case.strategy} needs the least memory, {size}"
        slower = [each for each in others if each not in equals]
        if slower:
            line += f"; all beat {slower[0].case.strategy}" if speed_ratio(equals[-1], slower[0]).low > 1 else ""
        return "; ".join(part for part in (line, _plainest(ranking)) if part)
    if not others:
        is_alone = len(ranking.searches) == 1
        line = (
            f"only {best.case.strategy} was compared"
            if is_alone
            else f"{best.case.strategy} pays: no other strategy fits"
        )
    else:
        line = f"{best.case.strategy} pays: {_over(best, others[0])}"
    if equals:
        line += f"; {plural(len(equals), f'other {best.case.strategy} setup')} cannot be distinguished from the first"
    return "; ".join(part for part in (line, _plainest(ranking)) if part)


def _over(best: Candidate, other: Candidate) -> str:
    ratio = speed_ratio(best, other)
    return f"{ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}] over {other.case.strategy}"


def _plainest(ranking: Ranking) -> str:
    """Return why the plainest strategies do not fit; "" if they do, or were not compared."""
    parts = []
    for name in PLAINEST:
        if (unfit := ranking.unfit.get(name)) is not None:
            room = readable(ranking.ground.room_bytes or 0, "bytes")
            what = "states need" if unfit.memory.basis == "states" else "it needs"
            least = "at least " if unfit.memory.is_least and unfit.memory.basis != "states" else ""
            need = readable(unfit.memory.total_bytes, "bytes")
            parts.append(f"{name} does not fit: {what} {least}{need} of {room}")
    return "; ".join(parts)


def _nothing_fits(ranking: Ranking) -> str:
    if not ranking.unfit:
        reasons = next(iter(ranking.unpredicted), "every setup is refused")
        return f"nothing to choose: {reasons}"
    nearest = min(ranking.unfit.values(), key=_closeness)
    line = f"nothing fits: the nearest is {_unfit_words(ranking, nearest)}"
    if ranking.ground.machine is None:
        return line
    larger = nearest_fit(nearest.case, ranking.ground.machine)
    if larger is None:
        return f"{line}; none of the larger setups that were tried fits: use more nodes, or a smaller --shape"
    return f"{line}; {larger.words} would fit, with {readable(larger.memory.total_bytes, 'bytes')}"


# For programs


def choice_rows(ranking: Ranking) -> Iterator[dict[str, Any]]:
    """Yield one row for each candidate, for CSV and JSON."""
    for each in ranking.candidates:
        assert ranking.best is not None, "there are candidates"
        low_s, high_s = each.interval_s
        ratio = speed_ratio(ranking.best, each)
        name, share = each.limit
        yield {
            "strategy": each.case.strategy,
            "options": options_words(each.case),
            "step_s": each.step_s,
            "step_low_s": low_s,
            "step_high_s": high_s,
            "tokens_per_second": each.tokens_per_second,
            "memory_bytes": each.memory.total_bytes,
            "memory_basis": each.memory.basis,
            "limit": name,
            "limit_share": share,
            "faster_than_it": ratio.value,
            "faster_low": ratio.low,
            "faster_high": ratio.high,
        }


def choice_document(ranking: Ranking, explanations: list[Explanation]) -> dict[str, Any]:
    return {
        "objective": ranking.objective,
        "machine": None if ranking.ground.machine is None else ranking.ground.machine.name,
        "ranks": ranking.ground.ranks,
        "candidates": [
            {**row, "parts_s": dict(each.parts_s), "levels": dict(each.levels), "case": each.case}
            for row, each in zip(choice_rows(ranking), ranking.candidates, strict=True)
        ],
        "equal_to_the_first": [ranking.candidates.index(each) for each in ranking.equals()],
        "explanation": explanations,
        "setups": ranking.setups_count,
        "refused": [
            {"strategy": each.strategy, "count": each.count, "reason": each.reason} for each in ranking.refused
        ],
        "unfit_count": ranking.unfit_count,
        "not_worked_out_count": ranking.slower_count,
        "predicted_count": ranking.predicted_count,
        "unfit": {
            name: {"options": options_words(each.case), "bytes": each.memory.total_bytes, "basis": each.memory.basis}
            for name, each in ranking.unfit.items()
        },
        "unpredicted": dict(ranking.unpredicted),
        "intervals": ranking.ground.origin,
        "rests_on": ranking.ground.rests_on,
        "conclusion": closing(ranking),
    }
