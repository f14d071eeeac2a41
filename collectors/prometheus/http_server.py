"""The HTTP server of /metrics and /healthz, with limits on clients and optional TLS and authentication.

Knows no metric, no password and no file.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import socketserver
import ssl
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from collectors.errors import in_words

IDLE_S = 5.0
"""How long a client may send nothing, or read nothing, before it is disconnected."""
REQUEST_S = 30.0
"""How long a client is served in all, however active it is; Prometheus itself waits 10 s."""
MOST_CLIENTS = 64
"""How many clients are served at once; more are turned away, so that they cost no thread."""

_TURNED_AWAY = b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 5\r\n\r\ntoo many clients at once\n"

_PLAIN_ON_TLS = b"HTTP/1.0 400 Bad Request\r\n\r\nthis port speaks https\n"


class CannotListen(RuntimeError):
    """The server cannot listen at the address; the message says why."""


class PortTaken(CannotListen):
    """Another program listens at the port already."""


class MetricsPage(Protocol):
    """The content of /metrics."""

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return the body and its content type, for a request with this Accept header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """TLS, authentication and extra headers for a client; by default everybody is served, without TLS.

    admits: returns whether a request with this Authorization header is allowed; "" stands for none.
    headers: added to each response.
    """

    tls: ssl.SSLContext | None = None
    admits: Callable[[str], bool] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Server:
    """Serves /metrics and /healthz in threads of its own from its creation until `close`.

    port: 0 takes a free one, which `port` then names. config: called for each client, so that it may change.

    Raises:
        PortTaken: another program listens there.
        CannotListen: the host is not an address of this machine, or the port may not be used.
    """

    def __init__(
        self,
        page: MetricsPage,
        host: str,
        port: int,
        *,
        config: Callable[[], ServerConfig] = ServerConfig,
        on_notice: Callable[[str], None],
        request_s: float = REQUEST_S,
        most_clients: int = MOST_CLIENTS,
    ) -> None:
        where = f"port {port} of {host}"
        try:
            self._http = _Http(page, host, port, config, on_notice, request_s=request_s, most_clients=most_clients)
        except UnicodeError:  # A name with an empty part, a part of over 63 letters, or letters that no name may have.
            raise CannotListen(f"host {host!r} is no name of a machine and no address") from None
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortTaken(f"{where} is taken by another program") from None
            raise CannotListen(f"{where} cannot be served: {error.strerror or error}") from None
        except OverflowError:
            raise CannotListen(f"port {port} is none; it may be 0 to 65535") from None
        self.port: int = self._http.server_address[1]
        scheme = "http" if config().tls is None else "https"
        self.url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}/metrics"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.1,), name="exporter")
        self._thread.start()

    def close(self) -> None:
        """Accept no more clients, answer pending requests, and disconnect clients that have not sent theirs."""
        self._http.shutdown()
        self._thread.join()
        self._http.hang_up()
        self._http.server_close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Client:
    """A connected client. since_s: when it came, on the monotonic clock."""

    config: ServerConfig
    since_s: float


class _Http(ThreadingHTTPServer):
    daemon_threads = False  # So that server_close() waits for a running scrape.
    request_queue_size = 128  # Connections waiting to be accepted; after a restart more come than socketserver's 5.

    def __init__(
        self,
        page: MetricsPage,
        host: str,
        port: int,
        config: Callable[[], ServerConfig],
        on_notice: Callable[[str], None],
        *,
        request_s: float,
        most_clients: int,
    ) -> None:
        self.page = page
        self.on_notice = on_notice
        self._current_config = config
        self._request_s, self._most_clients = request_s, most_clients
        self._count = 0
        self._clients: dict[socket.socket, _Client] = {}
        self._is_hung_up = False
        self._clients_lock = threading.Lock()
        (self.address_family, *_, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        super().__init__(address[:2], _Handler)  # type: ignore[arg-type]

    def server_bind(self) -> None:
        """Bind without HTTPServer's look-up of the host's name, which can take long and is not used here."""
        socketserver.TCPServer.server_bind(self)

    def hang_up(self) -> None:
        """Stop reading from all clients: unfinished requests end, and requests already sent are still answered."""
        with self._clients_lock:
            self._is_hung_up = True
            for client in self._clients:
                _hear_no_more(client)

    def config_of(self, client: Any) -> ServerConfig:
        """Return the configuration that held when the client connected."""
        return self._clients[client].config

    def service_actions(self) -> None:
        """Disconnect clients whose time is over; socketserver calls this several times a second."""
        now_s = time.monotonic()
        with self._clients_lock:
            for client, about in self._clients.items():
                if now_s - about.since_s > self._request_s:
                    _hear_no_more(client, socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give the client a thread, or turn it away if too many are served."""
        with self._clients_lock:
            is_one_left = self._count < self._most_clients
            self._count += is_one_left
        if is_one_left:
            super().process_request(request, client_address)
            return
        self.on_notice(f"{self._most_clients} clients are served at once; those beyond are turned away")
        with contextlib.suppress(OSError):
            request.settimeout(0)
            request.send(_TURNED_AWAY)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one client, which `hang_up` and `service_actions` know meanwhile."""
        try:
            config = self._current_config()
            try:
                client = request
                if config.tls is not None:  # The handshake follows in `_Handler.handle`.
                    client = config.tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
            except OSError:  # It disconnected before it sent anything.
                self.shutdown_request(request)
                return
            with self._clients_lock:
                self._clients[client] = _Client(config=config, since_s=time.monotonic())
                if self._is_hung_up:
                    _hear_no_more(client)
            try:
                super().process_request_thread(client, client_address)
            finally:
                with self._clients_lock:
                    del self._clients[client]
        finally:
            with self._clients_lock:
                self._count -= 1

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a client's disconnection; report anything else, which is a bug of ours, in one line."""
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, (ConnectionError, TimeoutError, ssl.SSLError)):
            self.on_notice(f"a scrape failed: {in_words(error)}")


