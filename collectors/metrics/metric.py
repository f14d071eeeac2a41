"""The types of a metric's definition and of one value of it. Knows neither who measures nor who shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

Kind = Literal["gauge", "counter", "info"]
Scope = Literal["rank", "node", "run"]
Better = Literal["lower", "higher"]


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One value of a metric; the record that holds it says when and where it was taken."""

    metric: str
    value: float
    labels: dict[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """The definition of one thing that is measured.

    unit: base unit in words ("seconds", "bytes", "ratio"); the name ends in it, or in unit_total for a counter.
    scope: the owner of a value (a rank, a node or a run); the exporter adds the owner's labels.
    labels: the metric's own labels, without its owner's.
    help: the definition, in one sentence: what is counted, over what.
    better: the direction that is an improvement; None where neither is, as of a setting or a part of a whole.
    """

    name: str
    kind: Kind
    unit: str
    scope: Scope
    help: str
    labels: tuple[str, ...] = ()
    better: Better | None = None

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


_UNITS_OF_SEVERAL_WORDS = ("bytes_per_second", "per_second", "timestamp_seconds")


@dataclass(frozen=True, slots=True)
class Owner:
    """Whom values belong to, with a method to define a metric of each kind.

    series: name and labels as PromQL writes them: "observatory_gpu_clock_hertz{gpu, clock}".
    unit: given only where it is not the end of the name.
    """

    scope: Scope

    def gauge(
        self,
        series: str,
        help: str,  # noqa: A002
        *,
        unit: str | None = None,
        better: Better | None = None,
    ) -> Metric:
        """Define a value that rises and falls."""
        return self._define("gauge", series, help, unit, better)

    def counter(self, series: str, help: str, *, unit: str | None = None) -> Metric:  # noqa: A002
        """Define a sum that only grows."""
        return self._define("counter", series, help, unit)

    def info(self, series: str, help: str) -> Metric:  # noqa: A002
        """Define a series that is always 1, whose labels tell something."""
        return self._define("info", series, help, None)

    def _define(
        self, kind: Kind, series: str, description: str, unit: str | None, better: Better | None = None
    ) -> Metric:
        name, _, labels = series.removesuffix("}").partition("{")
        words = name.removesuffix("_total")
        ending = next((ending for ending in _UNITS_OF_SEVERAL_WORDS if words.endswith(f"_{ending}")), None)
        return Metric(
            name=name,
            kind=kind,
            unit=unit or ending or words.rpartition("_")[2],
            scope=self.scope,
            help=description,
            labels=tuple(labels.split(", ")) if labels else (),
            better=better,
        )


RANK, NODE, RUN = Owner("rank"), Owner("node"), Owner("run")


def metrics_in(module: Mapping[str, object]) -> tuple[Metric, ...]:
    """Return the metrics that a module defines, in order. module: its `globals()`."""
    return tuple(value for value in module.values() if isinstance(value, Metric))
