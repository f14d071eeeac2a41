"""Alerts of a night, grouped by what they share: strategy, shape, ranks, host or commit."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.gate.verdicts import BAD, Verdict

LEAST_ALERTS = 2
SURE = 0.01
"""How improbable it must be that the alerts have an attribute in common by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Alerts that share an attribute. shared: such as ("host", "node7"); None of alerts that share nothing.

    others: figures of the night with this attribute that are well. p_value: of sharing it by chance.
    """

    shared: tuple[str, str] | None
    alerts: tuple[Verdict, ...]
    others: int
    p_value: float


def _attributes(one: Verdict) -> Iterator[tuple[str, str]]:
    yield "strategy", one.strategy
    yield "case", one.key.case
    yield "metric", one.key.metric
    yield "ranks", str(one.ranks)
    if one.shape:
        yield "shape", one.shape
    for host in one.hosts:
        yield "host", host
    if one.commit is not None:
        yield "commit", one.commit[:12]


def group_alerts(verdicts: Sequence[Verdict]) -> tuple[Group, ...]:
    """Return the alerts among the verdicts of a night, largest group first; each is in one group.

    The attribute is taken that explains most, by the hypergeometric test of the alerts that have it against the figures
    that have it and are well (Fisher's exact test, one-sided); then the next one explains what is left. An attribute of
    all figures of the night explains nothing; where most of them are alerts, they are one group, of the suite.
    """
    left = [one for one in verdicts if one.outcome in BAD]
    well = [one for one in verdicts if one.outcome not in BAD]
    having_well = Counter(attribute for one in well for attribute in set(_attributes(one)))
    groups = []
    while len(left) >= LEAST_ALERTS:
        found = _best(left, having_well, len(left) + len(well))
        if found is None:
            break
        groups.append(found)
        explained = set(map(id, found.alerts))
        left = [one for one in left if id(one) not in explained]
    if len(left) > max(LEAST_ALERTS, len(verdicts) / 2):
        return (*groups, Group(shared=("suite", left[0].key.suite), alerts=tuple(left), others=len(well), p_value=1.0))
    groups += [Group(shared=None, alerts=(one,), others=0, p_value=1.0) for one in left]
    return tuple(groups)


def _best(alerts: Sequence[Verdict], well: Counter[tuple[str, str]], figures: int) -> Group | None:
    """Return the group that is least probable by chance. well: how many figures with each attribute are well."""
    from scipy.stats import hypergeom

    having: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
    for one in alerts:
        for attribute in dict.fromkeys(_attributes(one)):
            having[attribute].append(one)
    best: Group | None = None
    for shared, found in having.items():
        others = well[shared]
        if len(found) < LEAST_ALERTS or len(found) + others == figures:
            continue
        # So many of the figures with the attribute are alerts, or more, if alerts fell on figures at random.
        p_value = float(hypergeom.sf(len(found) - 1, figures, len(alerts), len(found) + others))
        if p_value <= SURE and (best is None or p_value < best.p_value):
            best = Group(shared=shared, alerts=tuple(found), others=others, p_value=p_value)
    return best
