"""The types of a metric's definition and of one value of it. Knows neither who measures nor who shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

Kind = Literal["gauge", "counter", "info"]
Scope = Literal["rank", "node", "run"]


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
    """

    name: str
    kind: Kind
    unit: str
    scope: Scope
    help: str
    labels: tuple[str, ...] = ()

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
