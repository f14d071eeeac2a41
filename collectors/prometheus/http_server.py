"""The exporter's HTTP server: connections that are kept between scrapes, limits on clients, TLS and authentication.

One thread accepts clients and keeps the idle connections; a request has a thread of its own while it is answered.
Knows no metric, no password and no file. What is answered: http_answers.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from collectors.errors import in_words
from collectors.prometheus.http_answers import Answer, MetricsPage, Pages, answer, refusal
from collectors.sockets import listen, network_of

IDLE_S = 5.0
"""How long a client may send nothing of its request, or read nothing of the answer, before it is disconnected."""
SLOW_S = 5.0
"""How long a client may take to send a request with the right password, or to read its answer, byte by byte or not."""
REQUEST_S = 30.0
"""How long a client is served at a stretch, however active it is; Prometheus itself waits 10 s."""
MOST_CLIENTS = 64
"""How many clients are served at once; more are turned away, so that they cost no thread."""
SHARE = 4
"""An address, or a user of this machine, has this part of these places at most."""
KEPT_S = 310.0
"""How long a connection is kept without a request. Prometheus closes its own after 5 minutes, so that it is first."""
MOST_KEPT = 64
"""How many idle connections are kept; beyond, the one that has been idle longest is closed."""

_NO_FILES_S = 0.1
"""Pause before clients are accepted again, where this process may open no more files."""

_TURNED_AWAY = b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 5\r\n\r\ntoo many clients at once\n"

_PLAIN_ON_TLS = b"HTTP/1.0 400 Bad Request\r\n\r\nthis port speaks https\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """TLS, authentication and extra headers for a request; by default everybody is served, without TLS.

    tls: the same object for as long as it holds. headers: added to each response.
    admits: returns whether a request with this Authorization header is allowed; "" stands for none.
    """

    tls: ssl.SSLContext | None = None
    admits: Callable[[str], bool] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Server:
    """Serves /metrics, /healthz and the landing page in threads of its own from its creation until `close`.

    port: 0 takes a free one, which `port` then names. landing: see `Pages`.
    config: called for each client and each request, so that it may change. A kept connection whose TLS has been
    replaced meanwhile is closed at its next request, unanswered; the client then asks again on a new one.

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
        landing: str | None = None,
        config: Callable[[], ServerConfig] = ServerConfig,
        on_notice: Callable[[str], None],
        slow_s: float = SLOW_S,
        request_s: float = REQUEST_S,
        most_clients: int = MOST_CLIENTS,
        kept_s: float = KEPT_S,
        most_kept: int = MOST_KEPT,
    ) -> None:
        listener = listen(host, port)
        self.port: int = listener.getsockname()[1]
        scheme = "http" if config().tls is None else "https"
        self.url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}/metrics"
        self._connections = _Connections(
            listener,
            Pages(metrics=page, landing=landing),
            config,
            on_notice,
            slow_s=slow_s,
            request_s=request_s,
            most_clients=most_clients,
            kept_s=kept_s,
            most_kept=most_kept,
        )
        self._thread = threading.Thread(target=self._connections.serve, name="exporter")
        self._thread.start()

    def close(self) -> None:
        """Accept no more clients, answer pending requests, and disconnect clients that have not sent theirs."""
        self._connections.stop()
        self._thread.join()
        self._connections.close()


@dataclass(slots=True, kw_only=True, eq=False)
class _Connection:
    """A connected client.

    network: see `network_of`. tls: the context that its TLS was made by; None before, or without. since_s: since when
    it is served, or kept. slow_since_s: since when the client sends a request or reads an answer; None while the answer
    is made. is_over: it is not to be read from any more. thread: what serves it; None while it is kept.
    """

    socket: socket.socket
    address: Any
    network: str
    since_s: float = 0.0
    slow_since_s: float | None = None
    tls: ssl.SSLContext | None = None
    is_begun: bool = False
    is_over: bool = False
    thread: threading.Thread | None = None


