"""Metrics that this release shows by other names: each is shown by its old name, too, until the next release.

That one deletes this file, and what `bench/exporter/server.py` and `dashboards/render.py` take from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from collectors.metrics.host import HOST_FILESYSTEM_BYTES
from collectors.metrics.metric import STATISTICS, Metric, Sample
from collectors.metrics.registry import METRICS, SHOWN
from collectors.metrics.results import RUN_EXPECTED_EFFICIENCY, RUN_GPU_POWER_WATTS, RUN_TOKEN_ENERGY_JOULES


@dataclass(frozen=True, slots=True, kw_only=True)
class Successor:
    """A metric that shows what had another name.

    old_labels: what its series bore beyond the new one's labels.
    """

    metric: Metric
    old_labels: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed:
    """A metric as it was, and what shows its series now."""

    old: Metric
    successors: tuple[Successor, ...]


def _renamed(old: Metric, *successors: Successor) -> Renamed:
    names = ", ".join(one.metric.name for one in successors)
    return Renamed(
        old=replace(old, help=f"Deprecated, and gone with the next release: now {names}."), successors=successors
    )


def _figure(metric: Metric) -> Renamed:
    """Return a run's figure with its statistics as a label, over which no sum makes sense."""
    return _renamed(
        replace(metric, labels=(*metric.labels, "bound")),
        *(
            Successor(metric=form.statistic(which), old_labels={**told, "bound": which})
            for told, form in metric.forms()
            for which in STATISTICS
        ),
    )


def _split(metric: Metric) -> Renamed:
    """Return a metric with values that make no sum as a label."""
    return _renamed(metric, *(Successor(metric=form, old_labels=told) for told, form in metric.forms() if told))


NEW = (HOST_FILESYSTEM_BYTES, RUN_EXPECTED_EFFICIENCY, RUN_GPU_POWER_WATTS, RUN_TOKEN_ENERGY_JOULES)
"""New in this release, so that they have no old names."""
RENAMED: tuple[Renamed, ...] = tuple(
    _figure(metric) if metric.scope == "run" else _split(metric)
    for metric in METRICS
    if (metric.scope == "run" or metric.splits) and metric not in NEW
)
_STAY = {metric.name for metric in SHOWN}
DEPRECATED: tuple[Metric, ...] = tuple(one.old for one in RENAMED if one.old.name not in _STAY)
"""Old metrics; without those of which some series keep the name."""

_OLD = {one.metric.name: (renamed.old.name, one.old_labels) for renamed in RENAMED for one in renamed.successors}


def by_old_name(sample: Sample) -> Sample | None:
    """Return a sample that is shown by the old name that it has; None where it has none."""
    old = _OLD.get(sample.metric)
    return None if old is None else Sample(old[0], sample.value, {**sample.labels, **old[1]})
