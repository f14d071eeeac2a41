"""A connection is kept between requests on the terms of each, costs nobody a place, and ends in order."""

from __future__ import annotations

import contextlib
import http.client
import os
import resource
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from collectors.prometheus.http_server import Server, ServerConfig, pages
from tests.collectors.knocking import FakePage, Notices, get, serving
from tests.support.certificates import Certificate, make_authority, make_certificate
from tests.waiting import wait_until

SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory, authority: Certificate) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("certificate"), "server", authority)


class Kept:
    """A client that asks on one connection and never connects again by itself."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="127.0.0.1")

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, authorization: str = "", request: bytes = SCRAPE) -> int:
        """The status of the answer, which is read whole."""
        self.socket.sendall(request + f"Authorization: {authorization}\r\n\r\n".encode())
        return self.read()

    def read(self) -> int:
        """The status of the next answer, which is read whole."""
        response = http.client.HTTPResponse(self.socket)
        response.begin()
        response.read()
        return response.status

    @property
    def is_ended(self) -> bool:
        """Whether the server has closed the connection; waits for it."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True


def _serving_threads() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_connection_serves_one_request_after_the_other(
    is_encrypted: bool, authority: Certificate, certificate: Certificate
) -> None:
    tls = authority.client() if is_encrypted else None
    config = ServerConfig(tls=certificate.server() if is_encrypted else None)
    with serving(config=config) as (server, notices), Kept(server.port, tls) as client:
        assert [client.ask() for _ in range(5)] == [200] * 5
    assert notices == []


def test_an_idle_connection_makes_place_for_a_client_that_asks() -> None:
    with serving(most_clients=1) as (server, notices), Kept(server.port) as first:
        assert first.ask() == 200
        with Kept(server.port) as second:
            assert second.ask() == 200
        assert first.is_ended
    assert notices == []


def test_of_too_many_connections_the_longest_idle_is_closed() -> None:
    with serving(most_clients=8) as (server, _), contextlib.ExitStack() as stack:
        clients = []
        for _ in range(3):  # Of one user a quarter of all have a place.
            clients.append(stack.enter_context(Kept(server.port)))
            assert clients[-1].ask() == 200
        assert clients[0].is_ended
        assert [client.ask() for client in clients[1:]] == [200, 200]


def test_a_connection_that_is_idle_for_too_long_is_closed() -> None:
    with serving(idle_s=0.2) as (server, _), Kept(server.port) as client:
        assert client.ask() == 200
        assert client.is_ended


def test_a_password_that_is_revoked_no_longer_opens_a_kept_connection() -> None:
    known = {"old"}
    config = ServerConfig(admits=known.__contains__)
    with serving(config=config) as (server, _), Kept(server.port) as client:
        assert client.ask("old") == 200
        known.clear()
        assert client.ask("old") == 401
        assert client.is_ended


def test_a_password_opens_no_more_than_the_request_that_has_it() -> None:
    config = ServerConfig(admits=lambda given: given == "right")
    with serving(config=config) as (server, _), Kept(server.port) as client:
        assert [client.ask("right"), client.ask("")] == [200, 401]


def test_a_connection_whose_certificate_was_replaced_is_closed_unanswered(
    authority: Certificate, certificate: Certificate, tmp_path: Path
) -> None:
    page = FakePage()
    config = [ServerConfig(tls=certificate.server())]
    with serving(page, lambda: config[-1]) as (server, notices), Kept(server.port, authority.client()) as client:
        assert client.ask() == 200
        page.is_asked.clear()
        config.append(ServerConfig(tls=make_certificate(tmp_path, "newer", authority).server()))
        client.socket.sendall(SCRAPE + b"\r\n")
        assert client.is_ended
        assert not page.is_asked.is_set()
        assert get(server.port, tls=authority.client())[0] == 200
    assert notices == []


@pytest.mark.parametrize(
    "request_head",
    [
        b"GET /none HTTP/1.1\r\n",
        b"POST /metrics HTTP/1.1\r\n",
        b"GET /metrics HTTP/1.0\r\nConnection: keep-alive\r\n",
        SCRAPE + b"Connection: close\r\n",
        SCRAPE + b"Content-Length: 30\r\n",
        SCRAPE + b"Transfer-Encoding: chunked\r\n",
    ],
)
def test_an_error_an_old_client_and_a_body_end_the_connection(request_head: bytes) -> None:
    with serving(pages(CollectorRegistry())) as (server, _), Kept(server.port) as client:
        smuggled = SCRAPE + b"\r\n"
        client.socket.sendall(request_head + b"\r\n" + smuggled)
        answers = b""
        while data := client.socket.recv(1 << 16):
            answers += data
    assert answers.count(b"HTTP/1.1 ") == 1
    assert b"\r\nConnection: close\r\n" in answers


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_idle_connections_do_not_keep_the_server_from_ending(
    is_encrypted: bool, authority: Certificate, certificate: Certificate
) -> None:
    tls = authority.client() if is_encrypted else None
    config = ServerConfig(tls=certificate.server() if is_encrypted else None)
    server = Server(FakePage(), "127.0.0.1", 0, config=lambda: config, on_notice=Notices())
    with Kept(server.port, tls) as client:
        assert client.ask() == 200
        closing = threading.Thread(target=server.close)
        closing.start()
        assert client.is_ended
        closing.join(30)
        assert not closing.is_alive()


def test_a_client_that_trickles_on_a_kept_connection_is_let_go() -> None:
    with serving(slow_s=0.5) as (server, _), Kept(server.port) as client:
        assert client.ask() == 200
        client.socket.settimeout(0.1)
        for _ in range(600):  # A byte each tenth of a second: it is never silent for long.
            try:
                client.socket.sendall(b"x")
                if not client.socket.recv(1):
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("it is served for ever")


def test_clients_that_vanish_while_they_are_kept_leave_nothing() -> None:
    with serving() as (server, notices):
        for _ in range(5):
            with Kept(server.port) as client:
                assert client.ask() == 200
        assert get(server.port)[0] == 200
    wait_until(lambda: _serving_threads() == 0)
    assert notices == []


@contextlib.contextmanager
def _without_free_files() -> Iterator[None]:
    """This process can open no more files; connections that are there stay."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = [os.open(os.devnull, os.O_RDONLY)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(opened[0] + 50, soft), hard))
        with contextlib.suppress(OSError):
            while True:
                opened.append(os.dup(opened[0]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for file in opened:
            os.close(file)


def test_where_no_file_can_be_opened_an_idle_connection_makes_place() -> None:
    with serving() as (server, notices), Kept(server.port) as kept, socket.socket() as newcomer:
        assert kept.ask() == 200
        newcomer.settimeout(30)
        with _without_free_files():
            newcomer.connect(("127.0.0.1", server.port))
            newcomer.sendall(SCRAPE + b"\r\n")
            assert newcomer.recv(1 << 16).startswith(b"HTTP/1.1 200 OK\r\n")
        assert kept.is_ended
    assert set(notices) == {"a client waits: too many open files; raise this process's limit (ulimit -n)"}