def _hear_no_more(client: socket.socket, how: int = socket.SHUT_RD) -> None:
    with contextlib.suppress(OSError):  # The client disconnected already.
        # Not SSLSocket.shutdown, which would go on in plain text.
        socket.socket.shutdown(client, how)


class _Handler(BaseHTTPRequestHandler):
    server: _Http
    timeout = IDLE_S
    server_version = "observatory"
    sys_version = ""

    def handle(self) -> None:
        """Answer one request. The TLS handshake is made here, in the client's own thread, where it delays no other."""
        if not isinstance(self.connection, ssl.SSLSocket) or self._shake_hands(self.connection):
            super().handle()

    def do_GET(self) -> None:
        admits = self.server.config_of(self.connection).admits
        path = self.path.partition("?")[0]
        if admits is not None and not admits(self.headers.get("Authorization", "")):
            self._answer(401, b"a name and its password are asked for\n", {"WWW-Authenticate": "Basic"})
        elif path == "/metrics":
            body, content_type = self.server.page.render(self.headers.get("Accept", ""))
            self._answer(200, body, {"Content-Type": content_type})
        elif path == "/healthz":
            self._answer(200, b"ok\n")
        else:
            self._answer(404, b"here are /metrics and /healthz\n")

    def do_HEAD(self) -> None:
        """Answer like GET, without the body."""
        self.do_GET()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  # The name is http.server's.
        """Log no requests."""

    def _shake_hands(self, client: ssl.SSLSocket) -> bool:
        """Make the TLS handshake and return whether it succeeded; report a failure, since clients rarely explain it."""
        try:
            client.do_handshake()
        except ssl.SSLEOFError:
            return False
        except ssl.SSLError as error:
            if error.reason == "HTTP_REQUEST":
                _answer_in_plain(client)
            self.server.on_notice(f"a client was not let in: TLS says {error.reason or error}")
            return False
        return True

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        fixed = {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(body))}
        for name, value in (fixed | dict(headers or {}) | dict(self.server.config_of(self.connection).headers)).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _answer_in_plain(client: ssl.SSLSocket) -> None:
    """Answer a client that sent plain HTTP to the TLS port, bypassing TLS.

    Its request is read first, since closing a socket with unread data resets the connection.
    """
    with contextlib.suppress(OSError):
        socket.socket.recv(client, 1 << 16)
        socket.socket.sendall(client, _PLAIN_ON_TLS)
