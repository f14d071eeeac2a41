"""Histograms: how many values fell into buckets that widen by a factor, and which observation came last in each.

Of a bucket the upper bound is 41 % above the lower: 35 bounds go from 0.98 ms to 128 s, every other one a power of 2.
Knows no run and no text. Source: Prometheus, classic histograms.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

import msgspec

from collectors.metrics.metric import Metric, Sample

BOUNDS_S = tuple(math.ldexp((1.0, 2.0**0.5)[half % 2], half // 2) for half in range(-20, 15))
"""Upper bounds of the buckets: a bound belongs to its bucket. One more bucket, without a bound, follows."""


class Exemplar(msgspec.Struct, frozen=True, kw_only=True):
    """One observation, with labels that tell which one it was and the Unix time at which it was made."""

    labels: Mapping[str, str]
    value: float
    time_ns: int


class Histogram(Sample, frozen=True, kw_only=True):
    """All observations of one series of a histogram so far; as a sample of any other kind, its value is their number.

    total: sum of the observed values. counts: how many are in each bucket. exemplars: by the bucket's place.
    """

    total: float
    counts: list[int]
    exemplars: dict[int, Exemplar]

    def cumulative(self) -> list[int]:
        """Return how many values are at most each of BOUNDS_S, and at last how many there are."""
        return list(accumulate(self.counts))


@dataclass(slots=True)
class Observations:
    """Counts observations."""

    total: float = 0.0
    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))

    def observe(self, value: float, times: int = 1) -> int:
        """Count a value, which came so many times; return the place of its bucket.

        Raises:
            ValueError: the value is negative or not finite, as no duration is.
        """
        if not 0 <= value < math.inf:
            raise ValueError(f"{value} is no duration")
        self.total += times * value
        bucket = bisect_left(BOUNDS_S, value)
        self.counts[bucket] += times
        return bucket


def histogram_of(
    metric: Metric, parts: Iterable[Observations], *, exemplars: Mapping[int, Exemplar] | None = None, **labels: str
) -> Histogram:
    """Return one series of a metric, from all observations of the parts. exemplars: by the bucket's place.

    Raises:
        ValueError: a label is missing or unknown.
    """
    whole = Observations()
    for part in parts:
        whole.total += part.total
        whole.counts = [before + more for before, more in zip(whole.counts, part.counts, strict=True)]
    return Histogram(
        metric=metric.name,
        value=sum(whole.counts),
        labels=metric.at(0, **labels).labels,
        total=whole.total,
        counts=whole.counts,
        exemplars=dict(exemplars or {}),
    )
