"""The one door out: /metrics over HTTP, from sources that are handed in. Knows neither bench nor any store."""

from __future__ import annotations

import contextlib
import errno
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from collectors.metric import Metric, Sample, Scope

Owned = tuple[Sample, Mapping[str, str]]
"""A sample, and the labels of what it belongs to."""

Source = Callable[[], Iterable[Owned]]
"""Gives what is to be shown now, at each scrape and in that scrape's thread."""

OWNER_LABELS: dict[Scope, frozenset[str]] = {
    "rank": frozenset({"rank", "slot"}),
    "node": frozenset(),
    "run": frozenset({"strategy", "ranks", "device", "precision", "series", "bound"}),
}
"""The labels that each scope's owner adds to a metric's own."""

IDLE_S = 5.0
"""How long a client may say nothing, or read nothing, before it is let go."""


class CannotListen(RuntimeError):
    """The address cannot be served; the message says why."""


class PortTaken(CannotListen):
    """Another program listens there already."""


class Exporter(Collector):
    """What the sources give, as families of the catalogue's metrics.

    Of a series that is given twice the first counts. What is in no way a sample of the catalogue is left out and said,
    so that the rest stays valid.
    on_notice: is told each kind of thing that is left out, once.
    """

    def __init__(
        self, metrics: Sequence[Metric], sources: Sequence[Source], *, on_notice: Callable[[str], None]
    ) -> None:
        self._metrics = {metric.name: metric for metric in metrics}
        self._labels = {metric.name: frozenset(metric.labels) for metric in metrics}
        self._sources = sources
        self._on_notice = on_notice
        self._refused: set[str] = set()

    def collect(self) -> Iterator[Family]:
        """One family for each metric that there is a sample of, in the catalogue's order."""
        families: dict[str, Family] = {}
        seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
        for source in self._sources:
            for sample, owner in source():
                name = sample.metric
                if not self._is_valid(sample, owner):
                    continue
                labels = {**sample.labels, **owner}
                series = (name, frozenset(labels.items()))
                if series in seen:
                    continue
                seen.add(series)
                if name not in families:
                    families[name] = _family(self._metrics[name])
                families[name].add_sample(name, labels, sample.value)
        return (families[name] for name in self._metrics if name in families)

    def render(self, accept: str) -> tuple[bytes, str]:
        """The body and its content type: OpenMetrics or plain text, as the Accept header asks."""
        encode, content_type = choose_encoder(accept)
        return encode(self), content_type

    def _is_valid(self, sample: Sample, owner: Mapping[str, str]) -> bool:
        name = sample.metric
        metric = self._metrics.get(name)
        if metric is None:
            self._refuse(name, f"metric {name} is in no catalogue of this version and is left out")
            return False
        if sample.labels.keys() != self._labels[name]:
            self._refuse(
                name, f"metric {name} has labels {_listed(sample.labels)}, not {_listed(metric.labels)}: left out"
            )
            return False
        if owner.keys() != OWNER_LABELS[metric.scope]:
            self._refuse(name, f"metric {name} is of a {metric.scope} and was given as of {_listed(owner)}: left out")
            return False
        return True

    def _refuse(self, name: str, text: str) -> None:
        if name not in self._refused:
            self._refused.add(name)
            self._on_notice(text)


def _listed(labels: Iterable[str]) -> str:
    return f"({', '.join(sorted(labels))})"


def _family(metric: Metric) -> Family:
    """The client library adds _total and _info again where the format wants them."""
    name = metric.name.removesuffix("_total" if metric.kind == "counter" else "_info" if metric.kind == "info" else "")
    unit = metric.unit if metric.kind != "info" and name.endswith(f"_{metric.unit}") else ""
    return Family(name, metric.help, metric.kind, unit)


class Server:
    """Answers /metrics and /healthz in threads of its own from its making until `close`.

    port: 0 takes a free one; `port` then says which.

    Raises:
        PortTaken: another program listens there.
        CannotListen: the host is none of this machine's, or the port is not ours to take.
    """

    def __init__(self, exporter: Exporter, host: str, port: int, *, on_notice: Callable[[str], None]) -> None:
        try:
            self._http = _Http(exporter, host, port, on_notice)
        except OSError as error:
            where = f"port {port} of {host}"
            if error.errno == errno.EADDRINUSE:
                raise PortTaken(f"{where} is taken by another program") from None
            raise CannotListen(f"{where} cannot be served: {error.strerror or error}") from None
        except OverflowError:
            raise CannotListen(f"port {port} is none; it may be 0 to 65535") from None
        self.port: int = self._http.server_address[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}/metrics"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.1,), name="exporter")
        self._thread.start()

    def close(self) -> None:
        """Take no more requests, answer those that were made, and let go of clients that have not made theirs."""
        self._http.shutdown()
        self._thread.join()
        self._http.hang_up()
        self._http.server_close()


class _Http(ThreadingHTTPServer):
    daemon_threads = False  # So that server_close() waits for a scrape that runs.

    def __init__(self, exporter: Exporter, host: str, port: int, on_notice: Callable[[str], None]) -> None:
        self.exporter = exporter
        self._on_notice = on_notice
        self._clients: set[socket.socket] = set()
        self._clients_lock = threading.Lock()
        (self.address_family, *_, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        super().__init__(address[:2], _Handler)  # type: ignore[arg-type]

    def server_bind(self) -> None:
        """Bind; HTTPServer's own would look up the host's name, which can take long and is not used here."""
        socketserver.TCPServer.server_bind(self)

    def hang_up(self) -> None:
        """Hear no client any more: who was still speaking is at its end, who waits for an answer gets it."""
        with self._clients_lock:
            for client in self._clients:
                with contextlib.suppress(OSError):  # Gone by itself.
                    client.shutdown(socket.SHUT_RD)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one client, known to `hang_up` meanwhile."""
        with self._clients_lock:
            self._clients.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._clients_lock:
                self._clients.discard(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news; anything else is our own mistake, said in a line."""
        error = sys.exc_info()[1]
        if not isinstance(error, (ConnectionError, TimeoutError)):
            self._on_notice(f"a scrape failed: {type(error).__name__}: {error}")


class _Handler(BaseHTTPRequestHandler):
    server: _Http
    timeout = IDLE_S
    server_version = "observatory"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            body, content_type = self.server.exporter.render(self.headers.get("Accept", ""))
            self._answer(200, body, content_type)
        elif path == "/healthz":
            self._answer(200, b"ok\n")
        else:
            self._answer(404, b"here are /metrics and /healthz\n")

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  # The name is http.server's.
        """A scrape is no news."""

    def _answer(self, status: int, body: bytes, content_type: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
