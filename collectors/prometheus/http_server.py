"""The exporter's HTTP server: its pages and passwords, TLS, and limits on clients.

Each client has a thread, which also makes its TLS handshake, so a silent client delays no other. Knows no metric, no
password and no file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import make_wsgi_app
from prometheus_client.registry import Collector

from collectors.files import in_words
from collectors.sockets import listen, network_of

SLOW_S = 5.0
"""How long a client may take in total to send a request with the right password, or to read its answer."""
IDLE_S = 310.0
"""How long a connection without a request stays open. Prometheus closes its connections first, after 5 minutes."""
MOST_CLIENTS = 64
"""Maximum number of clients at once. A new client displaces the one that the server has waited for the longest."""
SHARE = 4
"""An address, or a user of this machine, gets at most one place in this many."""

_LOOK_S = 0.2
"""Time between two checks for expired clients, and the longest delay before `close` takes effect."""
_LEAVE_S = 0.01
"""The same interval while closing."""
_TURNED_AWAY = b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 5\r\n\r\ntoo many clients at once\n"
_PLAIN_ON_TLS = b"HTTP/1.0 400 Bad Request\r\n\r\nthis port speaks https\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """TLS, authentication and extra headers for a request; by default the server serves everybody, without TLS.

    tls: the same object until it changes. headers: added to each response.
    admits: returns whether a request with this Authorization header is allowed; "" stands for none.
    """

    tls: ssl.SSLContext | None = None
    admits: Callable[[str], bool] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


# Pages.


def pages(metrics: Collector, landing: str | None = None) -> WSGIApplication:
    """Return the application that serves /metrics, /healthz and, if given, a landing page in HTML at /."""
    metrics_app: WSGIApplication = make_wsgi_app(metrics)

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        match environ["PATH_INFO"]:
            case "/metrics":
                return metrics_app({**environ, "QUERY_STRING": ""}, start_response)
            case "/healthz":
                return _text(start_response, "200 OK", "ok\n")
            case "/" if landing is not None:
                start_response("200 OK", [("Content-Type", "text/html; charset=utf-8")])
                return [landing.encode()]
        also = "" if landing is None else "/, "
        return _text(start_response, "404 Not Found", f"no such page; this server has {also}/metrics and /healthz\n")

    return app


def with_passwords(app: WSGIApplication, admits: Callable[[str], bool]) -> WSGIApplication:
    """Return the application restricted to requests with a password. admits: see `ServerConfig`."""

    def guarded(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        # Liveness probes have no password, and /healthz reveals nothing else.
        if environ["PATH_INFO"] == "/healthz" or admits(environ.get("HTTP_AUTHORIZATION", "")):
            return app(environ, start_response)
        challenge = ("WWW-Authenticate", "Basic")
        return _text(start_response, "401 Unauthorized", "a user name and a password are required\n", challenge)

    return guarded


def _text(start_response: StartResponse, status: str, text: str, *headers: tuple[str, str]) -> Iterable[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8"), *headers])
    return [text.encode()]


def landing_page(version: str) -> str:
    """Return the page of /: a description of the program and links to its pages.

    The links are relative, so they also work behind a proxy that serves the page under a path.
    """
    return f"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>Parallel Observatory</title></head>
<body>
<h1>Parallel Observatory</h1>
<p>An exporter of distributed training, for Prometheus: GPUs, host, ranks of live runs, and results with intervals.
Version {escape(version)}. The source's folder docs has the documentation; docs/monitoring/exporter.md explains this
page.</p>
<ul>
<li><a href="metrics">/metrics</a>: all metrics, as text or OpenMetrics</li>
<li><a href="healthz">/healthz</a>: "ok" while it serves</li>
</ul>
</body>
</html>
"""


# Clients.


@dataclass(slots=True, kw_only=True, eq=False)
class _Client:
    """A connection.

    network: see `network_of`. tls: the TLS context of the connection; None before the handshake or without TLS.
    awaited_since_s: since when the server has waited for the client to send a request or read an answer; None while the
    answer is made. is_idle: nothing of the next request has arrived yet. is_over: the server has ended the connection.
    """

    socket: socket.socket
    network: str
    awaited_since_s: float | None
    tls: ssl.SSLContext | None = None
    is_idle: bool = False
    is_over: bool = False


