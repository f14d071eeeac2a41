"""Ranks the candidates for a model on a machine: the best setup of each strategy, and other meshes of the fastest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bench.analysis.choosing.ground import Ground
from bench.analysis.choosing.pricing import Candidate, Pricing, speed_ratio
from bench.analysis.choosing.search import Objective, Outcome, Search, Unfit
from bench.analysis.choosing.setups import Refused, Setups, setups_of
from bench.case import Case, check, settle
from bench.errors import Misuse, plural
from workloads.registry import SPECS
from workloads.spec import OptionValue, StrategySpec

MOST_LINES = 10
"""Limit of candidates in a ranking."""
PLAINEST = ("single", "ddp", "fsdp")
"""Strategies that a measured choice never leaves out, because people use them by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The candidates, best first, and the counts of all other setups.

    candidates: at most MOST_LINES: the best of each strategy that fits, and other meshes of the fastest strategy.
    unfit: the nearest setup of each strategy that fits in no setup, by strategy.
    refused: setups of all strategies, most frequent reason first.
    unfit_count, slower_count, predicted_count: setups that do not fit, those that were skipped because they cannot be
    better, and the others.
    unpredicted: reasons why steps are absent, with the number of setups.
    pricing: has the prices of all evaluated setups.
    """

    ground: Ground
    objective: Objective
    candidates: tuple[Candidate, ...]
    unfit: Mapping[str, Unfit]
    refused: tuple[Refused, ...]
    unfit_count: int
    slower_count: int
    predicted_count: int
    unpredicted: Mapping[str, int]
    pricing: Pricing
    searches: Mapping[str, Search]

    @property
    def best(self) -> Candidate | None:
        """The first candidate; None if nothing fits."""
        return self.candidates[0] if self.candidates else None

    @property
    def setups_count(self) -> int:
        """All setups that were compared."""
        return sum(
            sum(search.outcome.setups.counts.values()) + len(search.outcome.setups.cases) + search.outcome.added_count
            for search in self.searches.values()
        )

    def best_of_others(self) -> tuple[Candidate, ...]:
        """Return the best of each strategy except the first candidate's, in order."""
        firsts: dict[str, Candidate] = {}
        for each in self.candidates:
            firsts.setdefault(each.case.strategy, each)
        return tuple(firsts.values())[1:]

    def equals(self) -> tuple[Candidate, ...]:
        """Return the other candidates that cannot be distinguished from the first."""
        if (best := self.best) is None:
            return ()
        return tuple(each for each in self.candidates[1:] if not speed_ratio(best, each).is_clear)


def candidates(
    bases: Sequence[Case], ground: Ground, *, objective: Objective = "throughput", fixed: Mapping[str, OptionValue]
) -> Ranking:
    """Rank the candidates of these strategies on a ground by predicted step or memory.

    bases: a case of each strategy, with default options and those in `fixed`.
    fixed: options that the user set, which are not searched.
    """
    pricing = Pricing(ground=ground)
    searches = {base.strategy: Search(setups_of(base, fixed), pricing, objective) for base in bases}
    outcomes = {name: search.run() for name, search in searches.items()}
    for name, search in searches.items():
        _refine(search, outcomes[name], fixed)
    refuse_nothing({name: each.setups for name, each in outcomes.items()})
    ranked = sorted(
        (each for each in outcomes.values() if each.best is not None), key=lambda each: _order(each, objective)
    )
    if ranked and len(ranked) < MOST_LINES and objective == "throughput":
        fastest = ranked[0].setups.spec.name
        searches[fastest].more()
    return Ranking(
        ground=ground,
        objective=objective,
        candidates=tuple(_lines(ranked, objective)),
        unfit={name: each.nearest for name, each in outcomes.items() if each.best is None and each.nearest is not None},
        refused=_refusals(outcomes.values()),
        unfit_count=sum(each.unfit_count for each in outcomes.values()),
        slower_count=sum(search.left() for search in searches.values()),
        predicted_count=pricing.predicted_count,
        unpredicted=dict(sum((Counter(each.unpredicted) for each in outcomes.values()), Counter())),
        pricing=pricing,
        searches=searches,
    )


def refuse_nothing(setups: Mapping[str, Setups]) -> None:
    """Refuse a question for which every strategy refuses every setup.

    Raises:
        Misuse: there is no setup at all; the message has the refusal of the plainest strategy, which says what would
            work.
    """
    if any(each.cases for each in setups.values()):
        return
    plainest = next((name for name in reversed(PLAINEST) if name in setups), next(iter(setups)))
    others = f", nor can {plural(len(setups) - 1, 'other strategy', 'other strategies')}" if len(setups) > 1 else ""
    raise Misuse(f"{plainest} cannot run{others}: {setups[plainest].first_refusal}")


def _order(outcome: Outcome, objective: Objective) -> tuple[float, float]:
    assert outcome.best is not None, "only strategies that fit are ordered"
    pair = (outcome.best.step_s, float(outcome.best.memory.total_bytes))
    return pair if objective == "throughput" else pair[::-1]


def _refine(search: Search, outcome: Outcome, fixed: Mapping[str, OptionValue]) -> None:
    """Try the late options around the best setup of a strategy, one after the other."""
    spec = outcome.setups.spec
    for option in spec.options:
        if option.search is None or not option.search.is_late or option.name in fixed:
            continue
        assert isinstance(option.search.values, tuple), "options that are compared late list their values"
        for value in option.search.values:
            if (best := outcome.best) is None:
                return
            if (case := changed(best.case, {option.name: value})) is not None:
                search.add(case)


def changed(case: Case, options: Mapping[str, OptionValue]) -> Case | None:
    """Return the case with other options; None if its spec refuses them."""
    try:
        return check(settle(replace(case, options={**case.options, **options})), is_here=False)
    except Misuse:
        return None


def _lines(ranked: Sequence[Outcome], objective: Objective) -> list[Candidate]:
    """Return the best of each strategy, and other meshes of the fastest, best first."""
    lines = [outcome.best for outcome in ranked[:MOST_LINES] if outcome.best is not None]
    meshes = {_mesh(each.case) for each in lines}
    for candidate in ranked[0].candidates if ranked else ():
        if len(lines) == MOST_LINES:
            break
        if (mesh := _mesh(candidate.case)) not in meshes:
            meshes.add(mesh)
            lines.append(candidate)
    if objective == "memory":
        return sorted(lines, key=lambda each: (each.memory.total_bytes, each.step_s))
    return sorted(lines, key=lambda each: (each.step_s, each.memory.total_bytes))


def _mesh(case: Case) -> tuple[str, tuple[tuple[str, int], ...]]:
    return case.strategy, tuple(case.spec().mesh(case).items())


def _refusals(outcomes: Iterable[Outcome]) -> tuple[Refused, ...]:
    refused = [each for of_strategy in outcomes for each in of_strategy.setups.refused]
    return tuple(sorted(refused, key=lambda each: -each.count))


def training_specs() -> tuple[StrategySpec, ...]:
    return tuple(spec for spec in SPECS if spec.kind == "training")
