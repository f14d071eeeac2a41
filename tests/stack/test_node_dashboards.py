"""The dashboards of a node have an answer in a real Prometheus that scrapes recorded GPUs and a made host."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from bench.serve.server import answering
from collectors.metrics import host
from collectors.metrics.agent import RUN_INFO
from collectors.metrics.gpu import RANK_GPU, RANK_GPU_MEMORY
from collectors.metrics.metric import Sample
from collectors.node.watch import NodeWatch
from collectors.nvml.collector import NvmlCollector
from collectors.nvml.recorder import EIGHT_GPUS, load
from collectors.nvml.replay import RecordedNvml
from collectors.prometheus.exposition import Owned
from collectors.prometheus.http_server import ServerConfig
from tests.dashboards.boards import all_boards, board
from tests.stack import test_dashboards_live, test_run_dashboards
from tests.support.grafana_expressions import with_every_choice
from tests.support.servers import PrometheusServer, run_prometheus

pytestmark = [pytest.mark.stack, pytest.mark.timeout(180)]

HOT_S, LOST_S = 296.0, 421.0
"""Of the recording: GPU 3 is hot, and GPU 5 breaks four seconds later; GPU 6 has fallen off the bus."""
HOT_GPU, LOST_GPU, CAPPED_GPU = "3", "6", "2"
RANKS = 4
WINDOW_S = 8
DASHBOARDS = (board("fleet"), board("one-gpu"), board("one-host"))
QUERIES = {
    f"{dashboard.name}: {panel.title}: {query.legend}": query
    for dashboard in DASHBOARDS
    for panel in dashboard.all_panels
    for query in panel.queries
}

WHERE_ALL_IS_WELL = {
    "fleet: NVLink errors in this time range: Errors",
    "fleet: PCIe link errors in this time range: Errors",
    "one-gpu: Share of time in which clocks are throttled, by reason: GPU {{gpu}} {{reason}} (sampled) {{work}}",
    "one-host: Impossible readings that the agent has discarded since it started: {{source}}: {{question}}",
}
"""Queries that show nothing where all is well, as with the links of the recorded GPUs before the first breaks."""
STATE = "one-gpu: Lost, late, or waiting for a repair: GPU {{gpu}} {{state}} {{work}}"
HELD_BACK = "one-gpu: Share of time in which clocks are throttled, by reason"
POWER = "one-gpu: Power, as a share of the limit in force"

Found = list[dict[str, Any]]


@dataclass(slots=True)
class FakeClock:
    """Goes as time does, but may be set on."""

    ahead_s: float = 0.0

    def seconds(self) -> float:
        return time.monotonic() + self.ahead_s


class FakeHost:
    """A host whose counters grow by their rates, in units a second; its port is active for a few seconds."""

    name = "host"
    absent = ()

    def __init__(self) -> None:
        self.is_up = True

    def read(self) -> list[Sample]:
        elapsed_s = time.monotonic()
        state = "ACTIVE" if self.is_up else "DOWN"
        return [
            host.HOST_CPU_SECONDS.at(1.0 * elapsed_s, mode="user"),
            host.HOST_CPU_SECONDS.at(3.0 * elapsed_s, mode="idle"),
            host.HOST_LOAD.at(3.0),
            host.HOST_PRESSURE_SECONDS.at(0.2 * elapsed_s, resource="io", stalled="some"),
            host.HOST_PRESSURE_SECONDS.at(0.1 * elapsed_s, resource="io", stalled="full"),
            host.HOST_MEMORY_BYTES.at(64e9, kind="total"),
            host.HOST_MEMORY_BYTES.at(16e9, kind="available"),
            *(
                host.HOST_MEMORY_BYTES.at(1e9, kind=kind)
                for kind in ("used", "free", "cached", "shared", "buffers", "dirty")
            ),
            *(host.HOST_SWAP_BYTES.at(8e9, kind=kind) for kind in ("total", "used")),
            host.HOST_SWAPPED_BYTES.at(4096 * elapsed_s, direction="out"),
            host.HOST_PAGE_FAULTS.at(900 * elapsed_s),
            host.HOST_MAJOR_PAGE_FAULTS.at(2 * elapsed_s),
            *(host.HOST_NUMA_MEMORY_BYTES.at(64e9, numa="0", kind=kind) for kind in ("total", "free", "cached")),
            host.HOST_NUMA_ALLOCATIONS.at(1000 * elapsed_s, numa="0", outcome="hit"),
            host.HOST_NUMA_ALLOCATORS.at(900 * elapsed_s, numa="0", cpu="local"),
            host.HOST_NUMA_ALLOCATORS.at(100 * elapsed_s, numa="0", cpu="remote"),
            host.HOST_DISK_REQUESTS.at(100 * elapsed_s, device="nvme0n1", direction="read"),
            host.HOST_DISK_REQUEST_SECONDS.at(0.05 * elapsed_s, device="nvme0n1", direction="read"),
            host.HOST_DISK_BUSY_SECONDS.at(0.1 * elapsed_s, device="nvme0n1"),
            host.HOST_DISK_BYTES.at(1e8 * elapsed_s, device="nvme0n1", direction="read"),
            host.HOST_FILESYSTEM_BYTES.at(1e12, folder="/", kind="total"),
            host.HOST_FILESYSTEM_BYTES.at(4e11, folder="/", kind="available"),
            host.HOST_CLOCK_OFFSET_SECONDS.at(0.001),
            host.HOST_CLOCK_ERROR_SECONDS.at(0.002),
            host.HOST_CLOCK_KEPT.at(1),
            host.NODE_INFO.at(
                1, host="node1", os="Debian", kernel="6.1", driver="590.48.01", version="1", python="3.11"
            ),
            host.HOST_NETWORK_BYTES.at(1e9 * elapsed_s, interface="eth0", direction="received"),
            host.HOST_NETWORK_DROPPED.at(elapsed_s, interface="eth0", direction="received"),
            host.HOST_NETWORK_ERRORS.at(elapsed_s, interface="eth0", direction="received"),
            host.HOST_INFINIBAND_INFO.at(
                1, device="mlx5_0", port="1", layer="InfiniBand", state=state, physical_state=""
            ),
            host.HOST_INFINIBAND_LINK.at(5e10, device="mlx5_0", port="1"),
            host.HOST_INFINIBAND_WAIT.at(10 * elapsed_s, device="mlx5_0", port="1"),
            host.HOST_INFINIBAND_BYTES.at(2e10 * elapsed_s, device="mlx5_0", port="1", direction="sent"),
            host.HOST_INFINIBAND_ERRORS.at(elapsed_s, device="mlx5_0", port="1", kind="symbol_error"),
        ]

    def close(self) -> None:
        """Nothing was taken."""


UNSOUND_NODES = "fleet: Unhealthy nodes over time"
PORT_DOWN = 2
"""The state of a node one of whose ports is down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What Prometheus found: by query's name while GPU 3 was hot, with rates over seconds; states with GPU 6 lost.

    pace: how fast the host's clock went by the scrapes in the same seconds. A busy machine scrapes late, so that a
    second of Prometheus's is not one of the host's.
    """

    hot: dict[str, Found]
    pace: float
    lost: Found


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    clock, node = FakeClock(), FakeHost()
    gpus = NvmlCollector(RecordedNvml(load(EIGHT_GPUS), clock_s=clock.seconds).nvml, per_link=True, reads_costs=True)
    clock.ahead_s += HOT_S
    notices: list[str] = []
    with (
        NodeWatch(lambda: (node, gpus), beat_s=0.5, on_notice=lambda _: None) as watch,
        answering(
            (watch.samples, _ranks), host="127.0.0.1", port=0, config=ServerConfig, on_notice=notices.append
        ) as server,
        run_prometheus(f"127.0.0.1:{server.port}") as prometheus,
    ):
        _wait_for_the_port(prometheus)
        node.is_up = False
        hot, pace = _ask_all(prometheus)
        clock.ahead_s += LOST_S - HOT_S
        yield Watched(hot=hot, pace=pace, lost=_ask_until_lost(prometheus))
    assert len(notices) == 1, notices  # Where it served, and no trouble.


def _ranks() -> list[Owned]:
    """A rank on each of the first GPUs."""
    run = dict.fromkeys(RUN_INFO.labels, "") | {"run": "8f2c", "slot": "0"}
    ranks = [
        (sample, {"rank": str(rank), "slot": "0"})
        for rank in range(RANKS)
        for sample in (
            RANK_GPU.at(1, run="8f2c", gpu=str(rank), slice=""),
            RANK_GPU_MEMORY.at(1e9, gpu=str(rank), slice=""),
        )
    ]
    return [(RUN_INFO.at(1, **run), {}), *ranks]


def _wait_for_the_port(prometheus: PrometheusServer) -> None:
    """Wait until Prometheus has seen the port that is down later."""
    until_s = time.monotonic() + 60
    while not prometheus.query(host.HOST_INFINIBAND_INFO.name) and time.monotonic() < until_s:
        time.sleep(0.2)


def _ask_all(prometheus: PrometheusServer) -> tuple[dict[str, Found], float]:
    """Every query's answer at one instant, once all have one, and `Watched.pace` then.

    GPU 5 breaks meanwhile, and repairs are asked for each ten seconds.
    """
    begun_s = time.monotonic()
    while True:
        time.sleep(1)
        now_s = time.time()
        found = {name: prometheus.query(_over_seconds(query.expression), now_s) for name, query in QUERIES.items()}
        waited_s = time.monotonic() - begun_s
        is_whole = all(series for name, series in found.items() if name not in WHERE_ALL_IS_WELL)
        if (is_whole and not _is_late(found) and waited_s > 1.5 * WINDOW_S) or waited_s > 60:
            user = f'rate({host.HOST_CPU_SECONDS.name}{{mode="user"}}[{WINDOW_S}s])'
            pace = float(prometheus.query(user, now_s)[0]["value"][1])
            return found, pace  # The test names what is empty.


def _is_late(found: dict[str, Found]) -> bool:
    """Whether a collector did not answer in time, as on a busy machine, which hides that the port is down."""
    states = [series for name in found if name.startswith(f"{UNSOUND_NODES}: ") for series in found[name]]
    return any(float(series["value"][1]) > PORT_DOWN for series in states)


def _over_seconds(expression: str) -> str:
    """With a window as short as the time that there was."""
    return with_every_choice(expression).replace("[1m]", f"[{WINDOW_S}s]")


def _ask_until_lost(prometheus: PrometheusServer) -> Found:
    query = QUERIES[STATE]
    until = time.monotonic() + 60
    while True:
        found = prometheus.query(with_every_choice(query.expression))
        if any(series["metric"]["state"] == "lost" for series in found) or time.monotonic() > until:
            return found
        time.sleep(0.5)


def _values(watched: Watched, panel: str, **labels: str) -> list[tuple[dict[str, str], float]]:
    """Labels and value of a panel's series that bear these labels."""
    found = [
        series
        for name in QUERIES
        if name.startswith(f"{panel}: ")
        for series in watched.hot[name]
        if labels.items() <= series["metric"].items()
    ]
    return [(series["metric"], float(series["value"][1])) for series in found]


