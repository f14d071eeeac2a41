"""`observatory serve`: /metrics of this node, until somebody ends it."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import click

from bench.notices import say
from bench.places import RUNS, STORE


@click.command(name="serve")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 means all.")
@click.option("--port", type=click.IntRange(0, 65535), default=9464, show_default=True, help="0 takes a free one.")
@RUNS
@STORE
def command(host: str, port: int, runs_folder: Path, store_url: str | None) -> None:
    """Serve /metrics of runs and results to Prometheus.

    Shows the runs that go on in the folder of runs, and the newest results of the history. Ctrl-C ends it.

    \b
    Example:
      observatory serve --port 9464
    """
    from bench.serving import open_server

    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with open_server(runs_folder, store_url, host=host, port=port, on_notice=say):
        ended.wait()
