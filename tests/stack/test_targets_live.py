"""A real Prometheus scrapes the nodes that are in the list, from when they come until they go."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.exporter.service_discovery import Targets, listed
from collectors.prometheus.exposition import Exporter
from collectors.prometheus.http_server import Server, ServerConfig, pages
from tests.support.certificates import make_authority, make_certificate
from tests.support.servers import PrometheusServer, run_prometheus

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


def _wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until, "it never became so"
        time.sleep(0.2)


def _up(prometheus: PrometheusServer) -> dict[str, dict[str, str]]:
    """The labels of each node that answers, by its address."""
    return {one["metric"]["instance"]: one["metric"] for one in prometheus.query("up == 1")}


def _jobs(path: Path, **more: object) -> dict[str, dict[str, object]]:
    # Once an hour: what it learns sooner, it learns from the file being replaced.
    return {"nodes": {"file_sd_configs": [{"files": [str(path)], "refresh_interval": "1h"}], **more}}


def test_nodes_are_scraped_from_when_they_come_until_they_go(tmp_path: Path, nodes: list[str]) -> None:
    path = tmp_path / "targets.json"
    path.write_text("[]")
    with run_prometheus(jobs=_jobs(path)) as prometheus, ExitStack() as stack:
        stack.enter_context(listed(path, nodes[0], {"rack": "1"}, on_notice=print))
        with listed(path, nodes[1], {"rack": "2"}, on_notice=print):
            _wait_until(lambda: len(_up(prometheus)) == 2)
            assert {labels["rack"] for labels in _up(prometheus).values()} == {"1", "2"}
            assert {*_up(prometheus)[nodes[0]]} == {"__name__", "instance", "job", "rack"}
        _wait_until(lambda: list(_up(prometheus)) == [nodes[0]])


def test_no_read_of_the_list_fails_while_nodes_come_and_go(tmp_path: Path, nodes: list[str]) -> None:
    path = tmp_path / "targets.json"
    targets = Targets(path, on_notice=print)
    targets.add(nodes[0], {})
    with run_prometheus(jobs=_jobs(path)) as prometheus:
        _wait_until(lambda: list(_up(prometheus)) == [nodes[0]])
        targets.add(f"127.0.0.1:{prometheus.port}", {})
        for number in range(100):
            targets.add(nodes[1], {"number": str(number), "filling": "x" * 5000})
            targets.remove(nodes[1])
        targets.add(nodes[1], {})
        _wait_until(lambda: len(_up(prometheus)) == 3)
        _wait_until(lambda: bool(prometheus.query("prometheus_sd_file_read_errors_total")))
        errors = prometheus.query("prometheus_sd_file_read_errors_total")
    assert [series["value"][1] for series in errors] == ["0"]


def test_a_node_says_itself_that_it_speaks_tls(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "authority")
    config = ServerConfig(tls=make_certificate(tmp_path, "server", authority).server())
    server = Server(pages(Exporter((), (), on_notice=print)), "127.0.0.1", 0, config=lambda: config, on_notice=print)
    path = tmp_path / "targets.json"
    address = f"127.0.0.1:{server.port}"
    jobs = _jobs(path, tls_config={"ca_file": str(authority.file)})
    try:
        with (
            listed(path, address, {"__scheme__": "https"}, on_notice=print),
            run_prometheus(jobs=jobs) as prometheus,
        ):
            _wait_until(lambda: list(_up(prometheus)) == [address])
    finally:
        server.close()
