"""A server with a page of tests, and clients that knock at it."""

from __future__ import annotations

import contextlib
import http.client
import ssl
import threading
from collections.abc import Callable, Iterator

from collectors.prometheus.http_answers import MetricsPage
from collectors.prometheus.http_server import KEPT_S, MOST_CLIENTS, MOST_KEPT, Server, ServerConfig


class Notices(list[str]):
    """Hears and keeps."""

    def __call__(self, text: str) -> None:
        self.append(text)


class FakePage:
    """Shows which format it was asked for; holds its answer back until it may go on."""

    def __init__(self) -> None:
        self.is_asked, self.may_go_on = threading.Event(), threading.Event()
        self.may_go_on.set()

    def render(self, accept: str) -> tuple[bytes, str]:
        self.is_asked.set()
        assert self.may_go_on.wait(60)
        return f"page for {accept}\n".encode(), "text/x-page"


@contextlib.contextmanager
def serving(
    page: MetricsPage | None = None,
    config: ServerConfig | Callable[[], ServerConfig] | None = None,
    *,
    kept_s: float = KEPT_S,
    most_clients: int = MOST_CLIENTS,
    most_kept: int = MOST_KEPT,
) -> Iterator[tuple[Server, Notices]]:
    """A server on a free port, and what it says."""
    notices = Notices()
    given = ServerConfig() if config is None else config
    server = Server(
        FakePage() if page is None else page,
        "127.0.0.1",
        0,
        landing="<p>landed</p>",
        config=(lambda: given) if isinstance(given, ServerConfig) else given,
        on_notice=notices,
        kept_s=kept_s,
        most_clients=most_clients,
        most_kept=most_kept,
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
