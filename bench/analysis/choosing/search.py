"""Searches for the fastest setups of a strategy that fit, and fully predicts only a few of them.

Setups are visited in the order of a bound on their step; the search ends when no other can be faster than the best.
Among setups that differ only in options along which memory falls, one that does not fit rules out all that hold more;
if the one that holds least does not fit, none does.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from bench.analysis.choosing.ground import MemoryNeed
from bench.analysis.choosing.pricing import Candidate, Pricing
from bench.analysis.choosing.setups import Grid, Setups
from bench.case import Case
from workloads.cost_models.absent import Absent
from workloads.spec import OptionValue, StrategySpec

Objective = Literal["throughput", "memory"]
MOST_MORE = 16
"""Further setups of the fastest strategy to evaluate, for the other lines of the table."""
MORE_UP_TO = 1.5
"""Setups whose step takes more than this many times the best are not among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfit:
    """A setup that does not fit, with its memory."""

    case: Case
    memory: MemoryNeed


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The result of the search for one strategy.

    candidates: the evaluated setups, best first. unfit_count: setups that do not fit. nearest: of those, the one that
    holds least. slower_count: setups that fit or may fit, but were skipped because they cannot be faster.
    added_count: setups outside the grid that were also tried.
    unpredicted: reasons why steps are absent, with the number of setups.
    """

    setups: Setups
    candidates: list[Candidate] = field(default_factory=list)
    unfit_count: int = 0
    nearest: Unfit | None = None
    slower_count: int = 0
    added_count: int = 0
    unpredicted: dict[str, int] = field(default_factory=dict)

    @property
    def best(self) -> Candidate | None:
        """The fastest setup, or the smallest if the objective is memory."""
        return self.candidates[0] if self.candidates else None


@dataclass(slots=True, kw_only=True)
class _Group:
    """Setups that differ only in options along which memory falls.

    least: the case that holds least. unfit: places of setups that do not fit. A setup whose place exceeds such a place
    in no option holds at least as much.
    """

    least: Case
    least_place: tuple[int, ...]
    is_checked: bool = False
    unfit: list[tuple[int, ...]] = field(default_factory=list)

    def holds_more(self, place: Sequence[int]) -> bool:
        """Whether a setup holds at least as much as one that does not fit."""
        return any(all(own <= other for own, other in zip(place, unfit, strict=True)) for unfit in self.unfit)


class Search:
    """The search among the setups of one strategy."""

    def __init__(self, setups: Setups, pricing: Pricing, objective: Objective) -> None:
        self.pricing, self.objective = pricing, objective
        self.outcome = Outcome(setups=setups)
        self._falling = _falling(setups.spec, setups.grid)
        self._groups: dict[Hashable, _Group] = {}
        for case in setups.cases:
            group, place = self._group_key(case), self._place(case)
            known = self._groups.get(group)
            if known is None or sum(place) > sum(known.least_place):
                self._groups[group] = _Group(least=case, least_place=place)
        cases: Iterable[Case] = setups.cases
        if objective == "memory":
            cases = [group.least for group in self._groups.values()]
        self._queue = [(pricing.bound_s(case), number, case) for number, case in enumerate(cases)]
        heapq.heapify(self._queue)
        self.outcome.slower_count = len(setups.cases) - len(self._queue)

    def run(self) -> Outcome:
        """Visit setups until no other can be better than the best, and return the outcome."""
        best_s = float("inf")
        while self._queue and (self._queue[0][0] < best_s or self.objective == "memory"):
            _, _, case = heapq.heappop(self._queue)
            if (candidate := self._visit(case)) is not None:
                best_s = min(best_s, candidate.step_s)
        return self._sorted()

    def more(self) -> Outcome:
        """Visit a few more setups, with other meshes than the best."""
        best = self.outcome.best
        count = 0
        while best is not None and self._queue and count < MOST_MORE:
            bound_s, _, case = heapq.heappop(self._queue)
            if bound_s > MORE_UP_TO * best.step_s:
                heapq.heappush(self._queue, (bound_s, -1, case))
                break
            if _mesh(case) in {_mesh(each.case) for each in self.outcome.candidates}:
                self.outcome.slower_count += 1
                continue
            count += self._visit(case) is not None
        return self._sorted()

    def among(self, wanted: Mapping[str, OptionValue]) -> Outcome:
        """Search only among setups with these options."""
        whole = self.outcome.setups
        cases = [case for case in whole.cases if all(case.options[name] == value for name, value in wanted.items())]
        part = Setups(spec=whole.spec, grid=whole.grid, cases=cases)
        return Search(part, self.pricing, self.objective).run()

    def add(self, case: Case) -> Candidate | None:
        """Evaluate another setup of the strategy, with options that are not in the grid."""
        if any(each.case == case for each in self.outcome.candidates):
            return None
        self.outcome.added_count += 1
        if not self.pricing.memory(case).fits:
            self.outcome.unfit_count += 1
            return None
        candidate = self.pricing.candidate(case)
        if isinstance(candidate, Absent):
            self._leave_out(candidate)
            return None
        self.outcome.candidates.append(candidate)
        self._sorted()
        return candidate

    def _sorted(self) -> Outcome:
        if self.objective == "memory":
            self.outcome.candidates.sort(key=lambda each: (each.memory.total_bytes, each.step_s))
        else:
            self.outcome.candidates.sort(key=lambda each: (each.step_s, each.memory.total_bytes))
        return self.outcome

    def left(self) -> int:
        """Return how many setups were skipped because they cannot be faster."""
        return len(self._queue) + self.outcome.slower_count

    def _visit(self, case: Case) -> Candidate | None:
        """Evaluate a setup; return None if it does not fit or its step is absent."""
        group, place = self._groups[self._group_key(case)], self._place(case)
        if not group.is_checked:
            group.is_checked = True
            if not self._fits(group.least):
                group.unfit.append(group.least_place)
        if group.holds_more(place):
            self.outcome.unfit_count += 1
            return None
        if not self._fits(case):
            group.unfit.append(place)
            self.outcome.unfit_count += 1
            return None
        candidate = self.pricing.candidate(case)
        if isinstance(candidate, Absent):
            self._leave_out(candidate)
            return None
        self.outcome.candidates.append(candidate)
        return candidate

    def _leave_out(self, step: Absent) -> None:
        self.outcome.unpredicted[step.reason] = self.outcome.unpredicted.get(step.reason, 0) + 1

    def _fits(self, case: Case) -> bool:
        memory = self.pricing.memory(case)
        nearest = self.outcome.nearest
        if not memory.fits and (nearest is None or _closeness(memory) < _closeness(nearest.memory)):
            self.outcome.nearest = Unfit(case=case, memory=memory)
        return memory.fits

    def _group_key(self, case: Case) -> Hashable:
        return tuple(case.options[name] for name in self.outcome.setups.grid if name not in self._falling)

    def _place(self, case: Case) -> tuple[int, ...]:
        return tuple(places[case.options[name]] for name, places in self._falling.items())


def _mesh(case: Case) -> tuple[tuple[str, int], ...]:
    return tuple(case.spec().mesh(case).items())


def _closeness(memory: MemoryNeed) -> tuple[bool, int]:
    """Return the sort key of setups that do not fit: those with fully computed memory first, then by memory."""
    return memory.basis == "states", memory.total_bytes


def _falling(spec: StrategySpec, grid: Grid) -> Mapping[str, Mapping[object, int]]:
    """Return the options along which memory falls, with the place of each value."""
    falling: dict[str, dict[object, int]] = {}
    for option in spec.options:
        if (
            option.name in grid
            and option.search is not None
            and (option.search.falls or option.search.values == "batch")
        ):
            falling[option.name] = {value: place for place, value in enumerate(grid[option.name])}
    return falling
