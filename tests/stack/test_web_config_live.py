"""A real Prometheus is let in with what the web configuration file asks for, and with nothing less."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from bench.serve.web_config import WebGuard
from collectors.metrics.host import METRICS
from collectors.metrics.metric import Sample
from collectors.prometheus.exposition import Exporter, Owned
from collectors.prometheus.http_server import Server, pages
from tests.support.certificates import make_authority, make_certificate
from tests.support.servers import run_prometheus

pytestmark = [pytest.mark.stack, pytest.mark.timeout(120)]

GAUGE = next(metric for metric in METRICS if metric.kind == "gauge" and not metric.labels)
WORD = {"username": "ann", "password": "word"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A web configuration that asks for a password and a certificate over TLS, with all files that it takes."""
    folder = tmp_path_factory.mktemp("web")
    authority = make_authority(folder, "authority")
    make_certificate(folder, "server", authority)
    make_certificate(folder, "own", authority)
    make_certificate(folder, "foreign", make_authority(folder, "stranger"))
    hashed = bcrypt.hashpw(WORD["password"].encode(), bcrypt.gensalt(10)).decode()
    (folder / "web.yml").write_text(
        "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"
        "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: authority.crt\n"
        f"basic_auth_users:\n  ann: {hashed.replace('$2b$', '$2y$')}\n"
    )
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    def source() -> list[Owned]:
        return [(Sample(GAUGE.name, 0.5), {})]

    guard = WebGuard(folder / "web.yml", on_notice=print)
    served = Server(
        pages(Exporter(METRICS, [source], on_notice=print)),
        "127.0.0.1",
        0,
        config=guard.config,
        on_notice=lambda text: None,
    )
    try:
        yield served
    finally:
        served.close()


def _jobs(folder: Path) -> dict[str, dict[str, Any]]:
    """One that has all that is asked for, and some that lack one thing each."""
    trusted = {"ca_file": str(folder / "authority.crt")}
    own, foreign = (
        {**trusted, "cert_file": str(folder / f"{name}.crt"), "key_file": str(folder / f"{name}.key")}
        for name in ("own", "foreign")
    )
    whole = {"scheme": "https", "basic_auth": WORD, "tls_config": own}
    return {
        "whole": whole,
        "plain": {"basic_auth": WORD},
        "no password": {"scheme": "https", "tls_config": own},
        "wrong password": {**whole, "basic_auth": {**WORD, "password": "else"}},
        "no certificate": {**whole, "tls_config": trusted},
        "foreign certificate": {**whole, "tls_config": foreign},
        "no trust": {**whole, "tls_config": {**own, "ca_file": str(folder / "stranger.crt")}},
    }


def test_a_prometheus_scrapes_with_all_that_is_asked_for_and_not_without(folder: Path, server: Server) -> None:
    jobs = _jobs(folder)
    with run_prometheus(f"127.0.0.1:{server.port}", jobs=jobs) as prometheus:
        until = time.monotonic() + 60
        # On a busy machine a scrape takes longer than it may; the next one does not.
        while len(prometheus.query("up")) < len(jobs) or not prometheus.query('up{job="whole"} == 1'):
            assert time.monotonic() < until, "not all jobs have scraped, or the one that may has not succeeded"
            time.sleep(0.2)
        up = {series["metric"]["job"]: series["value"][1] for series in prometheus.query("up")}
        stored = {series["metric"]["job"]: series["value"][1] for series in prometheus.query(GAUGE.name)}
    assert up == dict.fromkeys(jobs, "0") | {"whole": "1"}
    assert stored == {"whole": "0.5"}
