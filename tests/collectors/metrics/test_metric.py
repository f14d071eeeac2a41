"""A metric takes its unit and labels from its series, and gives samples with exactly its own labels."""

import pytest

from collectors.metrics.metric import NODE, RANK, RUN, Metric, Sample, metrics_in

PHASE = Metric(
    name="observatory_phase_seconds", kind="gauge", unit="seconds", scope="rank", help="Time.", labels=("phase",)
)


def test_at_gives_a_sample_with_its_labels() -> None:
    assert PHASE.at(0.5, phase="data") == Sample("observatory_phase_seconds", 0.5, {"phase": "data"})


def test_a_missing_label_is_refused_with_its_name() -> None:
    with pytest.raises(ValueError, match=r"observatory_phase_seconds: labels missing: phase; its labels are: phase"):
        PHASE.at(0.5)


def test_an_unknown_label_is_refused_with_its_name() -> None:
    with pytest.raises(ValueError, match=r"unknown: rank"):
        PHASE.at(0.5, phase="data", rank="0")


def test_a_series_names_its_labels_as_promql_does() -> None:
    clock = NODE.gauge("observatory_gpu_clock_hertz{gpu, clock}", "A clock.")
    assert (clock.name, clock.labels, clock.scope) == ("observatory_gpu_clock_hertz", ("gpu", "clock"), "node")


@pytest.mark.parametrize(
    ("metric", "unit"),
    [
        (RANK.gauge("observatory_step_seconds", "Time."), "seconds"),
        (RANK.counter("observatory_tokens_total", "Tokens."), "tokens"),
        (RUN.gauge("observatory_run_tokens_per_second", "Rate."), "per_second"),
        (RUN.gauge("observatory_run_link_bytes_per_second{collective}", "Rate."), "bytes_per_second"),
        (NODE.gauge("observatory_gpu_event_timestamp_seconds{gpu}", "When."), "timestamp_seconds"),
        (NODE.info("observatory_gpu_info{gpu}", "A GPU."), "info"),
        (NODE.counter("observatory_gpu_calls_total", "Calls.", unit="requests"), "requests"),
    ],
)
def test_the_unit_is_the_end_of_the_name_unless_it_is_given(metric: Metric, unit: str) -> None:
    assert metric.unit == unit


def test_a_module_lists_its_metrics_in_the_order_of_their_definition() -> None:
    step, loss = RANK.gauge("observatory_step_seconds", "Time."), RANK.gauge("observatory_loss_nats", "Loss.")
    assert metrics_in({"__name__": "rank", "STEP": step, "LOSS": loss}) == (step, loss)