def test_every_dashboard_is_seen_with_an_answer_here_or_there() -> None:
    assert {
        dashboard.name for dashboard in (*DASHBOARDS, *test_dashboards_live.DASHBOARDS, *test_run_dashboards.DASHBOARDS)
    } == {one.name for one in all_boards()}


def test_no_panel_is_empty(watched: Watched) -> None:
    assert [name for name in QUERIES if not watched.hot[name] and name not in WHERE_ALL_IS_WELL] == []
    for name, found in watched.hot.items():
        assert all(series["value"][1] not in {"NaN", "+Inf", "-Inf"} for series in found), name


@pytest.mark.alone
def test_a_gpu_that_is_too_hot_is_shown_to_be_held_back_with_its_rank(watched: Watched) -> None:
    ((labels, ratio),) = _values(watched, HELD_BACK, gpu=HOT_GPU, reason="software_thermal")
    assert labels["work"] == f"8f2c rank {HOT_GPU}"
    assert ratio == pytest.approx(0.8, abs=0.15)


def test_a_gpu_at_its_lowered_limit_draws_all_of_it(watched: Watched) -> None:
    ((_, ratio),) = _values(watched, POWER, gpu=CAPPED_GPU)
    assert ratio == pytest.approx(1.0, abs=0.01)


def test_a_gpu_without_a_rank_is_shown_without_one(watched: Watched) -> None:
    ((labels, _),) = _values(watched, POWER, gpu=LOST_GPU)
    assert "work" not in labels