class Server(ThreadingMixIn, TCPServer):
    """Serves an application in threads of its own from its creation until `close`.

    port: 0 takes a free port; the attribute `port` then has its number.
    config: called for each client and each request, so it may change. If TLS has changed since a connection was made,
    its next request is not answered and the connection is closed; the client then retries on a new connection.

    Raises:
        PortTaken: another program listens there.
        CannotListen: the host is not an address of this machine, or the port may not be used.
    """

    def __init__(
        self,
        app: WSGIApplication,
        host: str,
        port: int,
        *,
        config: Callable[[], ServerConfig] = ServerConfig,
        on_notice: Callable[[str], None],
        slow_s: float = SLOW_S,
        idle_s: float = IDLE_S,
        most_clients: int = MOST_CLIENTS,
    ) -> None:
        listener = listen(host, port)
        listener.setblocking(False)  # A client may have gone again before it is accepted.
        super().__init__(listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()  # socketserver's own socket, which is not bound.
        self.socket = listener
        self.base_environ: WSGIEnvironment = {}
        self.port: int = listener.getsockname()[1]
        scheme = "http" if config().tls is None else "https"
        self.url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}/metrics"
        self.app, self.config, self._on_notice = app, config, on_notice
        self._slow_s, self._idle_s, self._most_clients = slow_s, idle_s, most_clients
        self._lock = threading.Lock()  # Guards the clients and their fields.
        self._clients: dict[Any, _Client] = {}  # By the accepted socket.
        self._thread = threading.Thread(target=self.serve_forever, args=(_LOOK_S,), name="exporter")
        self._thread.start()

    def close(self) -> None:
        """Accept no more clients, answer pending requests, and disconnect all other clients."""
        self.shutdown()
        self._thread.join()
        with self._lock:
            for client in self._clients.values():
                _hang_up(client, socket.SHUT_RDWR if client.is_idle else socket.SHUT_RD)
        while self._clients:
            self.service_actions()
            time.sleep(_LEAVE_S)
        self.server_close()

    # In the thread that accepts clients.

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a client; if the process is out of file descriptors, displace another client for it."""
        try:
            client, address = super().get_request()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._on_notice(
                    f"a client waits: {os.strerror(error.errno).lower()}; raise this process's limit (ulimit -n)"
                )
                with self._lock:
                    _displace(self._clients.values())
                time.sleep(_LOOK_S)  # The client is still pending, so the selector would return at once.
            raise
        client.setblocking(True)
        return client, address

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Return whether there is a place for another client; if not, turn it away."""
        network = network_of(client_address, request.getsockname())
        share = max(1, self._most_clients // SHARE)
        with self._lock:
            clients = [client for client in self._clients.values() if not client.is_over]
            same = [client for client in clients if client.network == network]
            full = None
            if len(same) >= share and not _displace(same):
                full = f"{share} clients of {network}"
            elif len(same) < share and len(clients) >= self._most_clients and not _displace(clients):
                full = f"{self._most_clients} clients"
            if full is None:
                self._clients[request] = _Client(socket=request, network=network, awaited_since_s=time.monotonic())
                return True
        self._on_notice(f"{full} are served at once; more are turned away")
        # Never wait for the client, and read its data first, since closing a socket with unread data resets the
        # connection.
        with contextlib.suppress(OSError):
            request.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                request.recv(1 << 16)
            request.send(_TURNED_AWAY)
        return False

    def service_actions(self) -> None:
        """Disconnect the clients that have exceeded their time."""
        now_s = time.monotonic()
        with self._lock:
            for client in self._clients.values():
                limit_s = self._idle_s if client.is_idle else self._slow_s
                if client.awaited_since_s is not None and now_s - client.awaited_since_s >= limit_s:
                    _hang_up(client)

    # In the thread of a client.

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serve a client until its connection ends."""
        client = self._clients[request]
        if self._open(client):
            _Handler(client, client_address, self)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            client = self._clients.pop(request, None)
            opened = request if client is None else client.socket
            with contextlib.suppress(OSError):  # The client disconnected already.
                socket.socket.shutdown(opened, socket.SHUT_WR)
            opened.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an error in serving a client, unless the client disconnected."""
        error = sys.exc_info()[1]
        if isinstance(error, Exception) and not isinstance(error, (ConnectionError, ssl.SSLError)):
            self._on_notice(f"a scrape failed: {in_words(error)}")

    def await_client(self, client: _Client, *, is_idle: bool = False) -> None:
        """Record that the server waits from now on for the client to send a request or read its answer."""
        with self._lock:
            client.awaited_since_s, client.is_idle = time.monotonic(), is_idle

    def begin_answer(self, client: _Client) -> None:
        """Record that the server is answering the client's request."""
        with self._lock:
            client.awaited_since_s = None

    def _open(self, client: _Client) -> bool:
        """Make the TLS handshake, if TLS is on; return whether to serve the client.

        Failures are reported, since clients rarely explain them.
        """
        client.tls = self.config().tls
        if client.tls is None:
            return True
        with self._lock:
            try:
                tls_socket = client.tls.wrap_socket(client.socket, server_side=True, do_handshake_on_connect=False)
            except OSError:  # It disconnected before it sent anything.
                return False
            client.socket = tls_socket
        try:
            tls_socket.do_handshake()
        except ssl.SSLEOFError:
            return False
        except ssl.SSLError as error:
            if error.reason == "HTTP_REQUEST":
                # Answer in plain HTTP. Read the request first, since closing a socket with unread data resets the
                # connection.
                with contextlib.suppress(OSError):
                    socket.socket.recv(tls_socket, 1 << 16)
                    socket.socket.sendall(tls_socket, _PLAIN_ON_TLS)
            self._on_notice(f"a client was refused: TLS reports {error.reason or error}")
            return False
        return True


def _displace(clients: Iterable[_Client]) -> bool:
    """Disconnect the client that the server has waited for the longest; return False if all clients await answers.

    A scraper sends and reads at once, so clients that hold connections open displace only each other.
    """
    awaited = [
        (client.awaited_since_s, client)
        for client in clients
        if client.awaited_since_s is not None and not client.is_over
    ]
    if awaited:
        _hang_up(min(awaited, key=lambda pair: pair[0])[1])
    return bool(awaited)


def _hang_up(client: _Client, how: int = socket.SHUT_RDWR) -> None:
    """End the connection, which wakes the client's thread."""
    client.is_over = True
    with contextlib.suppress(OSError):  # The client disconnected already.
        # Not SSLSocket.shutdown, after which the socket would continue in plain text.
        socket.socket.shutdown(client.socket, how)


class _Handler(WSGIRequestHandler):
    """Answers a client's requests, one after the other."""

    protocol_version = "HTTP/1.1"
    server_version = "observatory"
    sys_version = ""
    disable_nagle_algorithm = True  # Otherwise a body waits until the client acknowledges the headers.
    server: Server

    def __init__(self, client: _Client, address: Any, server: Server) -> None:
        self._client = client
        super().__init__(client.socket, address, server)

    def handle(self) -> None:
        """Answer requests until the connection ends."""
        self.handle_one_request()
        while not self.close_connection:
            self.server.await_client(self._client, is_idle=True)
            if not self.rfile.peek(1):  # type: ignore[attr-defined]
                return
            self.server.await_client(self._client)
            self.handle_one_request()

    def _answer(self) -> None:
        config = self.server.config()
        if config.tls is not self._client.tls:
            self.close_connection = True
            return
        # The server does not read a request's body, which would then look like the next request.
        has_body = "Content-Length" in self.headers or "Transfer-Encoding" in self.headers
        if has_body or self.request_version == "HTTP/1.0":
            self.close_connection = True
        app = self._admitted if config.admits is None else with_passwords(self._admitted, config.admits)
        started: list[tuple[str, list[tuple[str, str]]]] = []

        def start_response(status: str, headers: list[tuple[str, str]], *_: object) -> Callable[[bytes], object]:
            started.append((status, headers))
            return self.wfile.write

        # The pages do not handle HEAD; its answer is GET's without the body.
        body = b"".join(app({**self.get_environ(), "REQUEST_METHOD": "GET"}, start_response))
        self._send(*started[-1], body)

    do_GET = do_HEAD = _answer  # noqa: N815  # The names that http.server calls.

    def _admitted(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Serve an admitted request. Until then others may displace the client, which may be guessing passwords."""
        self.server.begin_answer(self._client)
        return self.server.app(environ, start_response)

    def _send(self, status: str, headers: list[tuple[str, str]], body: bytes) -> None:
        """Send an answer; close the connection after an error."""
        code, _, reason = status.partition(" ")
        self.close_connection |= code != "200"
        self.server.await_client(self._client)
        self.send_response(int(code), reason)
        for name, value in (*headers, ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def end_headers(self) -> None:
        for name, value in self.server.config().headers.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  # The name is http.server's.
        """Log no requests."""
