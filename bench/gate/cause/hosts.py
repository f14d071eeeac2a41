"""Find hosts that are slow now and then, by comparing the nights with and without each host.

Each night's residual (its value over the expected value) is compared between the nights with a host and those without
it; outlying residuals are clipped. The same residuals, dealt to the nights at random, show how large the largest
statistic of all hosts would be by chance, so that more hosts need more evidence (Westfall and Young 1993). The effect
of a named host is subtracted, and the other hosts are compared again.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select

from bench.gate.detector.detector import RANGE_SDS
from bench.gate.detector.night import RESOLUTION
from bench.gate.gated import GATED_BY_NAME, figure_words, placement_of
from bench.gate.verdicts import KnownSeries, SeriesKey, Verdict, load_verdicts
from bench.store.history import History
from bench.store.schema import RUNS

NIGHTS = 30
"""Number of newest nights that are compared."""
FEWEST_NIGHTS = 12
FEWEST_WITH = 3
"""Fewest nights with a host, and fewest without it, from which its effect is estimated."""
FEWEST_VISITS = 2
"""Times that a host must come or go. The effect of a host in one block of nights is confounded with everything else
that changed at that time.
"""
SURE = 0.01
"""Largest p-value at which a host is named: the probability that any host has so large a statistic by chance."""
SMALLEST = 0.01
DEALS = 2000
_ROUNDED = 0.02
"""Effect from which on whole percents are precise enough."""
_LONGEST_NS = 2 * NIGHTS * 86_400 * 10**9
"""How far back nights are searched: twice the time they take if a suite runs each night."""
CUT_SDS = 5.0
"""Robust deviations at which a night is clipped: one outlying night must not make its hosts suspicious."""
_MOST_NAMED = 3

Flags = NDArray[np.bool_]
Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNight:
    """A night of a figure. log_residual: logarithm of its value over the expected value; larger is worse."""

    hosts: frozenset[str]
    log_residual: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SickHosts:
    """Hosts that took part in the same nights, which are worse than the others.

    effect: change of the logarithm, with its 95 % interval. nights: nights with the hosts. of_nights: all compared
    nights. p_value: probability that any host has such an effect by chance.
    """

    hosts: tuple[str, ...]
    effect: float
    low: float
    high: float
    nights: int
    of_nights: int
    p_value: float


def sick_hosts(nights: Sequence[HostNight]) -> tuple[SickHosts, ...]:
    """Return the hosts whose nights are worse, surest first; nights: oldest first.

    Hosts that always run together cannot be distinguished, and are named together. If a host took part in every night,
    or only in one block of nights, its effect cannot be separated from an effect of time.
    """
    newest = nights[-NIGHTS:]
    hosts_by_flags = _incidence(newest)
    if len(newest) < FEWEST_NIGHTS or not hosts_by_flags:
        return ()
    names, flags = list(hosts_by_flags.values()), np.array([np.frombuffer(key, dtype=bool) for key in hosts_by_flags])
    values = np.array([night.log_residual for night in newest])
    # The seed is fixed, so that the same history always gives the same answer.
    generator = np.random.default_rng(len(newest))
    sick: list[SickHosts] = []
    while len(sick) < _MOST_NAMED:
        best, p_value = _most_suspicious(flags, values, generator)
        if p_value > SURE:
            break
        effect, low, high = _shift(values[flags[best]], values[~flags[best]])
        if effect < SMALLEST or low <= 0:
            break
        sick.append(
            SickHosts(
                hosts=names[best],
                effect=effect,
                low=low,
                high=high,
                nights=int(flags[best].sum()),
                of_nights=len(newest),
                p_value=p_value,
            )
        )
        values = values - effect * flags[best]
    return tuple(sick)


def _incidence(nights: Sequence[HostNight]) -> dict[bytes, tuple[str, ...]]:
    """Return the hosts whose effect can be separated from time, by the nights that they took part in."""
    hosts_by_flags: dict[bytes, tuple[str, ...]] = {}
    for host in sorted({host for night in nights for host in night.hosts}):
        flags = np.array([host in night.hosts for night in nights])
        changes = int((flags[1:] != flags[:-1]).sum())
        if FEWEST_WITH <= flags.sum() <= len(nights) - FEWEST_WITH and changes > FEWEST_VISITS:
            key = flags.tobytes()
            hosts_by_flags[key] = (*hosts_by_flags.get(key, ()), host)
    return hosts_by_flags


def _most_suspicious(flags: Flags, values: Values, generator: np.random.Generator) -> tuple[int, float]:
    """Return the host with the largest statistic, and the share of permutations of the nights that reach it."""
    count = len(values)
    off = values - np.median(values)
    limit = CUT_SDS * max(1.4826 * float(np.median(np.abs(off))), RESOLUTION)
    off = np.clip(off, -limit, limit)
    off -= off.mean()
    with_host = flags.sum(axis=1)
    # Sum of the nights with each host, in its standard deviations over all permutations of the nights.
    deviations = np.sqrt(with_host * (count - with_host) / (count - 1) * float(off @ off) / count)
    deviations = np.maximum(deviations, RESOLUTION)
    scores = flags @ off / deviations
    # Correlated neighbouring nights, if the same host also took part in neighbouring nights, count as fewer nights.
    alike = max(0.0, _lag(off))
    shared = np.array([max(0.0, _lag(row - row.mean())) for row in flags.astype(np.float64)])
    scores /= np.sqrt((1 + alike * shared) / (1 - alike * shared))
    best = int(scores.argmax())
    dealt = generator.permuted(np.tile(off, (DEALS, 1)), axis=1)
    largest = (dealt @ flags.T / deviations).max(axis=1)
    return best, float(1 + (largest >= scores[best] - 1e-9).sum()) / (1 + DEALS)


def _lag(off: Values) -> float:
    """Return the correlation between neighbouring values."""
    square = float(off @ off)
    return float(off[1:] @ off[:-1]) / square if square > 0 else 0.0


def _shift(with_host: Values, without: Values) -> tuple[float, float, float]:
    """Return how far nights with a host lie above the others, with a 95 % interval.

    This is the median of all differences (Hodges and Lehmann 1963). If only some nights with the host are worse, so
    that the median shows nothing, it is the difference of the means (Welch 1947).
    """
    differences = np.sort((with_host[:, None] - without[None, :]).ravel())
    with_count, without_count = len(with_host), len(without)
    deviation = math.sqrt(with_count * without_count * (with_count + without_count + 1) / 12)
    cut = max(0, int(with_count * without_count / 2 - RANGE_SDS * deviation))
    if differences[cut] > 0:
        return float(np.median(differences)), float(differences[cut]), float(differences[-1 - cut])
    mean = float(with_host.mean() - without.mean())
    half_width = RANGE_SDS * math.sqrt(
        float(with_host.var(ddof=1)) / with_count + float(without.var(ddof=1)) / without_count
    )
    return mean, mean - half_width, mean + half_width


# From the history


@dataclass(frozen=True, slots=True, kw_only=True)
class SickCase:
    """Hosts whose nights are worse for a figure of a case."""

    case: str
    series: str
    figure: str
    hosts: SickHosts

    @property
    def words(self) -> str:
        """The result as a clause: `nights with node3 are +20 % [+17, +23] slower: 9 of 30 nights`."""
        names = self.hosts.hosts
        hosts = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}, which always run together,"
        digits = 0 if self.hosts.effect >= _ROUNDED else 1
        effect, low, high = (
            f"{100 * math.expm1(each):+.{digits}f}" for each in (self.hosts.effect, self.hosts.low, self.hosts.high)
        )
        worse = "slower" if self.figure == "step" else f"worse in {self.figure}"
        size = f"{effect} % [{low}, {high}]"
        return f"nights with {hosts} are {size} {worse}: {self.hosts.nights} of {self.hosts.of_nights} nights"


def find_sick_hosts(
    history: History, suite: str, verdicts: Iterable[Verdict], known: Mapping[SeriesKey, KnownSeries]
) -> tuple[SickCase, ...]:
    """Return the sick hosts of the cases of a night, judged by the first figure of each case."""
    order = list(GATED_BY_NAME)
    first: dict[tuple[str, str], SeriesKey] = {}
    for verdict in sorted(verdicts, key=lambda verdict: (order.index(verdict.key.metric), verdict.key)):
        first.setdefault((verdict.key.case, verdict.key.series), verdict.key)
    since_ns = min((verdict.started_ns for verdict in verdicts), default=0) - _LONGEST_NS
    moving = _moving_cases(history, suite, since_ns)
    return tuple(
        SickCase(case=case, series=series, figure=figure_words(key.metric, {}), hosts=hosts)
        for (case, series), key in sorted(first.items())
        if case in moving and key in known
        for hosts in sick_hosts(list(_nights_of(history, key, since_ns)))
    )


def _moving_cases(history: History, suite: str, since_ns: int) -> frozenset[str]:
    """Return the cases that ran on more than one set of hosts."""
    query = (
        select(RUNS.c.suite_case, RUNS.c.hosts).where(RUNS.c.suite == suite, RUNS.c.started_ns >= since_ns).distinct()
    )
    placements: dict[str, set[str]] = defaultdict(set)
    with history.transaction() as connection:
        for row in connection.execute(query):
            placements[row.suite_case].add(placement_of((row.hosts or "").split()))
    return frozenset(case for case, names in placements.items() if len(names) > 1)


def _nights_of(history: History, key: SeriesKey, since_ns: int) -> Iterator[HostNight]:
    worse = 1 if GATED_BY_NAME[key.metric].better == "lower" else -1
    for verdict in load_verdicts(history, key.suite, since_ns=since_ns, key=key):
        if verdict.expected is not None and verdict.outcome != "late":
            residual = worse * math.log(verdict.value / verdict.expected)
            yield HostNight(hosts=frozenset(verdict.hosts), log_residual=residual)
