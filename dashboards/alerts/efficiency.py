"""The alert on nightly results: scaling efficiency is lower than accepted, or than on other nights.

There are two levels, because each misses what the other sees. The median of the last nights knows what is usual for
a series, but a loss that comes slowly, or stays, becomes usual. The accepted level is a number that somebody has
agreed to.

Both need an interval below the level, so a run of one trial, which has none, raises no alert. Against other nights
the result must also lie three standard deviations of these nights below their median, and 2 % below it. A result
older than a day and a half belongs to a series that no longer runs, and raises no alert either.

A result is identified by what it measures, and not by who shows it: a series goes on where a scheduler draws another
node each night, where a node or a pod is new, and where several exporters show one store. Of all that show a series,
the one whose run was completed last counts. Results are compared only with those of the same kind of baseline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from collectors.metrics.agent import RUN_LAST_COMPLETION
from collectors.metrics.metric import Statistic
from collectors.metrics.results import RUN_SCALING_EFFICIENCY
from dashboards import promql
from dashboards.model import Alert, Group, Recording, Severity
from dashboards.thresholds import AcceptedEfficiency, Efficiency, Thresholds

_INTERQUARTILE_RANGE_PER_DEVIATION = 1.349  # Of a normal distribution.

_RUN = "{{ $labels.strategy }} on {{ $labels.ranks }} ranks"
_RESULT = (
    f"{{{{ $labels.scaling }}}} scaling efficiency of {_RUN} ({{{{ $labels.device }}}}, {{{{ $labels.precision }}}},"
    " series {{ $labels.series }}, baseline: {{ $labels.baseline }})"
)
_NEXT = " Next: `observatory show --strategy {{ $labels.strategy }}`."

_SERIES = ("series",)
_MEASURED = (*promql.OWNER_LABELS["run"], *RUN_SCALING_EFFICIENCY.labels)
ACCEPTED_FOR = ("strategy", "device", "scaling")

_completed = promql.recorded(RUN_LAST_COMPLETION, "newest")
_median = promql.recorded(RUN_SCALING_EFFICIENCY, "median")
_high = promql.recorded(RUN_SCALING_EFFICIENCY, "high")
_low = promql.recorded(RUN_SCALING_EFFICIENCY, "low")
ACCEPTED = promql.recorded(RUN_SCALING_EFFICIENCY, "accepted")
ACCEPTED_OF_RANKS = promql.recorded(RUN_SCALING_EFFICIENCY, "accepted_of_ranks")


EFFICIENCY = "{{ $value | humanizePercentage }}"
INTERVAL = "".join(
    f'{{{{ with printf "{bound}{{series=%q,scaling=%q,baseline=%q}}" $labels.series $labels.scaling $labels.baseline'
    f" | query }}}}{before}{{{{ . | first | value | humanizePercentage }}}}{after}{{{{ end }}}}"
    for bound, before, after in ((_low, " [", ""), (_high, ", ", "]"))
)
"""A template that shows the ends of the result's interval, as ` [78 %, 82 %]`, by what the group has recorded."""


def _newest(which: Statistic) -> str:
    """Return one statistic of each series' result, from the exporters that show its newest run."""
    shown_by = promql.same(promql.select(RUN_LAST_COMPLETION), _completed, on=_SERIES)
    result = promql.select(RUN_SCALING_EFFICIENCY.statistic(which))
    return promql.largest(
        promql.where(result, shown_by, on=(*_SERIES, *promql.SCRAPE_LABELS)),
        by=_MEASURED,
    )


def _accepted_levels(entries: tuple[AcceptedEfficiency, ...]) -> Iterator[Recording]:
    for entry in entries:
        labels = {"strategy": entry.strategy, "device": entry.device, "scaling": entry.scaling}
        of_ranks = {} if entry.ranks is None else {"ranks": str(entry.ranks)}
        record = ACCEPTED_OF_RANKS if of_ranks else ACCEPTED
        yield Recording(record=record, expression=promql.constant(entry.ratio), labels={**labels, **of_ranks})


def _below_accepted(entries: tuple[AcceptedEfficiency, ...], drop_ratio: float = 0.0) -> Iterator[str]:
    """Yield the results whose whole interval lies below an accepted level; a level of their ranks goes first.

    drop_ratio: how far below, as a share of the level.
    """
    share = 1 - drop_ratio
    high, of_ranks = _high, (*ACCEPTED_FOR, "ranks")
    if any(entry.ranks is not None for entry in entries):
        yield promql.where(_median, promql.below(_high, promql.times(share, ACCEPTED_OF_RANKS), on=of_ranks))
        high = f"({promql.unless(_high, ACCEPTED_OF_RANKS, on=of_ranks)})"
    if any(entry.ranks is None for entry in entries):
        yield promql.where(_median, promql.below(high, promql.times(share, ACCEPTED), on=ACCEPTED_FOR))


