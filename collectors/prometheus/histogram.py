"""Histograms: how many values fell into buckets that widen by a factor, and which observation came last in each.

One count serves both kinds of buckets that Prometheus has. Native buckets are those of schema 3: their upper bounds
are the powers of 2 ** (1 / 8), so that a quantile is known within 9 %. A classic bucket is four of them, 41 % wide: 35
upper bounds go from 0.98 ms to 128 s, every other one a power of 2, and the two kinds agree at each.

Knows no run and no text. Source: Prometheus, Native Histograms (specification 1.0), standard exponential schemas.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from collectors.metrics.metric import Metric, Sample

SCHEMA = 3
ZERO_THRESHOLD = 2.0**-128
"""The largest value of the zero bucket, which a power of 2 ** (1 / 8) cannot hold; that of Prometheus' own clients."""
_PER_OCTAVE = 1 << SCHEMA
_PER_CLASSIC = 4
_LOWEST, _HIGHEST = -10 * _PER_OCTAVE, 7 * _PER_OCTAVE
"""Native buckets whose upper bounds, 2 ** -10 and 2 ** 7, are those of the first and the last classic bucket."""
_FRACTIONS = tuple(2.0 ** (place / _PER_OCTAVE - 1) for place in range(_PER_OCTAVE))


def native_bucket(value: float) -> int:
    """Return the number of the native bucket of a value above the zero threshold: bucket n ends at 2 ** (n / 8).

    The upper bound belongs to the bucket: 1 is in bucket 0, 1.05 in bucket 1, 2 in bucket 8.
    """
    fraction, exponent = math.frexp(value)  # Exact, as no logarithm is: value = fraction * 2 ** exponent.
    return bisect_left(_FRACTIONS, fraction) + (exponent - 1) * _PER_OCTAVE


def upper_bound(bucket: int) -> float:
    """Return the largest value of a native bucket."""
    exponent, place = divmod(bucket, _PER_OCTAVE)
    return math.ldexp(_FRACTIONS[place], exponent + 1)


CLASSIC_BOUNDS = tuple(upper_bound(bucket) for bucket in range(_LOWEST, _HIGHEST + 1, _PER_CLASSIC))
"""Upper bounds of the classic buckets; one more, without a bound, follows them."""


def classic_bucket(native: int) -> int:
    """Return the place in CLASSIC_BOUNDS of the classic bucket that holds a native one; their number for the last."""
    return min(max(-((_LOWEST - native) // _PER_CLASSIC), 0), len(CLASSIC_BOUNDS))


class Exemplar(msgspec.Struct, frozen=True, kw_only=True):
    """One observation, with labels that tell which one it was and the Unix time at which it was made."""

    labels: Mapping[str, str]
    value: float
    time_ns: int


class Histogram(Sample, frozen=True, kw_only=True):
    """All observations of one series of a histogram so far; as a sample of any other kind, its value is their number.

    total: sum of the observed values. zeros: those in the zero bucket. buckets: how many are in each native bucket, by
    its number, in rising order. exemplars: by classic bucket.
    """

    total: float
    zeros: int
    buckets: dict[int, int]
    exemplars: dict[int, Exemplar]

    def classic_counts(self) -> list[int]:
        """Return how many values are at most each of CLASSIC_BOUNDS, and at last how many there are."""
        counts = [0] * (len(CLASSIC_BOUNDS) + 1)
        counts[0] = self.zeros
        for native, number in self.buckets.items():
            counts[classic_bucket(native)] += number
        for place in range(1, len(counts)):
            counts[place] += counts[place - 1]
        return counts


@dataclass(slots=True)
class Observations:
    """Counts observations."""

    total: float = 0.0
    zeros: int = 0
    buckets: Counter[int] = field(default_factory=Counter)

    def observe(self, value: float, times: int = 1) -> int:
        """Count a value, which came so many times; return its classic bucket.

        Raises:
            ValueError: the value is negative or not finite, as no duration is.
        """
        if not 0 <= value < math.inf:
            raise ValueError(f"{value} is no duration")
        self.total += times * value
        if value <= ZERO_THRESHOLD:
            self.zeros += times
            return 0
        native = native_bucket(value)
        self.buckets[native] += times
        return classic_bucket(native)


def histogram_of(
    metric: Metric, parts: Iterable[Observations], *, exemplars: Mapping[int, Exemplar] | None = None, **labels: str
) -> Histogram:
    """Return one series of a metric, from all observations of the parts. exemplars: by classic bucket.

    Raises:
        ValueError: a label is missing or unknown.
    """
    total, zeros, buckets = 0.0, 0, Counter[int]()
    for part in parts:
        total += part.total
        zeros += part.zeros
        buckets.update(part.buckets)
    return Histogram(
        metric=metric.name,
        value=zeros + buckets.total(),
        labels=metric.at(0, **labels).labels,
        total=total,
        zeros=zeros,
        buckets=dict(sorted(buckets.items())),
        exemplars=dict(exemplars or {}),
    )
