"""Alerts on runs: those that go on and are slow, wait, are uneven or stand still, and those that have failed.

A run that goes on is told by its id, and its ranks' series by the slot that the run has had for the whole window: what
another run did in the same slot before does not count. All that is told of a run ends with it, and several exporters
of one folder are one alert.
"""

from __future__ import annotations

from collectors.metrics import agent, rank, results
from collectors.metrics.metric import Metric
from dashboards import promql
from dashboards.model import Alert, Group
from dashboards.promql import RUN
from dashboards.thresholds import Live, Thresholds

_SERIES = ("series",)
_FAILED = ("failed", "timed_out")
"""Outcomes that somebody should hear of; who interrupts a run knows of it."""
_KEEP_MINUTES = 15
"""How long an alert on a result outlives its series: an exporter that is started again tells nothing anew."""
_WHICH = "{{ $labels.strategy }} on {{ $labels.ranks }} ranks (run {{ $labels.run }})"
_SERIES_OF_RUN = "{{ $labels.name }} (run {{ $labels.run }}, series {{ $labels.series }})"
_SHARE = "{{ $value | humanizePercentage }}"


def _mean_of_run(metric: Metric, minutes: int, **labels: str) -> str:
    """Return a gauge's mean over the last minutes and all ranks, of each run that has gone on for so long."""
    return promql.mean(promql.of_live_runs(promql.average(metric, minutes, **labels), since_minutes=minutes), by=RUN)


def _speed(minutes: int) -> str:
    """Return a run's speed as a share of the low end of the newest result of its series."""
    # Exporters of different nodes may show results of different age: the lowest accuses nobody wrongly.
    known = promql.smallest(promql.select(results.RUN_TOKENS_PER_SECOND_PER_DEVICE.statistic("low")), by=_SERIES)
    return promql.divide(_mean_of_run(rank.TOKENS_PER_SECOND, minutes), known, on=_SERIES)


def _slow(limits: Live) -> str:
    short, long = (
        promql.beneath(_speed(minutes), limits.speed_ratio) for minutes in (limits.short_minutes, limits.long_minutes)
    )
    return promql.where(short, long)


def _waits_for_input(limits: Live) -> str:
    minutes = limits.short_minutes
    share = promql.divide(
        _mean_of_run(rank.PHASE_SECONDS, minutes, phase="data"), _mean_of_run(rank.STEP_SECONDS, minutes)
    )
    return promql.above(share, limits.input_ratio)


def _computes_longer(limits: Live) -> str:
    """Return by which share a rank computes longer than the median of its run's ranks."""
    of_rank = promql.largest(
        promql.of_live_runs(promql.select(rank.COMPUTE_SECONDS), since_minutes=limits.short_minutes),
        by=(*RUN, "rank"),
    )
    of_run = promql.positive(promql.middle(of_rank, by=RUN))
    excess = promql.less_one(promql.divide(of_rank, of_run, on=RUN))
    even = promql.select(agent.RUN_INFO, strategy=promql.none_of(*limits.uneven_strategies))
    return promql.where(promql.above(excess, limits.compute_excess_ratio), even, on=("run",))


def _completed(limits: Live) -> str:
    """Return when the newest run of each series ended well, even where its exporter is gone."""
    # Otherwise an older result that another exporter still shows would be judged again in its place.
    return promql.largest(promql.past(agent.RUN_LAST_COMPLETION, over_hours=limits.fresh_hours), by=_SERIES)


def _straggles(limits: Live) -> str:
    """Return the share of the traced time for which one rank held up all others, of results that are fresh.

    Only those exporters count that show the newest run of the series.
    """
    completed = _completed(limits)
    shown_by = promql.same(promql.select(agent.RUN_LAST_COMPLETION), completed, on=_SERIES)
    share = promql.largest(
        promql.where(
            promql.select(results.RUN_STRAGGLER_RATIO.statistic("median")),
            shown_by,
            on=(*_SERIES, *promql.SCRAPE_LABELS),
        ),
        by=(*promql.OWNER_LABELS["run"], *results.RUN_STRAGGLER_RATIO.labels),
    )
    fresh = promql.younger(completed, limits.fresh_hours)
    return promql.where(promql.above(share, limits.straggler_ratio), fresh, on=_SERIES)


def _failed(limits: Live) -> str:
    """Return the age of each series' failure after which no run of it ended well, whoever shows that run."""
    labels = agent.RUN_LAST_FAILURE.labels
    failure = promql.largest(promql.select(agent.RUN_LAST_FAILURE, outcome=promql.one_of(*_FAILED)), by=labels)
    made_good = promql.below(failure, _completed(limits), on=_SERIES)
    return promql.unless(promql.younger(failure, limits.fresh_hours), made_good, on=labels)


