"""Clients come in on the terms that are set, disturb each other in nothing, and are let go in order."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import threading
from collections.abc import Iterable, Iterator
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest

from collectors.prometheus.http_server import Server, ServerConfig
from collectors.sockets import CannotListen, PortTaken
from tests.collectors.knocking import FakePage, Notices, get, serving
from tests.support.certificates import Certificate, make_authority, make_certificate


class BrokenPage(FakePage):
    """Fails when it is asked for the first time."""

    def __init__(self) -> None:
        super().__init__()
        self._is_broken = True

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if self._is_broken:
            self._is_broken = False
            raise ZeroDivisionError("no")
        return super().__call__(environ, start_response)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as (server, _):
        yield server


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory, authority: Certificate) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("certificate"), "server", authority)


def _trickle(client: socket.socket, until_ended: threading.Thread) -> None:
    """A byte every half second: never so long silent that it would be let go for that."""
    for _ in range(60):
        until_ended.join(timeout=0.5)
        if not until_ended.is_alive():
            return
        with contextlib.suppress(ConnectionError):
            client.sendall(b"x")
    pytest.fail("the server does not end")


def test_the_page_is_answered_in_the_format_that_is_asked_for(server: Server) -> None:
    status, headers, body = get(server.port, "/metrics?x=1", accept="text/y")
    assert (status, headers["Content-Type"], body) == (200, "text/x-page", "page for text/y\n")


def test_a_port_is_served_by_one_server_only(server: Server) -> None:
    with pytest.raises(PortTaken, match=rf"port {server.port} of 127.0.0.1 is taken"):
        Server(FakePage(), "127.0.0.1", server.port, on_notice=Notices())


def test_a_port_is_free_again_at_once() -> None:
    with serving() as (first, _):
        get(first.port)
    second = Server(FakePage(), "127.0.0.1", first.port, on_notice=Notices())
    second.close()
    assert second.port == first.port


def test_an_address_that_is_not_ours_is_refused() -> None:
    with pytest.raises(CannotListen, match=r"cannot listen at 192\.0\.2\.1"):
        Server(FakePage(), "192.0.2.1", 0, on_notice=Notices())


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_shutdown_lets_a_scrape_that_runs_come_to_its_end(
    is_encrypted: bool, authority: Certificate, certificate: Certificate
) -> None:
    page = FakePage()
    page.may_go_on.clear()
    answers: list[tuple[int, http.client.HTTPMessage, str]] = []
    tls = authority.client() if is_encrypted else None
    config = ServerConfig(tls=certificate.server() if tls else None)
    server = Server(page, "127.0.0.1", 0, config=lambda: config, on_notice=Notices())
    scrape = threading.Thread(target=lambda: answers.append(get(server.port, tls=tls, accept="text/y")))
    scrape.start()
    assert page.is_asked.wait(60)
    closing = threading.Thread(target=server.close)
    closing.start()
    closing.join(0.3)
    assert closing.is_alive()
    page.may_go_on.set()
    closing.join(60)
    scrape.join(60)
    assert not closing.is_alive()
    assert [answer[::2] for answer in answers] == [(200, "page for text/y\n")]


def test_a_client_that_goes_away_and_one_that_speaks_no_http_disturb_nobody() -> None:
    with serving() as (server, notices):
        for data in (b"", b"\x00\xff\r\n\r\n", b"GET /metrics HTTP/1.1\r\n"):
            with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
                client.sendall(data)
        assert get(server.port)[0] == 200
    assert notices == []


def test_a_page_that_breaks_is_said_and_the_next_scrape_is_answered() -> None:
    with serving(BrokenPage()) as (server, notices):
        with pytest.raises(http.client.RemoteDisconnected):
            get(server.port)
        assert get(server.port)[::2] == (200, "page for \n")
    assert notices == ["a scrape failed: a bug of ours, ZeroDivisionError: no"]


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_client_that_trickles_does_not_keep_the_server_from_ending(
    is_encrypted: bool, certificate: Certificate
) -> None:
    config = ServerConfig(tls=certificate.server() if is_encrypted else None)
    server = Server(FakePage(), "127.0.0.1", 0, config=lambda: config, on_notice=print)
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        # The beginning of a request, or of a TLS record that is 512 bytes long.
        client.sendall(b"\x16\x03\x01\x02\x00\x01" if is_encrypted else b"GET /healthz HTTP/1.1\r\nX: ")
        closing = threading.Thread(target=server.close, daemon=True)
        closing.start()
        _trickle(client, until_ended=closing)


def test_a_client_that_is_only_just_taken_up_does_not_keep_the_server_from_ending() -> None:
    is_asked, may_go_on = threading.Event(), threading.Event()

    def config() -> ServerConfig:
        if threading.current_thread() is not threading.main_thread():
            is_asked.set()
            assert may_go_on.wait(60)
        return ServerConfig()

    server = Server(FakePage(), "127.0.0.1", 0, config=config, on_notice=print)
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        assert is_asked.wait(60)
        closing = threading.Thread(target=server.close, daemon=True)
        closing.start()
        closing.join(0.5)  # It hangs up on all whom it knows.
        may_go_on.set()
        _trickle(client, until_ended=closing)


def test_headers_of_the_terms_are_in_every_answer() -> None:
    config = ServerConfig(admits=bool, headers={"X-Frame-Options": "deny"})
    with serving(config=config) as (server, _):
        refused, admitted = get(server.port), get(server.port, authorization="x")
    assert [(status, headers["X-Frame-Options"]) for status, headers, _ in (refused, admitted)] == [
        (401, "deny"),
        (200, "deny"),
    ]


def test_new_terms_hold_for_the_next_client() -> None:
    config = [ServerConfig()]
    server = Server(FakePage(), "127.0.0.1", 0, config=lambda: config[-1], on_notice=Notices())
    try:
        assert get(server.port)[0] == 200
        config.append(ServerConfig(admits=lambda given: False))
        assert get(server.port)[0] == 401
    finally:
        server.close()


def _drip(client: socket.socket) -> None:
    """Send a byte each tenth of a second, so that it is never silent for long, until the server hangs up."""
    client.settimeout(0.1)
    for _ in range(600):
        try:
            client.sendall(b"x")
            if not client.recv(1):
                return
        except TimeoutError:
            continue
        except ConnectionError:
            return
    pytest.fail("it is served for ever")


def test_a_client_that_never_comes_to_an_end_is_let_go() -> None:
    with (
        serving(slow_s=0.5) as (server, _),
        socket.create_connection(("127.0.0.1", server.port), timeout=30) as client,
    ):
        _drip(client)


def test_a_client_that_never_comes_to_the_end_of_its_handshake_is_let_go(certificate: Certificate) -> None:
    with (
        serving(config=ServerConfig(tls=certificate.server()), slow_s=0.5) as (server, _),
        socket.create_connection(("127.0.0.1", server.port), timeout=30) as client,
    ):
        client.sendall(b"\x16\x03\x01\x02\x00\x01")  # The beginning of a TLS record that is 512 bytes long.
        _drip(client)


def test_a_client_that_reads_no_answer_is_let_go() -> None:
    def large(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", [])
        return [b"x" * (64 << 20)]

    with serving(large, slow_s=0.5) as (server, notices), socket.socket() as client:
        client.settimeout(30)
        client.connect(("127.0.0.1", server.port))
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        threading.Event().wait(1.5)
        received = 0
        with contextlib.suppress(ConnectionError):
            while data := client.recv(1 << 20):
                received += len(data)
    assert received < 64 << 20
    assert notices == []


def test_clients_beyond_the_most_are_turned_away_and_those_before_are_served() -> None:
    page, notices = FakePage(), Notices()
    page.may_go_on.clear()
    server = Server(page, "127.0.0.1", 0, on_notice=notices, most_clients=8)
    answers: list[int] = []
    early = [threading.Thread(target=lambda: answers.append(get(server.port)[0])) for _ in range(2)]
    try:
        for thread in early:
            thread.start()
            assert page.is_asked.wait(30)
            page.is_asked.clear()
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
            assert client.recv(100).startswith(b"HTTP/1.0 503 Service Unavailable")
        page.may_go_on.set()
        for thread in early:
            thread.join()
        assert answers == [200, 200]
        assert any(get(server.port)[0] == 200 for _ in range(100))  # Their threads may take a moment to end.
        ours = f"uid {os.getuid()} on this machine"
        assert set(notices) == {f"2 clients of {ours} are served at once; more are turned away"}
    finally:
        page.may_go_on.set()
        server.close()


@pytest.mark.parametrize("host", ["a..b", "x" * 70, "\udcff"])
def test_a_host_that_is_no_name_cannot_be_listened_on(host: str) -> None:
    with pytest.raises(CannotListen):
        Server(FakePage(), host, 0, on_notice=Notices())
