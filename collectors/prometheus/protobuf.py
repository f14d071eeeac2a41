"""Samples as Prometheus' protobuf messages, the one format of 2.42 that has native histograms.

Written here because `protobuf` makes an object of each sample and each label at each scrape, which takes twice as long
as the whole scrape does here, where of a series that is kept only the eight bytes of its value are written anew.
Source: client_model 0.6, io/prometheus/client/metrics.proto, whose field numbers stand here; protobuf's encoding.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from collectors.metrics.metric import Metric
from collectors.prometheus.histogram import CLASSIC_BOUNDS, SCHEMA, ZERO_THRESHOLD, Exemplar, Histogram

CONTENT_TYPE = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"

_TYPES = {"counter": 0, "gauge": 1, "info": 1, "histogram": 4}
"""MetricType; an info is a gauge here, as in plain text."""
_VALUE_FIELDS = {"gauge": 2, "info": 2, "counter": 3}
"""The field of a Metric that holds its Gauge or Counter."""

_double = struct.Struct("<d").pack


def family(metric: Metric, samples: Iterable[bytes]) -> bytes:
    """Return a MetricFamily with its length before it, as in a stream. samples: from the functions below."""
    kind = _varint(3, _TYPES[metric.kind])
    head = _bytes(1, metric.name.encode()) + _bytes(2, metric.help.encode()) + kind
    body = head + b"".join(samples)
    return _number(len(body)) + body


def series(metric: Metric, labels: Mapping[str, str]) -> bytes:
    """Return what stands before the value of a sample; of a histogram its labels."""
    listed = _labels(labels)
    if metric.kind == "histogram":
        return listed
    value_bytes = 9  # The tag of Gauge.value or Counter.value, and a double.
    before = listed + _tag(_VALUE_FIELDS[metric.kind], 2) + _number(value_bytes) + _tag(1, 1)
    return _tag(4, 2) + _number(len(before) + value_bytes - 1) + before


def sample(series_bytes: bytes, value: float) -> bytes:
    """Return a sample of a gauge, an info or a counter, as a field of its family."""
    return series_bytes + _double(value)


def histogram(series_bytes: bytes, of: Histogram) -> bytes:
    """Return a histogram with classic and native buckets, as a field of its family.

    All exemplars stand in a field of their own, in the order of their times, where newer versions of Prometheus look.
    2.42 takes the first that a classic bucket has, and others all of these, and refuses what is older than the last
    (prometheus issue 12971): only the highest bucket that has one shows it, since but a newer one can follow it.
    """
    return _bytes(4, series_bytes + _bytes(7, b"".join(_histogram(of))))


def _histogram(of: Histogram) -> Iterator[bytes]:
    yield _varint(1, int(of.value))
    yield _field_double(2, of.total)
    highest = max(of.exemplars, default=None)
    for place, (bound, count) in enumerate(zip((*CLASSIC_BOUNDS, math.inf), of.classic_counts(), strict=True)):
        shown = _bytes(3, _exemplar(of.exemplars[place])) if place == highest else b""
        yield _bytes(3, _varint(1, count) + _field_double(2, bound) + shown)
    yield _varint(5, _zigzag(SCHEMA))
    yield _field_double(6, ZERO_THRESHOLD)
    yield _varint(7, of.zeros)
    for offset, length in _spans(of.buckets):
        yield _bytes(12, _varint(1, _zigzag(offset)) + _varint(2, length))
    before = 0
    for count in of.buckets.values():
        yield _varint(13, _zigzag(count - before))
        before = count
    for one in sorted(of.exemplars.values(), key=lambda one: one.time_ns):
        yield _bytes(16, _exemplar(one))


def _spans(buckets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield runs of consecutive buckets: how far each begins after the end of the one before, and how many it has.

    Buckets are numbered from 0 there as here, so [3, 4, 8] has the spans (3, 2) and (3, 1).
    """
    end = 0
    # Of consecutive buckets each is as much more than its place in the list.
    for _, run in groupby(enumerate(buckets), key=lambda found: found[1] - found[0]):
        first, *others = (bucket for _, bucket in run)
        yield first - end, 1 + len(others)
        end = first + 1 + len(others)


def _exemplar(one: Exemplar) -> bytes:
    seconds, rest = divmod(one.time_ns, 1_000_000_000)
    return _labels(one.labels) + _field_double(2, one.value) + _bytes(3, _varint(1, seconds) + _varint(2, rest))


def _labels(labels: Mapping[str, str]) -> bytes:
    pairs = (_bytes(1, name.encode()) + _bytes(2, value.encode()) for name, value in sorted(labels.items()))
    return b"".join(_bytes(1, pair) for pair in pairs)


# Protobuf's encoding: a field is its number and wire type, then a number, eight bytes, or a length and that many bytes.


def _tag(field: int, wire_type: int) -> bytes:
    return _number(field << 3 | wire_type)


def _varint(field: int, number: int) -> bytes:
    return _tag(field, 0) + _number(number)


def _field_double(field: int, number: float) -> bytes:
    return _tag(field, 1) + _double(number)


def _bytes(field: int, content: bytes) -> bytes:
    return _tag(field, 2) + _number(len(content)) + content


def _zigzag(number: int) -> int:
    """Return a signed number as an unsigned one: 0, -1, 1, -2 are 0, 1, 2, 3."""
    return number << 1 if number >= 0 else (-number << 1) - 1


def _number(number: int) -> bytes:
    """Return seven bits a byte, the lowest first; the top bit says that more follow."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
