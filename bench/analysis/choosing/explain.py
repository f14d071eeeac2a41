"""Explains the options of the first candidate by the cost of neighbouring values.

There are no rules of thumb. Each neighbour is predicted like every other setup; if the mesh changes, its other options
are chosen again. The text gives the result: a longer step and the part that makes it longer, too much memory, or the
strategy's refusal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bench.analysis.choosing.candidates import Ranking
from bench.analysis.choosing.pricing import Candidate
from bench.analysis.choosing.search import Outcome, Unfit
from bench.case import Case, options_of, written
from bench.report.format import readable
from workloads.spec import Option, OptionValue

SAME_STEP = 0.0005
"""Steps that differ by no more than this count as equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """The cost of another value for an option of the first candidate.

    step_ratio: its step divided by the first's; None if it cannot run. words: the result, for people.
    """

    option: str
    value: OptionValue
    step_ratio: float | None
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why one option has its value."""

    option: str
    value: OptionValue
    neighbours: tuple[Neighbour, ...]

    @property
    def line(self) -> str:
        """The explanation in one line: "tensor_ranks=8: 4 takes 23 % longer (bubble +9.1 s); 16 is refused: ..."."""
        others = "; ".join(f"{written(each.value)} {each.words}" for each in self.neighbours)
        return f"{self.option}={written(self.value)}: {others}"


def explain(ranking: Ranking) -> list[Explanation]:
    """Explain the searched options of the first candidate; empty if nothing fits."""
    if (best := ranking.best) is None:
        return []
    outcome = ranking.searches[best.case.strategy].outcome
    options = [option for option in best.case.spec().options if option.name in outcome.setups.grid]
    options.sort(key=lambda option: not _is_of_mesh(option))
    values = options_of(best.case)
    explanations = []
    for option in options:
        neighbours = tuple(_neighbours(ranking, best, option))
        if neighbours:
            explanations.append(Explanation(option=option.name, value=values[option.name], neighbours=neighbours))
    return explanations


def placement(best: Candidate) -> str | None:
    """Return which level of links each axis of the mesh crosses: "tensor crosses NVLink, stage and data InfiniBand"."""
    axes = [name for name, size in best.case.spec().mesh(best.case).items() if size > 1 and name in best.levels]
    if not axes:
        return None
    return ", ".join(f"{name} {best.case.spec().mesh(best.case)[name]} over {best.levels[name]}" for name in axes)


def _is_of_mesh(option: Option) -> bool:
    return option.search is not None and option.search.values == "ranks"


def _neighbours(ranking: Ranking, best: Candidate, option: Option) -> Iterator[Neighbour]:
    """Yield the cost of the option's adjacent values, or of all its other values if they are choices."""
    search = ranking.searches[best.case.strategy]
    values: Sequence[OptionValue] = search.outcome.setups.grid[option.name]
    own = options_of(best.case)[option.name]
    assert option.search is not None, "only searched options have neighbours"
    if isinstance(option.search.values, str):
        place = values.index(own)
        values = values[max(0, place - 1) : place + 2]
    for value in values:
        if value == own:
            continue
        if _is_of_mesh(option):
            mesh = {
                each.name: best.case.options[each.name]
                for each in best.case.spec().options
                if _is_of_mesh(each) and each.name in search.outcome.setups.grid
            }
            options = {**mesh, option.name: value}
        else:
            options = {name: best.case.options[name] for name in search.outcome.setups.grid} | {option.name: value}
        outcome = search.among(options)
        if outcome.setups.cases:
            yield _feasible_neighbour(best, option, value, outcome)
        elif (reason := _refusal(best.case, options)) is not None:
            clause = reason.split("; ")[0].split(": ")[0]
            yield Neighbour(option=option.name, value=value, step_ratio=None, words=f"is refused ({clause})")


def _refusal(case: Case, options: dict[str, OptionValue]) -> str | None:
    reasons = case.spec().all_refusals(replace(case, options={**case.options, **options}), is_here=False)
    return reasons[0] if reasons else None


def _feasible_neighbour(best: Candidate, option: Option, value: OptionValue, outcome: Outcome) -> Neighbour:
    other = outcome.best
    if other is None:
        words = "does not fit" if outcome.nearest is None else f"does not fit ({memory_words(outcome.nearest)})"
        return Neighbour(option=option.name, value=value, step_ratio=None, words=words)
    ratio = other.step_s / best.step_s
    return Neighbour(option=option.name, value=value, step_ratio=ratio, words=_step_words(best, other, ratio))


def memory_words(unfit: Unfit) -> str:
    """Return the memory of a setup that does not fit: "at least 163 GiB"."""
    least = "at least " if unfit.memory.is_least else ""
    states = " of states" if unfit.memory.basis == "states" else ""
    return f"{least}{readable(unfit.memory.total_bytes, 'bytes')}{states}"


def _step_words(best: Candidate, other: Candidate, ratio: float) -> str:
    """Return the change of the step, the part that causes it, and the axes that cross other links than before."""
    if abs(ratio - 1) < SAME_STEP:
        more = other.memory.total_bytes - best.memory.total_bytes
        held = f"holds {readable(abs(more), 'bytes')} {'more' if more > 0 else 'less'}" if more else "holds as much"
        return f"takes as long and {held}"
    names = {*best.parts_s, *other.parts_s}
    sign = 1 if ratio > 1 else -1
    changes = {name: other.parts_s.get(name, 0.0) - best.parts_s.get(name, 0.0) for name in names}
    most = max(names, key=lambda name: sign * changes[name])
    why = f"{most} {'+' if changes[most] >= 0 else '-'}{readable(1e9 * abs(changes[most]), 'ns')}"
    crossing = [
        f"{axis} crosses {level}" for axis, level in other.levels.items() if best.levels.get(axis, level) != level
    ]
    return f"takes {100 * abs(ratio - 1):.1f} % {'longer' if sign > 0 else 'less'} ({', '.join([*crossing, why])})"
