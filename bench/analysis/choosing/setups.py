"""Enumerates the setups of a choice, from each strategy's `Option.search` values, and counts refused setups by reason.

Options are set one after the other, those of the mesh first. A branch ends early if no change of a single further
option removes a refusal, so an impossible mesh costs a few checks instead of thousands.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bench.case import Case, settle
from workloads.spec import Option, OptionValue, StrategySpec

Grid = Mapping[str, tuple[OptionValue, ...]]
"""Values of each option that is searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Setups that a strategy refuses for one reason.

    count: of setups. example: the spec's reason for one of them.
    """

    strategy: str
    count: int
    example: str

    @property
    def reason(self) -> str:
        """What is wrong, without the remedy."""
        return _clause(self.example)


@dataclass(slots=True, kw_only=True)
class Setups:
    """The setups of one strategy. cases: those that can run. counts, examples: of refusals, by kind of reason."""

    spec: StrategySpec
    grid: Grid
    cases: list[Case] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    @property
    def refused(self) -> tuple[Refused, ...]:
        """Refused setups, the most frequent reason first."""
        return tuple(
            Refused(strategy=self.spec.name, count=count, example=self.examples[kind])
            for kind, count in self.counts.most_common()
        )

    @property
    def first_refusal(self) -> str:
        """The spec's reason for the first setup that it refused, which differs least from the defaults."""
        return next(iter(self.examples.values()))

    def refuse(self, reason: str, count: int) -> None:
        """Count setups as refused for a reason."""
        kind = _kind(reason)
        self.counts[kind] += count
        self.examples.setdefault(kind, reason)


def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a number, 1 and itself included, in ascending order."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return tuple(dict.fromkeys([*small, *(number // divisor for divisor in reversed(small))]))


def grid_of(spec: StrategySpec, case: Case, fixed: Mapping[str, OptionValue]) -> Grid:
    """Return the values to search for each option: mesh, then choices, then divisors of the batch, then falling memory.

    fixed: options that the user set, which are left out.
    """
    options = [option for option in spec.options if option.search is not None and not option.search.is_late]
    options.sort(key=_place)
    return {option.name: _values(option, case) for option in options if option.name not in fixed}


def _place(option: Option) -> int:
    assert option.search is not None, "only searched options are sorted"
    return {"ranks": 0, "batch": 2}.get(str(option.search.values), 3 if option.search.falls else 1)


def _values(option: Option, case: Case) -> tuple[OptionValue, ...]:
    assert option.search is not None, "only searched options have values"
    match option.search.values:
        case "ranks":
            values: tuple[OptionValue, ...] = divisors(case.ranks)
        case "batch":
            values = divisors(case.shape.batch)
        case words:
            values = words
    least = option.minimum
    return tuple(value for value in values if least is None or isinstance(value, str) or value >= least)


def setups_of(base: Case, fixed: Mapping[str, OptionValue]) -> Setups:
    """Return the setups of a case's strategy. base: with default options and those that the user set."""
    spec = base.spec()
    setups = Setups(spec=spec, grid=grid_of(spec, base, fixed))
    size = math.prod(len(values) for values in setups.grid.values())
    if (refusal := whole_refusal(base)) is not None:
        setups.refuse(refusal, size)
    else:
        _walk(setups, base, list(setups.grid))
    return setups


def whole_refusal(base: Case) -> str | None:
    """Return why no setup of a case's strategy can run, whatever its options: ranks, device or packages."""
    spec, needs = base.spec(), base.spec().needs
    if base.ranks < needs.minimum_ranks or base.ranks > (needs.maximum_ranks or base.ranks):
        return f"it needs {needs.text()}; ranks is {base.ranks}"
    if base.device not in needs.devices:
        return f"it needs {needs.text()}; device is {base.device}"
    return next(iter(spec.missing_packages()), None)


def _walk(setups: Setups, case: Case, names: Sequence[str]) -> None:
    """Add the setups of a case, of which the options `names` are not set yet."""
    if not names:
        settled = settle(case)
        if reasons := setups.spec.all_refusals(settled, is_here=False):
            setups.refuse(reasons[0], 1)
        else:
            setups.cases.append(settled)
        return
    if (lasting := _lasting_refusal(setups, case, names)) is not None:
        setups.refuse(lasting, math.prod(len(setups.grid[name]) for name in names))
        return
    first, *others = names
    for value in setups.grid[first]:
        _walk(setups, _with(case, {first: value}), others)


def _lasting_refusal(setups: Setups, case: Case, names: Sequence[str]) -> str | None:
    """Return a refusal that no change of a single option removes; None if there is none."""
    common: dict[str, str] | None = None
    for changes in _single_changes(setups.grid, names):
        # The case is not settled; its refusals can differ only in options that are `auto`.
        reasons = setups.spec.all_refusals(_with(case, changes), is_here=False)
        kinds = {_kind(reason): reason for reason in reasons}
        common = kinds if common is None else {kind: reason for kind, reason in common.items() if kind in kinds}
        if not common:
            return None
    return next(iter(common.values())) if common else None


def _single_changes(grid: Grid, names: Sequence[str]) -> Iterator[dict[str, OptionValue]]:
    """Yield the first values of all options, and then every other value of one option at a time."""
    first = {name: grid[name][0] for name in names}
    yield first
    for name in names:
        for value in grid[name][1:]:
            yield {**first, name: value}


def _with(case: Case, options: Mapping[str, OptionValue]) -> Case:
    return replace(case, options={**case.options, **options})


_NUMBER = re.compile(r"\d[\d.,]*")


def _kind(reason: str) -> str:
    return _NUMBER.sub("#", _clause(reason))


def _clause(reason: str) -> str:
    """Return what is wrong, without the remedy, which follows a semicolon or a colon."""
    return re.split(r"[;:] ", reason, maxsplit=1)[0]
