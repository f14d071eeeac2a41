"""A real Prometheus scrapes the nodes that have a file of targets, from when they come until they go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.serve.service_discovery import Target, listed, make_targets_folder
from collectors.prometheus.exposition import Exporter
from collectors.prometheus.http_server import Server, ServerConfig, pages
from tests.support.certificates import make_authority, make_certificate
from tests.support.servers import PrometheusServer, run_prometheus
from tests.waiting import wait_until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(120)]


@pytest.fixture
def nodes() -> Iterator[list[str]]:
    """Addresses of two nodes that serve."""
    servers = [Server(pages(Exporter((), (), on_notice=print)), "127.0.0.1", 0, on_notice=print) for _ in range(2)]
    try:
        yield [f"127.0.0.1:{server.port}" for server in servers]
    finally:
        for server in servers:
            server.close()


def _up(prometheus: PrometheusServer) -> dict[str, dict[str, str]]:
    """The labels of each node that answers, by its address."""
    return {one["metric"]["instance"]: one["metric"] for one in prometheus.query("up == 1")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "targets"
    make_targets_folder(folder)
    return folder


def _jobs(folder: Path, **more: object) -> dict[str, dict[str, object]]:
    # Once an hour: what it learns sooner, it learns from files that come, change and go.
    return {"nodes": {"file_sd_configs": [{"files": [f"{folder}/*.json"], "refresh_interval": "1h"}], **more}}


def test_nodes_are_scraped_from_when_they_come_until_they_go(folder: Path, nodes: list[str]) -> None:
    with run_prometheus(jobs=_jobs(folder)) as prometheus, ExitStack() as stack:
        stack.enter_context(listed(Target(folder, nodes[0], {"rack": "1"}), on_notice=print))
        with listed(Target(folder, nodes[1], {"rack": "2"}), on_notice=print):
            wait_until(lambda: len(_up(prometheus)) == 2)
            assert {labels["rack"] for labels in _up(prometheus).values()} == {"1", "2"}
            assert {*_up(prometheus)[nodes[0]]} == {"__name__", "instance", "job", "rack"}
        wait_until(lambda: list(_up(prometheus)) == [nodes[0]])


def test_no_read_of_a_file_fails_while_nodes_come_and_change(folder: Path, nodes: list[str]) -> None:
    Target(folder, nodes[0], {}).show()
    with run_prometheus(jobs=_jobs(folder)) as prometheus:
        wait_until(lambda: list(_up(prometheus)) == [nodes[0]])
        Target(folder, f"127.0.0.1:{prometheus.port}", {}).show()
        for number in range(100):
            Target(folder, nodes[1], {"number": str(number), "filling": "x" * 5000}).show()
        wait_until(lambda: len(_up(prometheus)) == 3)
        wait_until(lambda: bool(prometheus.query("prometheus_sd_file_read_errors_total")))
        errors = prometheus.query("prometheus_sd_file_read_errors_total")
    assert [series["value"][1] for series in errors] == ["0"]


def test_a_node_says_itself_that_it_speaks_tls(folder: Path, tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "authority")
    config = ServerConfig(tls=make_certificate(tmp_path, "server", authority).server())
    server = Server(pages(Exporter((), (), on_notice=print)), "127.0.0.1", 0, config=lambda: config, on_notice=print)
    address = f"127.0.0.1:{server.port}"
    jobs = _jobs(folder, tls_config={"ca_file": str(authority.file)})
    try:
        with (
            listed(Target(folder, address, {"__scheme__": "https"}), on_notice=print),
            run_prometheus(jobs=jobs) as prometheus,
        ):
            wait_until(lambda: list(_up(prometheus)) == [address])
    finally:
        server.close()