def rules(thresholds: Thresholds) -> Group:
    """Return the alerts on runs."""
    limits = thresholds.live
    progress = promql.largest(promql.select(agent.RUN_LAST_PROGRESS), by=("run",))
    return Group(
        name="runs",
        interval_minutes=1,
        recordings=(),
        alerts=(
            Alert(
                name="RunSlow",
                expression=_slow(limits),
                hold_minutes=2,
                severity="warning",
                component="run",
                summary=f"{_WHICH} has {_SHARE} of its usual speed",
                description=(
                    f"{_WHICH} makes {_SHARE} of the tokens per second and device of the newest result of its series"
                    f" {{{{ $labels.series }}}}, low end, over {limits.short_minutes} minutes, and was below"
                    f" {limits.speed_ratio:.0%} over {limits.long_minutes} minutes, too. Look at the ranks' step times"
                    " and at what holds a GPU back; it goes on, so nothing is lost yet."
                ),
                dashboard="one-run",
            ),
            Alert(
                name="ExposedCommunicationHigh",
                expression=promql.above(
                    _mean_of_run(rank.EXPOSED_COMMUNICATION_RATIO, limits.short_minutes), limits.exposed_ratio
                ),
                hold_minutes=0,
                severity="warning",
                component="run",
                summary=f"{_WHICH} waits for communication for {_SHARE} of its steps",
                description=(
                    f"For {_SHARE} of the traced steps of {_WHICH} communication ran and nothing computed, more than"
                    f" {limits.exposed_ratio:.0%}. Look who waits for whom, and whether a link is slow; larger"
                    " microbatches or more overlap hide it."
                ),
                dashboard="who-waits-for-whom",
            ),
            Alert(
                name="InputBound",
                expression=_waits_for_input(limits),
                hold_minutes=0,
                severity="warning",
                component="run",
                summary=f"{_WHICH} waits for its batches for {_SHARE} of its steps",
                description=(
                    f"Over {limits.short_minutes} minutes the devices of {_WHICH} waited for batches for {_SHARE} of"
                    f" their steps, more than {limits.input_ratio:.0%}. Look at the host's CPUs and disks, and give the"
                    " loader more workers."
                ),
                dashboard="one-host",
            ),
            Alert(
                name="RankComputesLonger",
                expression=_computes_longer(limits),
                hold_minutes=0,
                severity="warning",
                component="run",
                summary=f"Rank {{{{ $labels.rank }}}} of {_WHICH} computes {_SHARE} longer than its peers",
                description=(
                    f"In its traced steps rank {{{{ $labels.rank }}}} of {_WHICH} computes {_SHARE} longer than the"
                    " median of the run's ranks, which all wait for it. Look at its GPU's clock, heat and errors, and"
                    " at what else runs on its node."
                ),
                dashboard="one-run",
            ),
            Alert(
                name="Straggler",
                expression=_straggles(limits),
                hold_minutes=0,
                keep_minutes=_KEEP_MINUTES,
                severity="warning",
                component="run",
                summary="Rank {{ $labels.rank }} of {{ $labels.strategy }} on {{ $labels.ranks }} ranks holds others up"
                f" for {_SHARE} of the time ({{{{ $labels.cause }}}})",
                description=(
                    "In the newest result of the series {{ $labels.series }} ({{ $labels.strategy }} on"
                    f" {{{{ $labels.ranks }}}} ranks) rank {{{{ $labels.rank }}}} holds all others up for {_SHARE} of"
                    " the"
                    " traced time, by {{ $labels.cause }}. Look at its GPU and its host; if the rank moves with the"
                    " node, it is the node."
                ),
                since_hours=limits.fresh_hours,
                dashboard="who-waits-for-whom",
            ),
            Alert(
                name="RunFailed",
                expression=_failed(limits),
                hold_minutes=0,
                keep_minutes=_KEEP_MINUTES,
                severity="warning",
                component="run",
                summary=f"{_SERIES_OF_RUN}: {{{{ $labels.outcome }}}} {{{{ $value | humanizeDuration }}}} ago",
                description=(
                    f"The newest run of {_SERIES_OF_RUN} ended as {{{{ $labels.outcome }}}}"
                    " {{ $value | humanizeDuration }} ago. `observatory show {{ $labels.run }}` says why and which rank"
                    " was first; the alert ends a quarter of an hour after a run of the series ends well."
                ),
                since_hours=limits.fresh_hours,
                dashboard="nightly",
            ),
            Alert(
                name="RunStalled",
                expression=promql.named(
                    promql.above(promql.age(progress), 60 * limits.still_minutes), agent.RUN_INFO, RUN, on=("run",)
                ),
                hold_minutes=2,
                severity="critical",
                component="run",
                summary=f"{_WHICH} stands still for {{{{ $value | humanizeDuration }}}}",
                description=(
                    f"{_WHICH} goes on, and no rank of it has ended a step for {{{{ $value | humanizeDuration }}}}."
                    " A rank hangs, or waits for one that does: `py-spy dump` on each node, and the rank that entered"
                    " fewest collectives is the one. Its trial ends at its limit."
                ),
                dashboard="one-run",
            ),
        ),
    )
