"""Our messages are those that the package protobuf reads, and writes the same."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families as parse_text

from collectors.metrics.metric import NODE, RANK
from collectors.prometheus.exposition import Exporter, Owned, choose_format
from collectors.prometheus.histogram import (
    CLASSIC_BOUNDS,
    SCHEMA,
    ZERO_THRESHOLD,
    Exemplar,
    Histogram,
    Observations,
    histogram_of,
)
from collectors.prometheus.protobuf import CONTENT_TYPE
from tests.collectors.prometheus.client_model import families, labels_of, type_name, written

GAUGE = RANK.gauge("x_step_seconds{phase}", 'A "step",\n\\ or two.')
COUNTER = NODE.counter("x_sent_bytes_total", "Bytes.")
INFO = NODE.info("x_gpu_info{gpu}", "A GPU.")
TIME = NODE.histogram("x_time_seconds{slot}", "A time.")
METRICS = (GAUGE, COUNTER, INFO, TIME)
OWNER = {"rank": "0", "slot": "12"}
PROTOBUF = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
PROMETHEUS_2_42 = (
    f"{PROTOBUF},application/openmetrics-text;version=1.0.0;q=0.8,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


def _exporter(*given: Owned) -> Exporter:
    return Exporter(METRICS, [lambda: given], on_notice=pytest.fail)


def _families(*given: Owned) -> list[Any]:
    body, content_type = _exporter(*given).render(PROMETHEUS_2_42)
    assert content_type == CONTENT_TYPE
    found = families(body)
    assert written(found) == body, "no field is unknown, and none stands elsewhere than the package puts it"
    return found


@given(values=st.lists(st.floats(allow_nan=False), min_size=3, max_size=3), phase=st.text(max_size=200))
def test_gauges_counters_and_infos_have_the_values_and_labels_that_they_have_as_text(
    values: list[float], phase: str
) -> None:
    given_: tuple[Owned, ...] = (
        (GAUGE.at(values[0], phase=phase), OWNER),
        (COUNTER.at(values[1]), {}),
        (INFO.at(values[2], gpu="1"), {}),
    )
    gauge, counter, info = _families(*given_)
    assert [(one.name, one.help, type_name(one)) for one in (gauge, counter, info)] == [
        (GAUGE.name, GAUGE.help, "GAUGE"),
        (COUNTER.name, COUNTER.help, "COUNTER"),
        (INFO.name, INFO.help, "GAUGE"),
    ]
    assert gauge.metric[0].gauge.value == values[0]
    assert counter.metric[0].counter.value == values[1]
    assert info.metric[0].gauge.value == values[2]
    assert labels_of(gauge.metric[0]) == {"phase": phase, **OWNER}
    assert labels_of(counter.metric[0]) == {}


def test_a_series_that_is_kept_from_one_scrape_to_the_next_has_its_new_value() -> None:
    values = iter((0.25, 0.5))
    exporter = Exporter(METRICS, [lambda: [(GAUGE.at(next(values), phase="data"), OWNER)]], on_notice=pytest.fail)
    for expected in (0.25, 0.5):
        (family,) = families(exporter.render(PROTOBUF)[0])
        assert [metric.gauge.value for metric in family.metric] == [expected]


def _histogram(values: list[float], exemplars: dict[int, Exemplar] | None = None) -> Histogram:
    observations = Observations()
    for value in values:
        observations.observe(value)
    return histogram_of(TIME, [observations], exemplars=exemplars, slot="0")


@given(st.lists(st.floats(min_value=0, max_value=1e6)))
def test_a_histogram_has_the_native_buckets_that_were_counted(values: list[float]) -> None:
    histogram = _histogram(values)
    (family,) = _families((histogram, {}))
    assert type_name(family) == "HISTOGRAM"
    found = family.metric[0].histogram
    assert (found.sample_count, found.sample_sum) == (len(values), pytest.approx(math.fsum(values)))
    assert (found.schema, found.zero_threshold, found.zero_count) == (SCHEMA, ZERO_THRESHOLD, histogram.zeros)
    buckets: dict[int, int] = {}
    place, count, deltas = 0, 0, iter(found.positive_delta)
    for span in found.positive_span:
        place += span.offset
        for _ in range(span.length):
            count += next(deltas)
            buckets[place] = count
            place += 1
    assert next(deltas, None) is None
    assert buckets == histogram.buckets


def test_a_histogram_has_classic_buckets_too() -> None:
    (family,) = _families((_histogram([0.3, 0.9, 300.0]), {}))
    buckets = family.metric[0].histogram.bucket
    assert [bucket.upper_bound for bucket in buckets] == [*CLASSIC_BOUNDS, math.inf]
    counted = {bucket.upper_bound: bucket.cumulative_count for bucket in buckets}
    assert [counted[bound] for bound in (0.25, CLASSIC_BOUNDS[17], 1.0, 128.0, math.inf)] == [0, 1, 2, 2, 3]


def test_exemplars_stand_in_the_order_of_their_times_and_that_of_the_highest_bucket_there_too() -> None:
    begun_ns = 1_700_000_000_125_000_001
    exemplars = {
        place: Exemplar(labels={"run": "a", "step": step}, value=value, time_ns=begun_ns + int(step))
        for place, step, value in ((17, "8", 0.3), (20, "7", 0.9))
    }
    (family,) = _families((_histogram([0.3, 0.9], exemplars), {}))
    found = family.metric[0].histogram
    assert [labels_of(one)["step"] for one in found.exemplars] == ["7", "8"]
    ((bound, shown),) = ((one.upper_bound, one.exemplar) for one in found.bucket if one.HasField("exemplar"))
    assert (bound, shown) == (1.0, found.exemplars[0])
    assert (labels_of(shown), shown.value) == ({"run": "a", "step": "7"}, 0.9)
    assert (shown.timestamp.seconds, shown.timestamp.nanos) == (1_700_000_000, 125_000_008)


def test_spans_begin_anew_after_each_gap() -> None:
    # Buckets 0, 1, 3 (1, 1.09, 1.28 s), and one below 1.
    (family,) = _families((_histogram([0.5, 1.0, 1.09, 1.28]), {}))
    spans = family.metric[0].histogram.positive_span
    assert [(span.offset, span.length) for span in spans] == [(-8, 1), (7, 2), (1, 1)]


def test_a_label_of_any_length_stands_whole() -> None:
    for length in (0, 1, 127, 128, 16_383, 16_384, 100_000):
        (family,) = _families((GAUGE.at(1.0, phase="x" * length), OWNER))
        assert labels_of(family.metric[0])["phase"] == "x" * length


def test_each_format_shows_the_same_series_of_the_same_page() -> None:
    exporter = _exporter((GAUGE.at(0.5, phase="data"), OWNER), (_histogram([0.3]), {}))
    messages, text = families(exporter.render(PROTOBUF)[0]), exporter.render("")[0].decode()
    parsed = {family.name: family for family in parse_text(text)}
    assert [family.name for family in messages] == list(parsed) == [GAUGE.name, TIME.name]
    assert labels_of(messages[0].metric[0]) == parsed[GAUGE.name].samples[0].labels
    assert exporter.render(PROTOBUF)[0] == written(messages)


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        (PROMETHEUS_2_42, "protobuf"),
        (f"{PROTOBUF}; escaping=allow-utf-8", "protobuf"),
        (f"text/plain;q=0.5, {PROTOBUF};q=0.6", "protobuf"),
        (f"text/plain;q=0.6, {PROTOBUF};q=0.5", "text"),
        (f"{PROTOBUF};q=0.2, application/openmetrics-text;version=1.0.0;q=0.9", "openmetrics"),
        ("text/plain;q=0.9, application/openmetrics-text;version=1.0.0;q=0.3", "text"),
        (f"{PROTOBUF};q=0, text/plain;q=0.1", "text"),
        (f"{PROTOBUF};q=nonsense", "text"),
        (PROTOBUF.replace("delimited", "text"), "text"),
        (PROTOBUF.replace("MetricFamily", "Other"), "text"),
        ("application/vnd.google.protobuf", "text"),
        ("text/html, */*;q=0.1", "text"),
    ],
)
def test_the_format_is_the_one_with_the_highest_quality_of_those_there_are(accept: str, form: str) -> None:
    assert choose_format(accept)[0] == form
