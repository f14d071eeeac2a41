"""The demonstration feeds every panel and alert, stays valid, and never passes for the truth."""

from __future__ import annotations

import math
import re
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import pairwise

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from bench.serve.demo import (
    BROKEN,
    COMPLETED_AGO_S,
    COOL_S,
    DAY_S,
    DOWN_S,
    HOT_S,
    HOT_STEP_S,
    LAP_S,
    LONG_RATIO,
    RANKS,
    RUN,
    STEP_S,
    UP_S,
    made_owner,
    made_ports,
    made_ranks,
    made_results,
    made_suites,
    open_recorded_collectors,
    steps_by,
    watched,
)
from bench.serve.demo_results import FAILED_STRATEGY
from bench.serve.own_process import own_process
from collectors.metrics import host
from collectors.metrics import rank as rank_metrics
from collectors.metrics.agent import RESULT_INFO, RUN_INFO, RUN_LAST_COMPLETION, RUN_STALL_LIMIT
from collectors.metrics.gpu import GPU_PROCESS_MEMORY, RANK_GPU, RANK_GPU_MEMORY
from collectors.metrics.gpu_health import GPU_NVLINK_LINK_BYTES, GPU_XID_TIME
from collectors.metrics.metric import Metric
from collectors.metrics.rank import STEP_SECONDS, TOKENS
from collectors.metrics.registry import METRICS, SHOWN, as_shown
from collectors.metrics.run_counts import STEP_DURATION, STEPS
from collectors.node.registry import PollingConfig
from collectors.node.watch import NodeWatch
from collectors.nvml.collector import NvmlCollector
from collectors.prometheus.exposition import BOUNDS_S, Exporter, Histogram, Owned
from dashboards.rules import load
from dashboards.thresholds import shipped
from tests.collectors.nvml.nodes import FakeClock, eight_gpus, opened, replayed
from tests.dashboards.boards import all_boards

MADE_OF_THE_HOST = {host.HOST_INFINIBAND_INFO.name, host.HOST_INFINIBAND_BYTES.name, host.HOST_INFINIBAND_ERRORS.name}
OF_THE_HOST = {shown.name for metric in host.METRICS for shown in metric.shown()}
NAMES = {metric.name for metric in SHOWN} - OF_THE_HOST | MADE_OF_THE_HOST
"""The rest of the host is this machine's, whatever it has."""
QUERIED = {
    name
    for expression in (
        *(query.expression for dashboard in all_boards() for query in dashboard.queries),
        *(alert.expression for group in load(shipped()) for alert in group.alerts),
        *(recording.expression for group in load(shipped()) for recording in group.recordings),
    )
    for name in re.findall(r"\bobservatory_[a-z0-9_]+", expression)
    if name in NAMES
}


def _values(metric: Metric, at_s: float) -> list[float]:
    return [sample.value for sample, _ in made_ranks(at_s) if sample.metric == metric.name]


@pytest.fixture(scope="module")
def shown() -> set[str]:
    """The metrics of a whole lap, the agent's among them."""
    clock, names = FakeClock(), set[str]()
    with closing(
        NvmlCollector(replayed(eight_gpus(), clock), clock_ns=clock.ns, per_link=True, reads_costs=True)
    ) as nvml:
        for at_s in range(0, 600, 60):
            clock.now_s = float(at_s)
            names |= {as_shown(sample).metric for sample in nvml.read()}
        while GPU_XID_TIME.name not in names:  # A thread of its own counts it.
            names |= {as_shown(sample).metric for sample in nvml.read()}
    names |= {sample.metric for sample, _ in (*made_ranks(0), *made_ports(0), *made_results(0), *made_suites(0, 0))}
    names |= {sample.metric for sample, _ in own_process()()}
    with NodeWatch(open_recorded_collectors, beat_s=60, on_notice=lambda text: None) as watch:
        while not watch.node_samples():
            time.sleep(0.01)
        names |= {sample.metric for sample, _ in watch.samples()}
    return names


def test_what_a_panel_or_an_alert_asks_for_is_shown(shown: set[str]) -> None:
    """But for statistics over ranks, which only runs of many ranks have, and what only an active watched run has."""
    aggregated = [each for metric in METRICS if metric.is_aggregated for each in metric.shown()]
    of_many = {metric.name for metric in aggregated if metric.scope == "node"}
    assert sorted(QUERIED - shown - of_many - {RUN_STALL_LIMIT.name}) == []


@pytest.mark.parametrize("per_nvlink", [True, False])
def test_the_bytes_of_each_nvlink_are_shown_where_they_are_wanted(per_nvlink: bool) -> None:
    with ExitStack() as stack:
        opened = open_recorded_collectors(PollingConfig(beat_s=60, per_nvlink=per_nvlink))
        for collector in opened:
            stack.enter_context(closing(collector))
        shown = [one for collector in opened for one in collector.read() if one.metric == GPU_NVLINK_LINK_BYTES.name]
    links = {(one.labels["gpu"], one.labels["link"]) for one in shown}
    assert links == ({(str(gpu), link) for gpu in range(RANKS + 1) for link in "01"} if per_nvlink else set())


def test_the_allocators_account_of_a_made_rank_agrees_with_itself() -> None:
    accounts = (
        rank_metrics.ALLOCATED_BYTES,
        rank_metrics.ACTIVE_BYTES,
        rank_metrics.PEAK_BYTES,
        rank_metrics.RESERVED_BYTES,
    )
    allocated, active, peak, reserved = (_values(metric, 0)[0] for metric in accounts)
    split = _values(rank_metrics.INACTIVE_SPLIT_BYTES, 0)[0]
    assert allocated <= active <= active + split <= reserved
    assert allocated <= peak <= reserved


