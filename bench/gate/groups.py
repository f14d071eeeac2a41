"""Alerts of a night, grouped by what they share, for example strategy, shape, ranks, host or commit."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.gate.verdicts import BAD, Verdict

LEAST_ALERTS = 2
SURE = 0.01
"""Largest p-value of an attribute that alerts share: the probability that they share it by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Alerts that share an attribute. shared: for example ("host", "node7"); None if an alert shares nothing.

    others: figures of the night with this attribute that are not worse. p_value: of sharing it by chance.
    """

    shared: tuple[str, str] | None
    alerts: tuple[Verdict, ...]
    others: int
    p_value: float


def _attributes(verdict: Verdict) -> Iterator[tuple[str, str]]:
    yield "strategy", verdict.strategy
    yield "case", verdict.key.case
    yield "metric", verdict.key.metric
    yield "ranks", str(verdict.ranks)
    if verdict.shape:
        yield "shape", verdict.shape
    for host in verdict.hosts:
        yield "host", host
    if verdict.commit is not None:
        yield "commit", verdict.commit[:12]


def group_alerts(verdicts: Sequence[Verdict]) -> tuple[Group, ...]:
    """Return the alerts among the verdicts of a night, largest group first; each alert is in one group.

    The attribute that explains most forms a group, by the hypergeometric test of alerts against well figures with this
    attribute (Fisher's exact test, one-sided). The next attribute explains the remaining alerts, and so on. An
    attribute that all figures of the night share explains nothing; if most figures are alerts, these form one group,
    named after the suite.
    """
    alerts = [verdict for verdict in verdicts if verdict.outcome in BAD]
    well = [verdict for verdict in verdicts if verdict.outcome not in BAD]
    having_well = Counter(attribute for verdict in well for attribute in set(_attributes(verdict)))
    groups = []
    while len(alerts) >= LEAST_ALERTS:
        group = _best(alerts, having_well, len(alerts) + len(well))
        if group is None:
            break
        groups.append(group)
        explained = set(map(id, group.alerts))
        alerts = [verdict for verdict in alerts if id(verdict) not in explained]
    if len(alerts) > max(LEAST_ALERTS, len(verdicts) / 2):
        return (
            *groups,
            Group(shared=("suite", alerts[0].key.suite), alerts=tuple(alerts), others=len(well), p_value=1.0),
        )
    groups += [Group(shared=None, alerts=(verdict,), others=0, p_value=1.0) for verdict in alerts]
    return tuple(groups)


def _best(alerts: Sequence[Verdict], well: Counter[tuple[str, str]], figures: int) -> Group | None:
    """Return the group that is least probable by chance. well: number of well figures with each attribute."""
    from scipy.stats import hypergeom

    having: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
    for alert in alerts:
        for attribute in dict.fromkeys(_attributes(alert)):
            having[attribute].append(alert)
    best: Group | None = None
    for shared, members in having.items():
        others = well[shared]
        if len(members) < LEAST_ALERTS or len(members) + others == figures:
            continue
        # Probability that at least so many of the figures with the attribute are alerts, if alerts hit figures at
        # random.
        p_value = float(hypergeom.sf(len(members) - 1, figures, len(alerts), len(members) + others))
        if p_value <= SURE and (best is None or p_value < best.p_value):
            best = Group(shared=shared, alerts=tuple(members), others=others, p_value=p_value)
    return best