def test_a_gpu_that_falls_off_the_bus_is_the_one_that_is_not_well(watched: Watched) -> None:
    lost = [series for series in watched.lost if series["metric"]["state"] == "lost"]  # Another's driver hangs then.
    ailing = {series["metric"]["gpu"] for series in lost if float(series["value"][1]) == 1}
    assert ailing == {LOST_GPU}


def test_shares_and_times_of_the_host_are_those_that_it_was_made_of(watched: Watched) -> None:
    known = {
        "Busy CPUs": 0.25,
        "CPU time by mode, as a share of all CPUs": 0.25,
        "Available memory": 0.25,
        "Memory available without swapping, as a share of all memory": 0.25,
        "Memory allocated on a remote NUMA node": 0.1,
        "Duration of a disk request": 0.0005,
        "Share of time in which a disk is busy": 0.1 * watched.pace,
        "Least free disk space": 0.4,
        "InfiniBand traffic, as a share of the link's bandwidth": 0.4 * watched.pace,
    }
    assert 0.5 < watched.pace < 2
    found = {panel: _values(watched, f"one-host: {panel}")[0][1] for panel in known}
    assert found == pytest.approx(known, rel=0.05)


def test_a_port_that_was_active_and_is_not_any_more_is_counted_and_its_node_is_not_sound(watched: Watched) -> None:
    assert [value for _, value in _values(watched, "fleet: Ports down")] == [1.0]
    assert [value for _, value in _values(watched, UNSOUND_NODES)] == [PORT_DOWN]


def test_the_fleet_counts_all_nodes_and_gpus(watched: Watched) -> None:
    counted = {
        panel: _values(watched, f"fleet: {panel}")[0][1]
        for panel in ("Nodes responding", "Nodes not responding", "Disks filling up")
    }
    assert counted == {"Nodes responding": 1, "Nodes not responding": 0, "Disks filling up": 0}
    assert sum(_values(watched, f"fleet: GPUs {what}")[0][1] for what in ("responding", "not responding")) == 8
