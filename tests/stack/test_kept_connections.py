"""A real Prometheus scrapes again and again on one connection, compressed, and a new certificate costs it no scrape."""

from __future__ import annotations

import contextlib
import select
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import Metric as Family
from prometheus_client.registry import Collector

from collectors.prometheus.http_server import Server, ServerConfig, pages
from tests.support.certificates import make_authority, make_certificate
from tests.support.servers import PrometheusServer, run_prometheus

pytestmark = [pytest.mark.stack, pytest.mark.timeout(120)]

SCRAPES = 4


class CountingPage(Collector):
    """A counter of how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def collect(self) -> Iterator[Family]:
        self.asked += 1
        family = Family("asked", "How often it was asked.", "counter")
        family.add_sample("asked_total", {}, self.asked)
        yield family


class Forwarder(socketserver.ThreadingTCPServer):
    """Passes bytes on between clients and a server, counts the clients, and keeps what was answered."""

    daemon_threads = False

    def __init__(self, port: int) -> None:
        self.target, self.clients, self.answers = port, 0, b""
        self.is_over = threading.Event()
        super().__init__(("127.0.0.1", 0), _Passing)


class _Passing(socketserver.BaseRequestHandler):
    server: Forwarder

    def handle(self) -> None:
        self.server.clients += 1
        client: socket.socket = self.request
        with socket.create_connection(("127.0.0.1", self.server.target)) as target:
            while not self.server.is_over.is_set():
                readable, _, _ = select.select([client, target], [], [], 0.05)
                for side in readable:
                    data = side.recv(1 << 16)
                    if not data:
                        return
                    if side is target:
                        self.server.answers += data
                    (client if side is target else target).sendall(data)


@contextlib.contextmanager
def _forwarding(port: int) -> Iterator[Forwarder]:
    with Forwarder(port) as forwarder:
        thread = threading.Thread(target=forwarder.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield forwarder
        finally:
            forwarder.is_over.set()
            forwarder.shutdown()
            thread.join()


@contextlib.contextmanager
def _serving(page: CountingPage, config: Callable[[], ServerConfig]) -> Iterator[Server]:
    server = Server(pages(page), "127.0.0.1", 0, config=config, on_notice=lambda text: None)
    try:
        yield server
    finally:
        server.close()


def _wait_until_asked(page: CountingPage, times: int) -> None:
    until = time.monotonic() + 60
    while page.asked < times:
        assert time.monotonic() < until, f"it was scraped {page.asked} times"
        time.sleep(0.1)


def _were_all_good(prometheus: PrometheusServer) -> bool:
    return {series["value"][1] for series in prometheus.query("min_over_time(up[10m])")} == {"1"}


def test_scrapes_share_one_connection_and_are_compressed() -> None:
    page = CountingPage()
    with (
        _serving(page, ServerConfig) as server,
        _forwarding(server.port) as forwarder,
        run_prometheus(f"127.0.0.1:{forwarder.server_address[1]}") as prometheus,
    ):
        _wait_until_asked(page, SCRAPES)
        assert _were_all_good(prometheus)
        assert prometheus.query("asked_total")
        assert forwarder.clients == 1
        assert forwarder.answers.count(b"Content-Encoding: gzip\r\n") >= SCRAPES - 1


def test_a_new_certificate_costs_no_scrape(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "authority")
    certificates = [make_certificate(tmp_path, name, authority).server() for name in ("old", "new")]
    job = {"scheme": "https", "tls_config": {"ca_file": str(authority.file)}}
    page, config = CountingPage(), [ServerConfig(tls=certificates[0])]
    with (
        _serving(page, lambda: config[-1]) as server,
        run_prometheus(f"127.0.0.1:{server.port}", jobs={"observatory": job}) as prometheus,
    ):
        _wait_until_asked(page, 2)
        config.append(ServerConfig(tls=certificates[1]))
        _wait_until_asked(page, 2 + SCRAPES)
        assert _were_all_good(prometheus)
