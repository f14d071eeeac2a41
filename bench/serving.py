"""Puts together what /metrics shows: the live runs of a folder, the newest results of a history, the exporter."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.errors import InfrastructureFailed
from bench.live import LiveRuns
from bench.newest_results import NewestResults
from collectors.catalogue.every import METRICS
from collectors.exporter import CannotListen, Exporter, PortTaken, Server

HOST = "127.0.0.1"
PORT = 9464
ASK_STORE_S = 5.0
"""Pause between two looks into the history."""


@contextmanager
def open_server(
    runs_folder: Path, store_url: str | None, *, host: str, port: int, on_notice: Callable[[str], None]
) -> Iterator[Server]:
    """A server that answers as long as one is inside.

    on_notice: is told first where it answers, then once each thing that cannot be shown; from any thread.

    Raises:
        InfrastructureFailed: the address cannot be served.
    """
    with ExitStack() as stack:
        try:
            server = stack.enter_context(_open(runs_folder, store_url, host, port, _once(on_notice)))
        except PortTaken as error:
            raise InfrastructureFailed(
                f"{error}, perhaps by another `observatory serve`; use that one, or choose another with --port"
            ) from None
        except CannotListen as error:
            raise InfrastructureFailed(f"{error}; choose another --host or --port") from None
        yield server


@contextmanager
def serving(
    runs_folder: Path,
    store_url: str | None,
    *,
    host: str = HOST,
    port: int = PORT,
    on_notice: Callable[[str], None],
) -> Iterator[Server | None]:
    """As `open_server`, for a run, which can do without: an address that cannot be served is a notice, and None."""
    with ExitStack() as stack:
        server = None
        try:
            server = stack.enter_context(_open(runs_folder, store_url, host, port, _once(on_notice)))
        except CannotListen as error:
            on_notice(f"no /metrics of this run's own: {error}; an `observatory serve` there shows this run, too")
        yield server


@contextmanager
def _open(
    runs_folder: Path, store_url: str | None, host: str, port: int, on_notice: Callable[[str], None]
) -> Iterator[Server]:
    live = LiveRuns(runs_folder, on_notice=on_notice)
    results = NewestResults(store_url, on_notice=on_notice)
    exporter = Exporter(METRICS, (live.samples, results.samples), on_notice=on_notice)
    server = Server(exporter, host, port, on_notice=on_notice)
    # A daemon: a store that does not answer must not keep the program from ending.
    asking = threading.Thread(target=results.ask_every, args=(ASK_STORE_S,), name="newest results", daemon=True)
    try:
        on_notice(f"serving {server.url}")
        asking.start()
        yield server
    finally:
        results.stop()
        server.close()
        if asking.ident is not None:
            asking.join(timeout=ASK_STORE_S)


def _once(on_notice: Callable[[str], None]) -> Callable[[str], None]:
    """A listener that hears nothing twice, whichever thread says it."""
    said: set[str] = set()
    lock = threading.Lock()

    def tell(text: str) -> None:
        with lock:
            if text in said:
                return
            said.add(text)
        on_notice(text)

    return tell
