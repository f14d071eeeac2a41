"""A server with a page of tests, and clients that knock at it."""

from __future__ import annotations

import contextlib
import http.client
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from collectors.prometheus.http_server import IDLE_S, MOST_CLIENTS, SLOW_S, Server, ServerConfig


class Notices(list[str]):
    """Hears and keeps."""

    def __call__(self, text: str) -> None:
        self.append(text)


class FakePage:
    """An application that shows which format it was asked for, and holds its answer back until it may go on."""

    def __init__(self) -> None:
        self.is_asked, self.may_go_on = threading.Event(), threading.Event()
        self.may_go_on.set()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        self.is_asked.set()
        assert self.may_go_on.wait(60)
        start_response("200 OK", [("Content-Type", "text/x-page")])
        return [f"page for {environ.get('HTTP_ACCEPT', '')}\n".encode()]


@contextlib.contextmanager
def serving(
    app: WSGIApplication | None = None,
    config: ServerConfig | Callable[[], ServerConfig] | None = None,
    *,
    slow_s: float = SLOW_S,
    idle_s: float = IDLE_S,
    most_clients: int = MOST_CLIENTS,
) -> Iterator[tuple[Server, Notices]]:
    """A server on a free port, and what it says."""
    notices = Notices()
    given = ServerConfig() if config is None else config
    server = Server(
        FakePage() if app is None else app,
        "127.0.0.1",
        0,
        config=(lambda: given) if isinstance(given, ServerConfig) else given,
        on_notice=notices,
        slow_s=slow_s,
        idle_s=idle_s,
        most_clients=most_clients,
    )
    try:
        yield server, notices
    finally:
        server.close()


def get(
    port: int, path: str = "/metrics", *, tls: ssl.SSLContext | None = None, accept: str = "", authorization: str = ""
) -> tuple[int, http.client.HTTPMessage, str]:
    """Status, headers and body of the answer; over TLS where that is given."""
    where = ("127.0.0.1", port)
    connection = (
        http.client.HTTPConnection(*where, timeout=30)
        if tls is None
        else http.client.HTTPSConnection(*where, timeout=30, context=tls)
    )
    try:
        connection.request("GET", path, headers={"Accept": accept, "Authorization": authorization})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()