def _quantile(quantile: float, limits: Efficiency) -> str:
    return promql.quantile_over_days(_median, quantile, limits.window_days)


def _completions(limits: Efficiency) -> str:
    # A fresh completion counts even where nobody shows it any more: otherwise an older result that others still show
    # would be judged again in its place.
    shown_before = promql.where(
        promql.remembered(_completed), promql.younger(promql.remembered(_completed), limits.fresh_hours)
    )
    return promql.largest(promql.either(promql.past(RUN_LAST_COMPLETION), shown_before), by=_SERIES)


def accepted_level(entries: tuple[AcceptedEfficiency, ...]) -> str:
    """Return a template with the accepted level, as ` (accepted: 80%)`; that of the result's ranks goes first."""
    records: list[tuple[str, Sequence[str]]] = []
    if any(entry.ranks is not None for entry in entries):
        records.append((ACCEPTED_OF_RANKS, (*ACCEPTED_FOR, "ranks")))
    if any(entry.ranks is None for entry in entries):
        records.append((ACCEPTED, ACCEPTED_FOR))
    asked = []
    for record, by in records:
        selected, values = ",".join(f"{label}=%q" for label in by), " ".join(f"$labels.{label}" for label in by)
        asked.append(f'(query (printf "{record}{{{selected}}}" {values}))')
    if not asked:
        return ""
    return (
        f"{{{{ with or {' '.join(asked)} }}}} (accepted: {{{{ . | first | value | humanizePercentage }}}}){{{{ end }}}}"
    )


def _alert(name: str, severity: Severity, expression: str, verdict: str, reason: str, accepted: str) -> Alert:
    """Return the alert on results of this severity; its value is the efficiency. accepted: see `accepted_level`."""
    return Alert(
        name=name,
        expression=expression,
        hold_minutes=20,
        severity=severity,
        component="result",
        summary=f"{_RUN} {verdict}: {EFFICIENCY}{INTERVAL}{accepted}",
        description=f"{_RESULT} is {EFFICIENCY}{INTERVAL}: {reason}.{_NEXT}",
        dashboard="does-it-scale",
    )


def rules(thresholds: Thresholds) -> Group:
    """Return the alerts on scaling efficiency, and what it remembers of other nights."""
    limits, entries = thresholds.efficiency, thresholds.accepted_efficiency
    days = limits.window_days
    usual = promql.recorded(RUN_SCALING_EFFICIENCY, f"median_{days}d")
    deviation = promql.recorded(RUN_SCALING_EFFICIENCY, f"deviation_{days}d")
    nights = promql.recorded(RUN_SCALING_EFFICIENCY, f"nights_{days}d")
    spread = promql.less(_quantile(0.75, limits), _quantile(0.25, limits))
    fresh = promql.younger(_completed, limits.fresh_hours)
    below_other_nights = promql.where(
        _median,
        promql.below(_high, usual),
        promql.below(_median, promql.less(usual, promql.times(limits.deviations, deviation))),
        promql.below(_median, promql.times(1 - limits.least_drop_ratio, usual)),
        # The first night that is seen is no change, so n nights count as n - 1.
        promql.at_least(nights, limits.least_nights - 1),
    )
    far_below_other_nights = promql.where(
        below_other_nights, promql.below(_high, promql.times(1 - limits.critical_drop_ratio, usual))
    )
    low = (*_below_accepted(entries), below_other_nights)
    far_too_low = (*_below_accepted(entries, limits.critical_drop_ratio), far_below_other_nights)
    return Group(
        name="nightly",
        interval_minutes=10,
        recordings=(
            *_accepted_levels(entries),
            Recording(record=_completed, expression=_completions(limits)),
            Recording(record=_median, expression=_newest("median")),
            Recording(record=_low, expression=_newest("low")),
            Recording(record=_high, expression=_newest("high")),
            Recording(record=usual, expression=_quantile(0.5, limits)),
            Recording(
                record=deviation,
                expression=promql.times(round(1 / _INTERQUARTILE_RANGE_PER_DEVIATION, 4), spread),
            ),
            Recording(record=nights, expression=promql.days_with_news(_median, _completed, days, on=_SERIES)),
        ),
        alerts=(
            _alert(
                "ScalingEfficiencyLow",
                "warning",
                promql.either(*(promql.where(one, fresh, on=_SERIES) for one in low)),
                "scales worse than it should",
                f"its whole interval lies below the accepted level, or below the median of {days} nights by more than"
                " their noise",
                accepted_level(entries),
            ),
            _alert(
                "ScalingEfficiencyCritical",
                "critical",
                promql.either(*(promql.where(one, fresh, on=_SERIES) for one in far_too_low)),
                "scales far worse than it should",
                f"its whole interval lies more than {limits.critical_drop_ratio:.0%} below the accepted level, or below"
                f" the median of {days} nights",
                accepted_level(entries),
            ),
        ),
    )
