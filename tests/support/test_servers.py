"""A test whose server is not installed, and a proxy whose target disappears and returns."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from tests.slow.clusters.tcp_proxy import TcpProxy
from tests.support.servers import absent_server


def test_an_absent_server_skips_on_a_laptop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no Prometheus"):
        absent_server("no Prometheus")


def test_an_absent_server_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no Prometheus; CI installs it"):
        absent_server("no Prometheus")


def _ask(proxy: TcpProxy, target: socket.socket) -> socket.socket:
    """Return a connection through the proxy over which both sides have sent data."""
    client = socket.create_connection(("127.0.0.1", proxy.port), timeout=30)
    served, _ = target.accept()
    with served:
        client.sendall(b"question")
        assert served.recv(8, socket.MSG_WAITALL) == b"question"
        served.sendall(b"answer")
        assert client.recv(6, socket.MSG_WAITALL) == b"answer"
    return client


def test_what_is_gone_ends_its_connections_and_comes_back_at_its_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as target, closing(TcpProxy(target.getsockname()[1])) as proxy:
        with _ask(proxy, target) as client, proxy.gone():
            assert client.recv(1) == b""
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", proxy.port), timeout=30)
        _ask(proxy, target).close()
