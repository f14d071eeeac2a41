"""Our lines are those of Prometheus's own client library, byte by byte."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from collectors.metrics.metric import Metric
from collectors.metrics.registry import SHOWN
from collectors.prometheus.exposition import END, choose_format, head, line, series

GAUGE = Metric(name="x_step_seconds", kind="gauge", unit="seconds", scope="rank", help='A "step",\n\\ or two.')
COUNTER = Metric(name="x_sent_bytes_total", kind="counter", unit="bytes", scope="node", help="Bytes.")
INFO = Metric(name="x_gpu_info", kind="info", unit="info", scope="node", help="A GPU.")
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
ACCEPTS = ["", "text/plain", "text/plain;version=1.0.0", OPENMETRICS, PROMETHEUS_3]


@dataclass(frozen=True)
class Reference(Collector):
    """One metric with one sample, for the client library."""

    metric: Metric
    labels: dict[str, str]
    value: float

    def collect(self) -> Iterator[Family]:
        metric = self.metric
        suffix = {"counter": "_total", "info": "_info"}.get(metric.kind, "")
        name = metric.name.removesuffix(suffix)
        unit = metric.unit if metric.kind != "info" and name.endswith(f"_{metric.unit}") else ""
        family = Family(name, metric.help, metric.kind, unit)
        family.add_sample(metric.name, self.labels, self.value)
        yield family


def _ours(metric: Metric, labels: dict[str, str], value: float, accept: str) -> bytes:
    form, _ = choose_format(accept)
    return f"{head(metric, form)}{line(series(metric.name, labels), value)}{END[form]}".encode()


@pytest.mark.parametrize("accept", ACCEPTS)
@given(
    metric=st.sampled_from((GAUGE, COUNTER, INFO)),
    labels=st.dictionaries(st.sampled_from(("gpu", "rank", "a")), st.text(max_size=9)),
    value=st.floats(),
)
def test_a_sample_reads_as_the_library_writes_it(
    metric: Metric, labels: dict[str, str], value: float, accept: str
) -> None:
    encode, content_type = choose_encoder(accept)
    assert _ours(metric, labels, value, accept) == encode(Reference(metric, labels, value))
    assert choose_format(accept)[1] == content_type


@pytest.mark.parametrize("metric", SHOWN, ids=lambda metric: metric.name)
def test_each_metric_of_the_catalogue_stands_under_the_librarys_lines(metric: Metric) -> None:
    for accept in ("", OPENMETRICS):
        encode, _ = choose_encoder(accept)
        assert _ours(metric, {}, 1.0, accept) == encode(Reference(metric, {}, 1.0))


def test_who_asks_for_escaped_underscores_gets_names_as_they_are() -> None:
    form, content_type = choose_format(f"{OPENMETRICS}; escaping=dots")
    assert (form, content_type) == ("text", "text/plain; version=0.0.4; charset=utf-8")


def test_a_series_is_the_same_in_whichever_order_its_labels_come() -> None:
    assert series("x", {"b": "1", "a": "2"}) == series("x", {"a": "2", "b": "1"}) == 'x{a="2",b="1"}'