class _Connections:
    """Accepts clients, has a thread serve each while it asks, and keeps idle connections without one."""

    def __init__(
        self,
        listener: socket.socket,
        pages: Pages,
        config: Callable[[], ServerConfig],
        on_notice: Callable[[str], None],
        *,
        slow_s: float,
        request_s: float,
        most_clients: int,
        kept_s: float,
        most_kept: int,
    ) -> None:
        self.pages, self.config, self.on_notice = pages, config, on_notice
        self.is_closing = False
        self._listener = listener
        self._slow_s, self._request_s = slow_s, request_s
        self._most_clients = most_clients
        self._kept_s, self._most_kept = kept_s, most_kept
        self._lock = threading.Lock()  # Of what serving threads change: `_served`, `_answered`, and what is in them.
        self._served: set[_Connection] = set()
        self._answered: deque[_Connection] = deque()  # On their way back from a thread to be kept.
        self._kept: dict[_Connection, None] = {}  # The longest idle first.
        self._waker, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for one in (self._listener, self._waker, self._woken):
            one.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)

    def serve(self) -> None:
        """Accept clients and keep connections until `stop`."""
        while not self.is_closing:
            for key, _ in self._selector.select(self._until_next_end_s()):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._woken:
                    self._woken.recv(1 << 12)
                else:
                    self._take_up(key.data)
            self._keep_answered()
            self._end_overdue()

    def stop(self) -> None:
        """Let `serve` end, from any thread."""
        with self._lock:
            self.is_closing = True
        self._wake()

    def close(self) -> None:
        """After `serve` has ended: close idle connections, and stop reading from all clients.

        Unfinished requests end, and requests already sent are still answered.
        """
        self._listener.close()
        with self._lock:
            threads = [connection.thread for connection in self._served]
            for connection in self._served:
                _hear_no_more(connection)
        for thread in threads:
            if thread is not None:
                thread.join()
        for connection in (*self._kept, *self._answered):
            _close(connection.socket)
        for one in (self._selector, self._waker, self._woken):
            one.close()

    # In the thread of `serve`.

    def _until_next_end_s(self) -> float | None:
        """Return how long nobody's time is over; None where nobody is there."""
        with self._lock:
            ends_s = [self._ends_s(one) for one in self._served if not one.is_over]
        ends_s += [one.since_s + self._kept_s for one in self._kept]
        return max(0.0, min(ends_s) - time.monotonic()) if ends_s else None

    def _accept(self) -> None:
        try:
            client, address = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self.on_notice(
                    f"a client waits: {os.strerror(error.errno).lower()}; raise this process's limit (ulimit -n)"
                )
                if self._kept:
                    self._drop(next(iter(self._kept)))
                else:
                    time.sleep(_NO_FILES_S)  # The client waits at the door, and the selector would tell so at once.
            return  # Otherwise the client has gone again.
        client.setblocking(True)
        self._begin(_Connection(socket=client, address=address, network=network_of(address, client.getsockname())))

    def _take_up(self, connection: _Connection) -> None:
        """Have a kept connection served that has something to read. Its end alone costs no thread."""
        if _has_ended(connection.socket):
            self._drop(connection)
            return
        del self._kept[connection]
        self._selector.unregister(connection.socket)
        self._begin(connection)

    def _begin(self, connection: _Connection) -> None:
        """Give the client a thread, or turn it away if too many are served."""
        connection.since_s = connection.slow_since_s = time.monotonic()
        connection.thread = threading.Thread(target=self._serve_client, args=(connection,), name="scrape")
        with self._lock:
            full = self._make_place(connection.network)
            if full is None:
                self._served.add(connection)
        if full is not None:
            self.on_notice(f"{full} are served at once; those beyond are turned away")
            _turn_away(connection.socket)
            return
        try:
            connection.thread.start()
        except RuntimeError as error:
            self.on_notice(f"a client is turned away: {error}")
            with self._lock:
                self._served.discard(connection)
            _turn_away(connection.socket)

    def _make_place(self, network: str) -> str | None:
        """Return None where one more client of this network can be served; else of whom too many are.

        Who has been sending or reading for longest makes place: a scraper does both at once, so that clients who hold
        connections open only displace each other.
        """
        served = [one for one in self._served if not one.is_over]
        same = [one for one in served if one.network == network]
        share = max(1, self._most_clients // SHARE)
        if len(same) >= share:
            rivals, full = same, f"{share} clients of {network}"
        elif len(served) >= self._most_clients:
            rivals, full = served, f"{self._most_clients} clients"
        else:
            return None
        slow = [(one.slow_since_s, one) for one in rivals if one.slow_since_s is not None]
        if not slow:
            return full
        _hear_no_more(min(slow, key=lambda pair: pair[0])[1], socket.SHUT_RDWR)
        return None

    def _keep_answered(self) -> None:
        """Wait for the next request of those whose last one is answered."""
        while self._answered:
            connection = self._answered.popleft()
            connection.since_s = time.monotonic()
            self._selector.register(connection.socket, selectors.EVENT_READ, connection)
            self._kept[connection] = None
        while len(self._kept) > self._most_kept:
            self._drop(next(iter(self._kept)))

    def _drop(self, connection: _Connection) -> None:
        del self._kept[connection]
        self._selector.unregister(connection.socket)
        _close(connection.socket)

    def _end_overdue(self) -> None:
        """Disconnect clients whose time is over."""
        now_s = time.monotonic()
        with self._lock:
            for connection in self._served:
                if not connection.is_over and now_s >= self._ends_s(connection):
                    _hear_no_more(connection, socket.SHUT_RDWR)
        while self._kept and now_s - (oldest := next(iter(self._kept))).since_s >= self._kept_s:
            self._drop(oldest)

    def _ends_s(self, connection: _Connection) -> float:
        """Return when the client's time is over."""
        ends_s = connection.since_s + self._request_s
        return ends_s if connection.slow_since_s is None else min(ends_s, connection.slow_since_s + self._slow_s)

    # In the thread of a client.

    def await_client(self, connection: _Connection) -> None:
        """Note that the client is to send another request, or to read its answer, from now on."""
        with self._lock:
            connection.slow_since_s = time.monotonic()
        self._wake()

    def begin_answer(self, connection: _Connection) -> None:
        """Note that the client has sent a request that is answered."""
        with self._lock:
            connection.slow_since_s = None

    def _serve_client(self, connection: _Connection) -> None:
        """Answer what the client asks now; keep the connection where it may ask again."""
        is_kept = False
        try:
            if connection.is_begun or self._open(connection):
                is_kept = not _Handler(connection, self).close_connection
        except (ConnectionError, TimeoutError, ssl.SSLError):
            pass  # The client disconnected.
        except Exception as error:  # noqa: BLE001  # A bug of ours, of which other clients should see nothing.
            self.on_notice(f"a scrape failed: {in_words(error)}")
        with self._lock:
            self._served.discard(connection)
            if is_kept and not connection.is_over and not self.is_closing:
                connection.thread = None
                self._answered.append(connection)
                self._wake()
            else:
                _close(connection.socket)

    def _open(self, connection: _Connection) -> bool:
        """Begin with a new client and return whether it is to be served.

        The TLS handshake is made here, in the client's own thread, where it delays no other.
        """
        connection.is_begun = True
        connection.tls = self.config().tls
        with self._lock:
            if connection.tls is not None:
                try:
                    connection.socket = connection.tls.wrap_socket(
                        connection.socket, server_side=True, do_handshake_on_connect=False
                    )
                except OSError:  # It disconnected before it sent anything.
                    return False
            if connection.is_over or self.is_closing:
                _hear_no_more(connection)
        connection.socket.settimeout(IDLE_S)
        return not isinstance(connection.socket, ssl.SSLSocket) or self._shake_hands(connection.socket)

    def _shake_hands(self, client: ssl.SSLSocket) -> bool:
        """Make the TLS handshake and return whether it succeeded; report a failure, since clients rarely explain it."""
        try:
            client.do_handshake()
        except ssl.SSLEOFError:
            return False
        except ssl.SSLError as error:
            if error.reason == "HTTP_REQUEST":
                _answer_in_plain(client)
            self.on_notice(f"a client was not let in: TLS says {error.reason or error}")
            return False
        return True

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # As many wake it already as its buffer holds.
            self._waker.send(b"\0")


def _hear_no_more(connection: _Connection, how: int = socket.SHUT_RD) -> None:
    connection.is_over = True
    with contextlib.suppress(OSError):  # The client disconnected already.
        # Not SSLSocket.shutdown, which would go on in plain text.
        socket.socket.shutdown(connection.socket, how)


def _has_ended(client: socket.socket) -> bool:
    """Return whether a client that can be read from has nothing to read but its end; of TLS, no close_notify either."""
    try:
        return not socket.socket.recv(client, 1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _close(client: socket.socket) -> None:
    with contextlib.suppress(OSError):  # The client disconnected already.
        socket.socket.shutdown(client, socket.SHUT_WR)
    client.close()


def _turn_away(client: socket.socket) -> None:
    """Say that there is no place, without ever waiting for the client.

    What it has sent is read first, since closing a socket with unread data resets the connection.
    """
    with contextlib.suppress(OSError):
        client.settimeout(0)
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
            client.recv(1 << 16)
        client.send(_TURNED_AWAY)
    _close(client)


def _answer_in_plain(client: ssl.SSLSocket) -> None:
    """Answer a client that sent plain HTTP to the TLS port, bypassing TLS.

    Its request is read first, since closing a socket with unread data resets the connection.
    """
    with contextlib.suppress(OSError):
        socket.socket.recv(client, 1 << 16)
        socket.socket.sendall(client, _PLAIN_ON_TLS)


class _Handler(BaseHTTPRequestHandler):
    """Answers what a client has sent by now: a request, or several that came at once.

    close_connection: whether the connection is not to be kept.
    """

    protocol_version = "HTTP/1.1"
    server_version = "observatory"
    sys_version = ""
    timeout = IDLE_S
    disable_nagle_algorithm = True  # A body would wait until the client has acknowledged the headers.

    def __init__(self, connection: _Connection, connections: _Connections) -> None:
        self._client, self._connections = connection, connections
        super().__init__(connection.socket, connection.address, connections)  # type: ignore[arg-type]

    def handle(self) -> None:
        """Answer requests until the client has sent no more."""
        self.close_connection = True
        self.handle_one_request()
        while not self.close_connection and self._has_more():
            self._connections.await_client(self._client)
            self.handle_one_request()

    def do_GET(self) -> None:
        config = self._connections.config()
        if config.tls is not self._client.tls:
            self.close_connection = True
            return
        # The body of a request is not read, and would pass for the next one.
        has_body = "Content-Length" in self.headers or "Transfer-Encoding" in self.headers
        if has_body or self.request_version == "HTTP/1.0":
            self.close_connection = True
        self._send(answer(self._connections.pages, self._admits, self.path, self.headers), config.headers)

    do_HEAD = do_GET  # noqa: N815  # The name that http.server calls.

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what http.server finds to be no request."""
        self._send(refusal(code, message or self.responses[code][0]), self._connections.config().headers)

    def _admits(self, authorization: str) -> bool:
        """Return whether the request is answered. Until then others may take the client's place: it may be guessing."""
        admits = self._connections.config().admits
        if admits is not None and not admits(authorization):
            return False
        self._connections.begin_answer(self._client)
        return True

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  # The name is http.server's.
        """Log no requests."""

    def _has_more(self) -> bool:
        """Return whether the client has sent more already, without waiting for it."""
        self.connection.settimeout(0)
        try:
            return bool(self.rfile.peek(1))  # type: ignore[attr-defined]
        except ssl.SSLWantReadError:
            return False
        finally:
            self.connection.settimeout(self.timeout)

    def _send(self, response: Answer, added: Mapping[str, str]) -> None:
        """Send it. A connection outlives no error: only who is let in is kept."""
        self.close_connection |= response.status >= 400 or self._connections.is_closing
        self.send_response(response.status)
        own = {"Content-Type": response.content_type, "Content-Length": str(len(response.body)), **response.headers}
        for name, value in (own | dict(added)).items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self._connections.await_client(self._client)
            self.wfile.write(response.body)
