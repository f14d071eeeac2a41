"""The dashboards of a node have an answer in a real Prometheus that scrapes recorded GPUs and a made host."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from bench.exporter.server import answering
from collectors.metrics import host
from collectors.metrics.gpu import GPU_CLOCK_HELD_SECONDS, GPU_POWER_WATTS, GPU_STATE, RANK_GPU
from collectors.metrics.metric import Metric, Sample
from collectors.node.watch import NodeWatch
from collectors.nvml.collector import NvmlCollector
from collectors.nvml.recorder import EIGHT_GPUS, load
from collectors.nvml.replay import RecordedNvml
from collectors.prometheus.exposition import Owned
from collectors.prometheus.http_server import ServerConfig
from dashboards.boards import gpu_health, host_load
from dashboards.render import DASHBOARDS as ALL
from tests.stack import test_dashboards_live
from tests.support.grafana_expressions import with_every_choice
from tests.support.servers import PrometheusServer, run_prometheus

pytestmark = [pytest.mark.stack, pytest.mark.timeout(180)]

HOT_S, LOST_S = 296.0, 421.0
"""Of the recording: GPU 3 is hot, and GPU 5 breaks four seconds later; GPU 6 has fallen off the bus."""
HOT_GPU, LOST_GPU, CAPPED_GPU = "3", "6", "2"
RANKS = 4
WINDOW_S = 8
DASHBOARDS = (gpu_health.DASHBOARD, host_load.DASHBOARD)
QUERIES = {
    f"{dashboard.name}: {panel.title}: {query.legend}": query
    for dashboard in DASHBOARDS
    for panel in dashboard.panels
    for query in panel.queries
}

Found = list[dict[str, Any]]


@dataclass(slots=True)
class FakeClock:
    """Goes as time does, but may be set on."""

    ahead_s: float = 0.0

    def seconds(self) -> float:
        return time.monotonic() + self.ahead_s


class FakeHost:
    """A host whose counters grow by their rates, in units a second."""

    name = "host"
    absent = ()

    def read(self) -> list[Sample]:
        elapsed_s = time.monotonic()
        return [
            host.HOST_CPU_SECONDS.at(1.0 * elapsed_s, mode="user"),
            host.HOST_CPU_SECONDS.at(3.0 * elapsed_s, mode="idle"),
            host.HOST_PRESSURE_SECONDS.at(0.2 * elapsed_s, resource="io", stalled="some"),
            host.HOST_MEMORY_BYTES.at(64e9, kind="total"),
            host.HOST_MEMORY_BYTES.at(16e9, kind="available"),
            host.HOST_SWAPPED_BYTES.at(4096 * elapsed_s, direction="out"),
            host.HOST_MAJOR_PAGE_FAULTS.at(2 * elapsed_s),
            host.HOST_NUMA_ALLOCATORS.at(900 * elapsed_s, numa="0", cpu="local"),
            host.HOST_NUMA_ALLOCATORS.at(100 * elapsed_s, numa="0", cpu="remote"),
            host.HOST_DISK_REQUESTS.at(100 * elapsed_s, device="nvme0n1", direction="read"),
            host.HOST_DISK_REQUEST_SECONDS.at(0.05 * elapsed_s, device="nvme0n1", direction="read"),
            host.HOST_DISK_BYTES.at(1e8 * elapsed_s, device="nvme0n1", direction="read"),
            host.HOST_FILESYSTEM_BYTES.at(1e12, folder="/", kind="total"),
            host.HOST_FILESYSTEM_BYTES.at(4e11, folder="/", kind="available"),
            host.HOST_CLOCK_OFFSET_SECONDS.at(0.001),
            host.HOST_NETWORK_BYTES.at(1e9 * elapsed_s, interface="eth0", direction="received"),
            host.HOST_NETWORK_DROPPED.at(elapsed_s, interface="eth0", direction="received"),
            host.HOST_NETWORK_ERRORS.at(elapsed_s, interface="eth0", direction="received"),
            host.HOST_INFINIBAND_INFO.at(
                1, device="mlx5_0", port="1", layer="InfiniBand", state="DOWN", physical_state="Polling"
            ),
            host.HOST_INFINIBAND_BYTES.at(2e10 * elapsed_s, device="mlx5_0", port="1", direction="sent"),
            host.HOST_INFINIBAND_ERRORS.at(elapsed_s, device="mlx5_0", port="1", kind="symbol_error"),
        ]

    def close(self) -> None:
        """Nothing was taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What Prometheus found: by query's name while GPU 3 was hot, with rates over seconds; states with GPU 6 lost."""

    hot: dict[str, Found]
    lost: Found


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    clock = FakeClock()
    gpus = NvmlCollector(RecordedNvml(load(EIGHT_GPUS), clock_s=clock.seconds).nvml)
    clock.ahead_s += HOT_S
    notices: list[str] = []
    with (
        NodeWatch(lambda: (FakeHost(), gpus), beat_s=0.5, on_notice=lambda _: None) as watch,
        answering(
            (watch.samples, _ranks), host="127.0.0.1", port=0, config=ServerConfig, on_notice=notices.append
        ) as server,
        run_prometheus(f"127.0.0.1:{server.port}") as prometheus,
    ):
        hot = _ask_all(prometheus)
        clock.ahead_s += LOST_S - HOT_S
        yield Watched(hot=hot, lost=_ask_until_lost(prometheus))
    assert len(notices) == 1, notices  # Where it served, and no trouble.


