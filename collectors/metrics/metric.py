"""Types for the definition of a metric and for one of its values. Knows neither what measures nor what exports them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import msgspec

MetricKind = Literal["gauge", "counter", "info", "histogram"]
Scope = Literal["rank", "node", "run"]
Better = Literal["lower", "higher"]
Statistic = Literal["median", "low", "high"]
"""Exported statistics of a run's figure: the median over trials, and the ends of the 95 % interval if there is one."""
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
"""Exported quantiles, by their word in names, of a figure that many ranks or pairs of ranks have."""
OVER_RANKS: dict[MetricKind, tuple[str, ...]] = {
    "gauge": ("min", *QUANTILES, "max", "mean", "sum"),
    "counter": ("min", "max", "sum"),
}
"""Exported statistics over the live values of a run's ranks if there are many, by kind of metric, as words in names."""


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """A value of a metric; the record that contains it has its time and place."""

    metric: str
    value: float
    labels: dict[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSplit:
    """A label with values that must not be summed; at /metrics, each of these is a separate metric.

    has_others: whether the label also has other values, which can be summed and so keep it.
    """

    label: str
    values: tuple[str, ...]
    has_others: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """The definition of a measured quantity.

    unit: base unit in words ("seconds", "bytes", "ratio"); the name ends in it, or in unit_total for a counter.
    scope: the owner of a value (a rank, a node or a run); the exporter adds the owner's labels.
    labels: the metric's own labels, without its owner's. splits: the labels with values that must not be summed.
    help: the definition, in one sentence: what is counted, over what.
    better: the direction that is an improvement; None if neither is, for example for a setting.
    of_each: the label that names a rank or a pair of ranks of a run, with perhaps thousands of values; None if there is
    no such label.
    is_aggregated: whether an active run of many ranks also has statistics of it over all ranks.
    """

    name: str
    kind: MetricKind
    unit: str
    scope: Scope
    help: str
    labels: tuple[str, ...] = ()
    better: Better | None = None
    of_each: str | None = None
    splits: tuple[LabelSplit, ...] = ()
    is_aggregated: bool = False

    def at(self, value: float, **labels: str) -> Sample:
        """Return a sample of this metric.

        Raises:
            ValueError: a label is missing or unknown.
        """
        if set(labels) != set(self.labels):
            missing = sorted(set(self.labels) - set(labels))
            unknown = sorted(set(labels) - set(self.labels))
            parts = [f"missing: {', '.join(missing)}"] if missing else []
            parts += [f"unknown: {', '.join(unknown)}"] if unknown else []
            allowed = ", ".join(self.labels) or "none"
            raise ValueError(f"{self.name}: labels {'; '.join(parts)}; its labels are: {allowed}")
        return Sample(self.name, value, labels)

    def statistic(self, which: Statistic) -> Metric:
        """Return the metric for a statistic of a run's figure; the name has the statistic before its unit.

        observatory_run_step_seconds: observatory_run_step_median_seconds;
        observatory_run_tokens_per_second: observatory_run_median_tokens_per_second.
        """
        assert self.scope == "run", f"{self.name} is of a {self.scope}; only a run's figures have statistics"
        ends = {"low": "Lower", "high": "Upper"}
        description = (
            self.help if which == "median" else f"{ends[which]} end of the 95 % interval of {self._named('median')}."
        )
        return replace(self, name=self._named(which), help=description)

    def quantile(self, word: str) -> Metric:
        """Return the metric for a quantile of the medians, over the ranks or pairs of a large run.

        observatory_run_last_ratio, of each rank: observatory_run_last_rank_p90_ratio.
        """
        assert self.of_each is not None, f"{self.name} is of no rank or pair"
        return replace(
            self,
            name=self._named(self.of_each, word),
            help=f"{self.help} This is the {QUANTILES[word]} quantile over each {self.of_each} of a run that has many.",
            labels=tuple(label for label in self.labels if label != self.of_each),
            of_each=None,
        )

    def over_ranks(self, word: str) -> Metric:
        """Return the metric for a statistic over all ranks of an active run that has many. word: from OVER_RANKS.

        observatory_step_seconds, word max: observatory_step_rank_max_seconds.
        """
        assert self.is_aggregated, f"{self.name} has no statistics over ranks"
        statistic = f"{QUANTILES[word]} quantile" if word in QUANTILES else word
        return replace(
            self,
            name=self._named("rank", word),
            scope="node",
            help=f"{self.help} This is the {statistic} over all ranks of an active run that has many.",
            labels=(*self.labels, "slot"),
            splits=(),
            is_aggregated=False,
        )

    def alone(self, **values: str) -> Metric:
        """Return the metric for the series with these values of split labels; its name contains the values.

        observatory_host_swap_bytes, kind total: observatory_host_swap_total_bytes.

        Raises:
            ValueError: a label is not split, or has no metric of its own for this value.
        """
        split_values = [(split, values[split.label]) for split in self.splits if split.label in values]
        if len(split_values) < len(values) or any(value not in split.values for split, value in split_values):
            raise ValueError(f"{self.name} has no metric of its own for {values}")
        if not split_values:
            return self
        words = ", ".join(f"{split.label} {value}" for split, value in split_values)
        return replace(
            self,
            name=self._named(*(value for _, value in split_values)),
            help=f"{self.help} This is {words}.",
            labels=tuple(label for label in self.labels if label not in values),
            splits=tuple(split for split in self.splits if split.label not in values),
        )

    def forms(self) -> Iterator[tuple[dict[str, str], Metric]]:
        """Yield each metric that exports series of this one, with the label values in its name; itself if unsplit."""
        forms: list[dict[str, str]] = [{}]
        for split in self.splits:
            alone = [{**form, split.label: value} for form in forms for value in split.values]
            forms = [*alone, *(forms if split.has_others else ())]
        for form in forms:
            yield form, self.alone(**form)

    def shown(self) -> tuple[Metric, ...]:
        """Return the metrics that /metrics exports for this one: all its forms, and all statistics of each form."""
        forms = [form for _, form in self.forms()]
        if self.scope != "run":
            words = OVER_RANKS[self.kind] if self.is_aggregated else ()
            return (*forms, *(form.over_ranks(word) for form in forms for word in words))
        quantiles = map(self.quantile, QUANTILES if self.of_each is not None else ())
        return (*(form.statistic(which) for form in forms for which in STATISTICS), *quantiles)

    def _named(self, *words: str) -> str:
        """Return the name with the words inserted before the unit, or before the counted thing of a rate."""
        suffix = f"_{self.unit}" + ("_total" if self.kind == "counter" else "")
        whole = self.name.removesuffix(suffix)
        if self.unit == "per_second":  # The preceding word is what the rate counts.
            whole, _, total = whole.rpartition("_")
            suffix = f"_{total}{suffix}"
        return "_".join((whole, *words)) + suffix


STATISTICS: tuple[Statistic, ...] = get_args(Statistic)


_UNITS_OF_SEVERAL_WORDS = ("bytes_per_second", "flops_per_second", "per_second", "timestamp_seconds")


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of values, with a method to define a metric of each kind.

    series: name and labels as PromQL writes them: "observatory_gpu_memory_used_bytes{gpu}". A label lists values that
    must not be summed, "kind=total|used"; "part=total|..." also allows others, which can be summed.
    unit: given only if the name does not end in it.
    is_aggregated: see `Metric`.
    """

    scope: Scope
    is_aggregated: bool = False

    def gauge(
        self,
        series: str,
        help: str,  # noqa: A002
        *,
        unit: str | None = None,
        better: Better | None = None,
        of_each: str | None = None,
    ) -> Metric:
        """Define a value that rises and falls."""
        return replace(self._define("gauge", series, help, unit, better), of_each=of_each)

    def counter(self, series: str, help: str, *, unit: str | None = None) -> Metric:  # noqa: A002
        """Define a sum that only grows."""
        return self._define("counter", series, help, unit)

    def histogram(self, series: str, help: str) -> Metric:  # noqa: A002
        """Define counts of values in buckets; the samples are `Histogram`s of `collectors.prometheus.exposition`."""
        return self._define("histogram", series, help, None)

    def info(self, series: str, help: str) -> Metric:  # noqa: A002
        """Define a series that is always 1 and carries information in its labels."""
        return self._define("info", series, help, None)

    def _define(
        self, kind: MetricKind, series: str, description: str, unit: str | None, better: Better | None = None
    ) -> Metric:
        name, _, listed = series.removesuffix("}").partition("{")
        labels = [label.partition("=") for label in listed.split(", ")] if listed else []
        words = name.removesuffix("_total")
        ending = next((ending for ending in _UNITS_OF_SEVERAL_WORDS if words.endswith(f"_{ending}")), None)
        return Metric(
            name=name,
            kind=kind,
            unit=unit or ending or words.rpartition("_")[2],
            scope=self.scope,
            help=description,
            labels=tuple(label for label, _, _ in labels),
            splits=tuple(_split(label, values.split("|")) for label, _, values in labels if values),
            better=better,
            is_aggregated=self.is_aggregated,
        )


def _split(label: str, values: list[str]) -> LabelSplit:
    has_others = values[-1] == "..."
    return LabelSplit(label=label, values=tuple(values[:-1] if has_others else values), has_others=has_others)


RANK, NODE, RUN = Owner("rank"), Owner("node"), Owner("run")
EACH_RANK = Owner("rank", is_aggregated=True)
"""A rank whose values are compared with or added to those of its run's other ranks."""


def metrics_in(module: Mapping[str, object]) -> tuple[Metric, ...]:
    """Return the metrics that a module defines, in order. module: its `globals()`."""
    return tuple(value for value in module.values() if isinstance(value, Metric))
