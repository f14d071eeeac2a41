"""A histogram's buckets read in both texts as Prometheus's own library reads them."""

from __future__ import annotations

import math

import pytest
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from collectors.metrics.metric import NODE, Sample
from collectors.prometheus.exposition import BOUNDS_S, Exemplar, Exporter, Histogram, Observations, Owned, histogram_of

TIME = NODE.histogram("x_time_seconds{slot}", 'A "time".')
LONELY = NODE.histogram("x_wait_seconds", "A time without labels.")
GAUGE = NODE.gauge("x_other_seconds{slot}", "A time.")
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
VALUES = (0.0, 0.0005, 0.25, 0.3, 0.31, 500.0)
EXEMPLAR = Exemplar(labels={"run": "a-\u00e4", "step": "7"}, value=0.3, time_ns=1_700_000_000_125_000_000)


def _time(slot: str = 'a"b\\') -> Histogram:
    observations = Observations()
    buckets = {value: observations.observe(value) for value in VALUES}
    return histogram_of(TIME, [observations], exemplars={buckets[EXEMPLAR.value]: EXEMPLAR}, slot=slot)


def _family(accept: str, *given: Owned) -> Family:
    exporter = Exporter([TIME, LONELY, GAUGE], [lambda: given], on_notice=pytest.fail)
    encode, _ = choose_encoder(accept)
    parse = parse_openmetrics if accept else parse_text
    (family,) = parse(encode(exporter).decode())
    assert isinstance(family, Family)
    return family


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_buckets_count_and_sum_are_the_histograms(accept: str) -> None:
    family = _family(accept, (_time(), {}))
    assert (family.name, family.type, family.documentation) == ("x_time_seconds", "histogram", 'A "time".')
    assert all(sample.labels["slot"] == 'a"b\\' for sample in family.samples)
    counts = {float(sample.labels["le"]): sample.value for sample in family.samples if "le" in sample.labels}
    assert counts == {bound: sum(value <= bound for value in VALUES) for bound in (*BOUNDS_S, math.inf)}
    others = {sample.name: sample.value for sample in family.samples if "le" not in sample.labels}
    assert others == {"x_time_seconds_count": len(VALUES), "x_time_seconds_sum": sum(VALUES)}


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_a_histogram_without_labels_has_its_bounds_alone(accept: str) -> None:
    family = _family(accept, (histogram_of(LONELY, []), {}))
    assert {tuple(sample.labels) for sample in family.samples} == {("le",), ()}
    assert {sample.value for sample in family.samples} == {0}


def test_openmetrics_has_the_exemplar_at_its_bucket_alone() -> None:
    shown = [sample for sample in _family(OPENMETRICS, (_time(), {})).samples if sample.exemplar is not None]
    (bucket,) = shown
    assert bucket.labels["le"] == "0.3535533905932738"
    assert bucket.exemplar is not None
    assert bucket.exemplar.labels == EXEMPLAR.labels
    assert (bucket.exemplar.value, float(bucket.exemplar.timestamp or 0)) == (0.3, 1_700_000_000.125)


def test_of_two_slots_each_has_its_own_buckets() -> None:
    family = _family("", (_time("0"), {}), (_time("1"), {}), (_time("1"), {}))
    assert len(family.samples) == 2 * (len(BOUNDS_S) + 3)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (Sample("x_time_seconds", 1.0, {"slot": "0"}), "metric x_time_seconds is a histogram and was given as a value"),
        (
            Histogram("x_other_seconds", 1, {"slot": "0"}, total=1.0, counts=[1], exemplars={}),
            "metric x_other_seconds is a gauge and was given as a histogram: left out",
        ),
    ],
)
def test_a_value_for_a_histogram_and_the_reverse_are_left_out_and_said(bad: Sample, said: str) -> None:
    notices: list[str] = []
    exporter = Exporter([TIME, GAUGE], [lambda: [(bad, {})]], on_notice=notices.append)
    assert list(exporter.collect()) == []
    assert [notice.startswith(said) for notice in notices] == [True]
