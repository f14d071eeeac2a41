"""The alert on nightly results: scaling efficiency is lower than accepted, or than on other nights.

Two levels, because each misses what the other sees. The median of the last nights knows what is usual for a series,
but a loss that comes slowly, or stays, becomes usual. The accepted level is a number that somebody has agreed to.

Both ask for an interval below the level, so a run of one trial, which has none, tells nobody. Against other nights the
result must also lie three standard deviations of these nights below their median, and 2 % of it. A result older than a
day and a half is of a series that no longer runs, and tells nobody either.

A result is told by what it measures, and not by who shows it: a series goes on where a scheduler draws another node
each night, where a node or a pod is a new one, and where several exporters show one store. Of all that show a series
the one whose run was completed last counts. Results compare with those that have the same kind of baseline.
"""

from __future__ import annotations

from collectors.catalogue.info import RUN_LAST_COMPLETION
from collectors.catalogue.results import RUN_SCALING_EFFICIENCY
from dashboards import combining, promql
from dashboards.alerts.rule import Alert, Group, Recording

NIGHTS = 14
LEAST_NIGHTS = 7
FRESH_HOURS = 36
DEVIATIONS = 3
LEAST_DROP_RATIO = 0.02
_INTERQUARTILE_RANGE_PER_DEVIATION = 1.349  # Of a normal distribution.

ACCEPTED_RATIOS: dict[tuple[str, str, str], float] = {("ddp", "cuda", "weak"): 0.8}
"""Accepted efficiency by strategy, device and scaling: published figures for heavy models are 0.97 to 0.98, and light
ones expose more communication. Ranks on one CPU share its caches, so their only level is their own nights."""

_SERIES = ("series",)
_MEASURED = (
    *(label for label in promql.OWNER_LABELS["run"] if label != "bound"),
    *RUN_SCALING_EFFICIENCY.labels,
)
_ACCEPTED_FOR = ("strategy", "device", "scaling")

_completed = promql.recorded(RUN_LAST_COMPLETION, "newest")
_median = promql.recorded(RUN_SCALING_EFFICIENCY, "median")
_high = promql.recorded(RUN_SCALING_EFFICIENCY, "high")
_usual = promql.recorded(RUN_SCALING_EFFICIENCY, f"median_{NIGHTS}d")
_deviation = promql.recorded(RUN_SCALING_EFFICIENCY, f"deviation_{NIGHTS}d")
_accepted = promql.recorded(RUN_SCALING_EFFICIENCY, "accepted")
_nights = promql.recorded(RUN_SCALING_EFFICIENCY, f"nights_{NIGHTS}d")


# As long as it is fresh it counts though nobody shows it any more: an older result that others still show is not judged
# again in its place.
_shown_before = combining.where(
    promql.remembered(_completed), promql.younger(promql.remembered(_completed), FRESH_HOURS)
)


def _newest(bound: str) -> str:
    """One bound of each series' result, as those show it that show its newest run."""
    shown_by = combining.same(promql.select(RUN_LAST_COMPLETION), _completed, on=_SERIES)
    result = promql.select(RUN_SCALING_EFFICIENCY, bound=bound)
    return combining.largest(
        combining.where(result, shown_by, on=(*_SERIES, *promql.SCRAPE_LABELS)),
        by=_MEASURED,
    )


def _quantile(quantile: float) -> str:
    return promql.quantile_over_days(_median, quantile, NIGHTS)


_RECORDINGS = (
    *(
        Recording(
            record=_accepted,
            expression=promql.constant(ratio),
            labels={"strategy": strategy, "device": device, "scaling": scaling},
        )
        for (strategy, device, scaling), ratio in ACCEPTED_RATIOS.items()
    ),
    Recording(
        record=_completed,
        expression=combining.largest(combining.either(promql.past(RUN_LAST_COMPLETION), _shown_before), by=_SERIES),
    ),
    Recording(record=_median, expression=_newest("median")),
    Recording(record=_high, expression=_newest("high")),
    Recording(record=_usual, expression=_quantile(0.5)),
    Recording(
        record=_deviation,
        expression=combining.times(
            round(1 / _INTERQUARTILE_RANGE_PER_DEVIATION, 4), combining.less(_quantile(0.75), _quantile(0.25))
        ),
    ),
    Recording(record=_nights, expression=promql.days_with_news(_median, _completed, NIGHTS, on=_SERIES)),
)

_fresh = promql.younger(_completed, FRESH_HOURS)
_below_accepted = combining.where(_median, combining.below(_high, _accepted, on=_ACCEPTED_FOR))
_below_other_nights = combining.where(
    _median,
    combining.below(_high, _usual),
    combining.below(_median, combining.less(_usual, combining.times(DEVIATIONS, _deviation))),
    combining.below(_median, combining.times(1 - LEAST_DROP_RATIO, _usual)),
)
# The first night that is seen is no change, so that so many nights count one less.
_known = combining.where(_below_other_nights, combining.at_least(_nights, LEAST_NIGHTS - 1))

GROUP = Group(
    name="nightly",
    interval_minutes=10,
    recordings=_RECORDINGS,
    alerts=(
        Alert(
            name="ScalingEfficiencyLow",
            expression=combining.either(
                combining.where(_below_accepted, _fresh, on=_SERIES), combining.where(_known, _fresh, on=_SERIES)
            ),
            hold_minutes=20,
            severity="ticket",
            summary="{{ $labels.strategy }} on {{ $labels.ranks }} ranks scales worse than it should",
            description=(
                "{{ $labels.scaling }} scaling efficiency of {{ $labels.strategy }} on {{ $labels.ranks }} ranks"
                " ({{ $labels.device }}, {{ $labels.precision }}, series {{ $labels.series }}, baseline:"
                " {{ $labels.baseline }}) is {{ $value | humanizePercentage }}: its whole interval lies below the"
                f" accepted level, or below the median of {NIGHTS} nights by more than their noise."
            ),
            runbook="docs/runbooks/scaling-efficiency.md",
        ),
    ),
)
