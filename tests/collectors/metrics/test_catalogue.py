"""The catalogue's promises: names are unique, end in their units, and are spelt nowhere else."""

import re
from collections import Counter
from pathlib import Path

from collectors.metrics import process
from collectors.metrics.registry import METRICS, SHOWN

ROOT = Path(__file__).parents[3]
BASE_UNITS = {
    "seconds",
    "bytes",
    "ratio",
    "nats",
    "tokens",
    "per_second",
    "flops_per_second",
    "retries",
    "errors",
    "watts",
}
BASE_UNITS |= {
    "joules",
    "celsius",
    "hertz",
    "tasks",
    "info",
    "timestamp_seconds",
    "rounds",
    "bytes_per_second",
    "microbatches",
    "beats",
    "samples",
    "fields",
    "pairs",
    "faults",
    "packets",
    "requests",
    "allocations",
    "ticks",
    "rows",
    "pages",
    "lanes",
    "generation",
    "runs",
    "cases",
    "fds",
    "steps",
}


def test_names_are_unique() -> None:
    shown = Counter(metric.name for metric in SHOWN)
    assert [name for name, count in shown.items() if count > 1] == []
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_a_name_ends_in_its_unit_and_kind() -> None:
    for metric in SHOWN:
        assert metric.unit in BASE_UNITS, metric.name
        # A process has the names that all clients of Prometheus give one.
        beginnings = ("observatory_", "process_") if metric in process.METRICS else ("observatory_",)
        assert metric.name.startswith(beginnings)
        assert metric.name.endswith("_total" if metric.kind == "counter" else f"_{metric.unit}")


def test_a_metric_explains_itself_in_a_sentence() -> None:
    short = [metric.name for metric in SHOWN if not metric.help.endswith(".") or len(metric.help.split()) <= 5]
    assert short == []


def test_no_label_is_one_that_a_scrape_adds() -> None:
    # Prometheus would store it by another name.
    assert [metric.name for metric in METRICS if {"job", "instance"} & set(metric.labels)] == []


def test_nothing_is_shown_with_a_label_over_which_a_sum_is_nonsense() -> None:
    # Ends of intervals, limits, and what was measured beside what is expected.
    assert not {"bound", "quantile", "account", "extreme", "limit", "stalled"} & {
        label for metric in SHOWN for label in metric.labels
    }


def test_a_total_of_the_parts_beside_it_is_a_metric_of_its_own() -> None:
    beside = [metric for metric in METRICS for split in metric.splits if split.has_others]
    assert {metric.name for metric in beside} >= {
        "observatory_memory_live_tensor_bytes",
        "observatory_memory_timeline_peak_bytes",
        "observatory_run_memory_account_bytes",
        "observatory_run_traced_ratio",
    }
    for metric in beside:
        assert len(metric.shown()) > 1


def test_names_are_spelt_in_the_catalogue_only() -> None:
    spelt = re.compile(r"\bobservatory_[a-z_]+")
    elsewhere = [
        f"{path.relative_to(ROOT)}: {found.group()}"
        for folder in ("bench", "collectors", "dashboards", "workloads")
        for path in (ROOT / folder).rglob("*.py")
        if path.parent != ROOT / "collectors/metrics"
        for found in spelt.finditer(path.read_text())
        if not found.group().startswith("observatory_watch")  # Modules of the hook, whose names scripts import.
    ]
    assert elsewhere == []


def test_times_and_rates_of_a_run_say_which_direction_is_better() -> None:
    undecided = {"expected", "residual", "clock", "power"}  # Predictions, and what a machine is set to.
    for metric in METRICS:
        if metric.scope != "run" or undecided & set(metric.name.split("_")):
            continue
        if metric.unit.endswith("per_second"):
            assert metric.better == "higher", metric.name
        elif metric.unit == "seconds":
            assert metric.better == "lower", metric.name