def test_made_ranks_and_results_are_valid_and_no_series_is_given_twice() -> None:
    refused: list[str] = []
    given = [*made_ranks(0), *made_ports(0), *made_results(0), *made_suites(0, 0)]
    body = generate_latest(Exporter(SHOWN, [lambda: given], on_notice=refused.append))
    assert refused == []
    shown = [sample for family in text_string_to_metric_families(body.decode()) for sample in family.samples]
    assert sum("le" not in sample.labels for sample in shown) == len(given) + 1  # The histogram has a count and a sum.


def test_run_and_results_are_called_a_demonstration() -> None:
    called = [
        sample.labels["run"]
        for sample, _ in (*made_ranks(0), *made_results(0))
        if sample.metric in {RUN_INFO.name, RESULT_INFO.name}
    ]
    assert set(called) == {"demonstration"}


def test_the_run_takes_as_long_as_the_recording() -> None:
    assert eight_gpus().duration_s == LAP_S


def test_counters_of_the_made_run_never_fall() -> None:
    for metric in (TOKENS, STEPS, STEP_DURATION):
        values = [_values(metric, at_s) for at_s in range(0, 1900, 7)]
        assert all(later >= earlier for earlier, later in pairwise(values))


@pytest.mark.parametrize("begun_s", [0.0, 100.0, HOT_S - 10, HOT_S, 300.0, COOL_S - 10, COOL_S, LAP_S + HOT_S - 10])
def test_steps_come_as_fast_as_their_time_says(begun_s: float) -> None:
    def by_hand() -> Iterator[float]:
        for tenth in range(200):
            at_s = begun_s + tenth / 10
            yield 0.1 / (HOT_STEP_S if HOT_S <= at_s % LAP_S < COOL_S else STEP_S)

    assert steps_by(begun_s + 20) - steps_by(begun_s) == pytest.approx(sum(by_hand()))


def test_the_histogram_holds_each_step_of_each_rank_with_the_times_that_the_lap_has() -> None:
    histograms = [one for one, _ in made_ranks(300) if isinstance(one, Histogram)]
    (histogram,) = histograms
    assert histogram.value == pytest.approx(RANKS * steps_by(300), abs=2 * RANKS)
    assert histogram.total == pytest.approx(RANKS * 300, rel=0.01)
    filled = [place for place, count in enumerate(histogram.counts) if count]
    assert {bisect_left(BOUNDS_S, STEP_S), bisect_left(BOUNDS_S, HOT_STEP_S)} <= set(filled)
    assert filled[-1] == bisect_left(BOUNDS_S, LONG_RATIO * HOT_STEP_S)
    assert 0 < histogram.counts[filled[-1]] < 0.02 * histogram.value


def test_the_exemplar_of_the_histogram_is_the_newest_step_of_a_rank() -> None:
    (histogram,) = (one for one, _ in made_ranks(300, 1e9) if isinstance(one, Histogram))
    exemplars = list(histogram.exemplars.values())
    assert exemplars
    for one in exemplars:
        assert (one.labels["run"], one.labels["step"]) == ("demonstration", str(math.floor(steps_by(300)) - 1))
        assert one.time_ns == 1_000_000_300 * 10**9


def test_all_ranks_are_as_slow_as_the_hot_gpu() -> None:
    assert all(
        hot > 1.2 * cool for hot, cool in zip(_values(STEP_SECONDS, 300), _values(STEP_SECONDS, 100), strict=True)
    )


def test_each_rank_is_on_a_gpu_of_its_own() -> None:
    for metric in (RANK_GPU, RANK_GPU_MEMORY):
        placed = [
            (owner["rank"], sample.labels["gpu"]) for sample, owner in made_ranks(0) if sample.metric == metric.name
        ]
        assert placed == [(str(rank), str(rank)) for rank in range(RANKS)]


def test_the_recorded_processes_are_ranks_a_pod_and_a_job() -> None:
    clock = FakeClock()
    with opened(replayed(eight_gpus(), clock), clock, owner_of=made_owner) as nvml:
        clock.now_s = 60.0
        samples: list[Owned] = [(sample, {}) for sample in nvml.read()]
    found = {one.labels["pid"]: one.labels for one, _ in watched(samples) if one.metric == GPU_PROCESS_MEMORY.name}
    ranks = {labels["rank"]: labels["gpu"] for labels in found.values() if labels["run"] == RUN}
    assert ranks == {str(rank): str(rank) for rank in range(RANKS)}
    others = {labels["slice"]: bool(labels["pod_uid"]) or labels["slurm_job"] for labels in found.values()}
    assert (others["1/0"], others["2/0"]) == (True, "4711")


def test_results_are_fresh_for_the_alerts() -> None:
    completed = {
        owner["strategy"]: sample.value
        for sample, _ in made_results(1e9)
        if sample.metric == RUN_LAST_COMPLETION.name
        for owner in [sample.labels]
    }
    assert completed.pop(FAILED_STRATEGY) == 1e9 - DAY_S
    assert set(completed.values()) == {1e9}
    assert COMPLETED_AGO_S == 3600


@pytest.mark.parametrize(("at_s", "is_up"), [(0.0, True), (DOWN_S, False), (UP_S, True), (LAP_S + DOWN_S, False)])
def test_a_made_port_loses_its_link_in_each_lap(at_s: float, is_up: bool) -> None:
    shown = [sample for sample, _ in made_ports(at_s)]
    down = [sample.labels["device"] for sample in shown if sample.labels.get("state") == "DOWN"]
    assert down == ([] if is_up else [BROKEN])
    lost = [sample.value for sample in shown if sample.labels.get("kind") == "link_downed"]
    assert lost == [0, 0, 0, at_s // LAP_S + (at_s % LAP_S >= DOWN_S)]