def _ranks() -> list[Owned]:
    """A rank on each of the first GPUs."""
    return [
        (RANK_GPU.at(1, run="8f2c", gpu=str(rank), slice=""), {"rank": str(rank), "slot": "0"}) for rank in range(RANKS)
    ]


def _ask_all(prometheus: PrometheusServer) -> dict[str, Found]:
    """Every query's answer, once all have one; GPU 5 breaks meanwhile, and repairs are asked for each ten seconds."""
    begun_s = time.monotonic()
    while True:
        time.sleep(1)
        found = {name: prometheus.query(_over_seconds(query.expression)) for name, query in QUERIES.items()}
        waited_s = time.monotonic() - begun_s
        if (all(found.values()) and waited_s > 1.5 * WINDOW_S) or waited_s > 60:
            return found  # The test names what is empty.


def _over_seconds(expression: str) -> str:
    """With a window as short as the time that there was."""
    return with_every_choice(expression).replace("[1m]", f"[{WINDOW_S}s]")


def _ask_until_lost(prometheus: PrometheusServer) -> Found:
    (query,) = (query for query in QUERIES.values() if query.metric == GPU_STATE)
    until = time.monotonic() + 60
    while True:
        found = prometheus.query(with_every_choice(query.expression))
        if any(series["metric"]["state"] == "lost" for series in found) or time.monotonic() > until:
            return found
        time.sleep(0.5)


def _values(watched: Watched, metric: Metric, **labels: str) -> list[tuple[dict[str, str], float]]:
    """Labels and value of a metric's series that bear these labels."""
    found = [
        series
        for name, query in QUERIES.items()
        if query.metric == metric
        for series in watched.hot[name]
        if labels.items() <= series["metric"].items()
    ]
    return [(series["metric"], float(series["value"][1])) for series in found]


def test_every_dashboard_is_seen_with_an_answer_here_or_there() -> None:
    assert {dashboard.name for dashboard in (*DASHBOARDS, *test_dashboards_live.DASHBOARDS)} == {
        one.name for one in ALL
    }


@pytest.mark.parametrize("name", QUERIES)
def test_no_panel_is_empty(name: str, watched: Watched) -> None:
    assert watched.hot[name], QUERIES[name].expression
    assert all(series["value"][1] not in {"NaN", "+Inf", "-Inf"} for series in watched.hot[name])


@pytest.mark.alone
def test_a_gpu_that_is_too_hot_is_shown_to_be_held_back_with_its_rank(watched: Watched) -> None:
    ((labels, ratio),) = _values(watched, GPU_CLOCK_HELD_SECONDS, gpu=HOT_GPU, reason="software_thermal")
    assert labels["work"] == f"8f2c rank {HOT_GPU}"
    assert ratio == pytest.approx(0.8, abs=0.15)


def test_a_gpu_at_its_lowered_limit_draws_all_of_it(watched: Watched) -> None:
    ((_, ratio),) = _values(watched, GPU_POWER_WATTS, gpu=CAPPED_GPU)
    assert ratio == pytest.approx(1.0, abs=0.01)


def test_a_gpu_without_a_rank_is_shown_without_one(watched: Watched) -> None:
    ((labels, _),) = _values(watched, GPU_POWER_WATTS, gpu=LOST_GPU)
    assert "work" not in labels


def test_a_gpu_that_falls_off_the_bus_is_the_one_that_is_not_well(watched: Watched) -> None:
    lost = [series for series in watched.lost if series["metric"]["state"] == "lost"]  # Another's driver hangs then.
    ailing = {series["metric"]["gpu"] for series in lost if float(series["value"][1]) == 1}
    assert ailing == {LOST_GPU}


def test_shares_and_times_of_the_host_are_those_that_it_was_made_of(watched: Watched) -> None:
    user, idle = (_values(watched, host.HOST_CPU_SECONDS, mode=mode)[0][1] for mode in ("user", "idle"))
    assert (user, idle) == pytest.approx((0.25, 0.75))
    assert _values(watched, host.HOST_MEMORY_BYTES)[0][1] == pytest.approx(0.25)
    assert _values(watched, host.HOST_NUMA_ALLOCATORS)[0][1] == pytest.approx(0.1)
    assert _values(watched, host.HOST_DISK_REQUEST_SECONDS)[0][1] == pytest.approx(0.0005)
