"""A metric takes its unit and labels from its series, and gives samples with exactly its own labels."""

import pytest

from collectors.metrics.metric import NODE, QUANTILES, RANK, RUN, Metric, Sample, metrics_in

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


@pytest.mark.parametrize(
    ("series", "median"),
    [
        ("observatory_run_step_seconds", "observatory_run_step_median_seconds"),
        ("observatory_run_link_bytes_per_second{collective}", "observatory_run_link_median_bytes_per_second"),
        ("observatory_run_device_tokens_per_second", "observatory_run_device_median_tokens_per_second"),
    ],
)
def test_a_statistic_stands_before_what_is_counted_and_its_unit(series: str, median: str) -> None:
    assert RUN.gauge(series, "A figure.").statistic("median").name == median


def test_the_end_of_an_interval_says_whose_it_is() -> None:
    figure = RUN.gauge("observatory_run_stage_seconds{stage}", "Time of a stage.", better="lower")
    assert figure.statistic("median").help == figure.help
    low = figure.statistic("low")
    assert low.help == "Lower end of the 95 % interval of observatory_run_stage_median_seconds."
    assert (low.labels, low.unit, low.scope) == (("stage",), "seconds", "run")


def test_only_a_runs_figure_has_statistics() -> None:
    with pytest.raises(AssertionError, match="observatory_phase_seconds is of a rank"):
        PHASE.statistic("median")


SWAP = NODE.gauge("observatory_host_swap_bytes{kind=total|used}", "Swap space.")
PARTS = RANK.gauge("observatory_memory_peak_bytes{category=total|..., rank}", "Bytes at the peak.")
STALLED = NODE.counter("observatory_pressure_seconds_total{resource, stalled=some|full}", "Time of waiting.")


def test_a_value_that_makes_no_sum_is_a_metric_of_its_own_with_the_value_in_its_name() -> None:
    used = SWAP.alone(kind="used")
    assert (used.name, used.labels, used.help) == (
        "observatory_host_swap_used_bytes",
        (),
        "Swap space. This is kind used.",
    )
    full = STALLED.alone(stalled="full")
    assert (full.name, full.labels) == ("observatory_pressure_full_seconds_total", ("resource",))


def test_a_total_stands_beside_its_parts_which_keep_their_label() -> None:
    assert [(told, form.name, form.labels) for told, form in PARTS.forms()] == [
        ({"category": "total"}, "observatory_memory_peak_total_bytes", ("rank",)),
        ({}, "observatory_memory_peak_bytes", ("category", "rank")),
    ]


def test_of_a_figure_each_value_is_shown_with_each_statistic() -> None:
    bubble = RUN.gauge("observatory_run_bubble_ratio{account=measured|expected}", "A bubble.")
    assert [shown.name for shown in bubble.shown()] == [
        f"observatory_run_bubble_{account}_{which}_ratio"
        for account in ("measured", "expected")
        for which in ("median", "low", "high")
    ]


def test_a_figure_of_each_rank_is_shown_with_quantiles_over_ranks() -> None:
    late = RUN.gauge("observatory_run_late_ratio{rank, cause}", "How late.", of_each="rank")
    assert [shown.name for shown in late.shown()][3:] == [f"observatory_run_late_rank_{p}_ratio" for p in QUANTILES]
    p90 = late.quantile("p90")
    assert p90.labels == ("cause",)
    assert p90.help == "How late. This is the 0.9 quantile over each rank of a run that has many."


@pytest.mark.parametrize("values", [{"kind": "free"}, {"place": "used"}])
def test_what_is_not_split_has_no_metric_of_its_own(values: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="observatory_host_swap_bytes has no metric of its own"):
        SWAP.alone(**values)


def test_a_module_lists_its_metrics_in_the_order_of_their_definition() -> None:
    step, loss = RANK.gauge("observatory_step_seconds", "Time."), RANK.gauge("observatory_loss_nats", "Loss.")
    assert metrics_in({"__name__": "rank", "STEP": step, "LOSS": loss}) == (step, loss)
