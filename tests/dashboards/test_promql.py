"""PromQL is made from Metrics, and a wrong label or kind is refused while it is made."""

import pytest

from collectors.metrics.agent import RUN_LAST_COMPLETION
from collectors.metrics.metric import Metric
from collectors.metrics.rank import LIVE_TENSOR_BYTES, STEP_SECONDS, TOKENS
from collectors.metrics.results import RUN_MFU
from collectors.prometheus import exposition
from dashboards import promql

RATIO = Metric(name="x_ratio", kind="gauge", unit="ratio", scope="run", labels=("scaling",), help="A thing.")


def test_a_variable_matches_its_choices_and_a_text_itself() -> None:
    assert promql.select(RATIO, series="$series", scaling="weak") == 'x_ratio{series=~"$series",scaling="weak"}'


def test_a_value_may_hold_a_quote_and_a_backslash() -> None:
    assert promql.select(RATIO, scaling='a"\\') == 'x_ratio{scaling="a\\"\\\\"}'


def test_a_label_may_be_one_of_several_or_none_of_them() -> None:
    assert promql.select(RATIO, scaling=promql.one_of("weak", "a.b")) == 'x_ratio{scaling=~"weak|a\\\\.b"}'
    assert promql.select(RATIO, scaling=promql.none_of("weak")) == 'x_ratio{scaling!~"weak"}'


def test_an_unknown_label_is_refused_with_those_there_are() -> None:
    with pytest.raises(
        ValueError, match=r"^observatory_step_seconds has no label bound; its labels are: rank, slot, job"
    ):
        promql.select(STEP_SECONDS, bound="low")


def test_only_a_counter_has_a_rate() -> None:
    with pytest.raises(ValueError, match="is a gauge; only a counter has a rate"):
        promql.rate(STEP_SECONDS)
    with pytest.raises(ValueError, match="is a gauge; only a counter has a rate"):
        promql.has_grown(STEP_SECONDS, over_minutes=5)
    assert promql.rate(TOKENS, slot="0") == f'rate({TOKENS.name}{{slot="0"}}[$__rate_interval])'
    assert promql.rate(TOKENS, 10) == f"rate({TOKENS.name}[10m])"


def test_a_legend_tells_apart_what_the_labels_tell_apart() -> None:
    assert promql.legend(LIVE_TENSOR_BYTES) == "slot {{slot}} rank {{rank}} category {{category}}"
    assert promql.legend(RUN_MFU) == "{{strategy}} on {{ranks}} ranks ({{series}})"


def test_the_labels_of_owners_are_those_that_the_exporter_adds() -> None:
    assert {scope: frozenset(labels) for scope, labels in promql.OWNER_LABELS.items()} == exposition.OWNER_LABELS


def test_an_age_is_compared_in_seconds() -> None:
    assert promql.age_below(RUN_LAST_COMPLETION, 2) == f"time() - {RUN_LAST_COMPLETION.name} < 7200"
