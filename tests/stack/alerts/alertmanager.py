"""A real Alertmanager with the configuration that we ship, and a webhook that keeps what it is sent."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.servers import program, started_server

SHIPPED = Path(__file__).parents[3] / "dashboards" / "stack" / "alertmanager" / "alertmanager.yml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """What a receiver was sent, by the path that it was sent to."""

    port: int
    sent: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Its address, without a path."""
        return f"http://127.0.0.1:{self.port}"

    def alerts(self, path: str) -> list[dict[str, Any]]:
        """The alerts that were sent to this path, in the order in which they came."""
        return [alert for to, message in list(self.sent) if to == path for alert in message["alerts"]]


@contextlib.contextmanager
def run_webhook(port: int | None = None) -> Iterator[Webhook]:
    """A receiver on a free loopback port, or on this one."""
    sent: list[tuple[str, dict[str, Any]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            sent.append((self.path, json.loads(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port or 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Webhook(port=server.server_address[1], sent=sent)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


def shipped_config(webhook_url: str, *, group_wait: str = "1s") -> dict[str, Any]:
    """The shipped configuration, with the receivers at this webhook and without the long waits.

    Only addresses and times differ: routes, groups and inhibition are those that people install.
    """
    config: dict[str, Any] = yaml.safe_load(SHIPPED.read_text())
    for receiver in config["receivers"]:
        for hook in receiver["webhook_configs"]:
            hook["url"] = f"{webhook_url}/{receiver['name']}"
    for route in (config["route"], *config["route"]["routes"]):
        route["group_wait"], route["group_interval"] = group_wait, "1s"
    return config


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertmanagerServer:
    """A running Alertmanager."""

    port: int

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def amtool(self, *words: str) -> str:
        """Call Alertmanager's own tool; return what it prints."""
        command = [program("amtool", "prometheus-alertmanager"), f"--alertmanager.url={self.url}", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

    def add(self, *alerts: dict[str, str]) -> None:
        """Have these alerts fire; each is given by its labels."""
        for labels in alerts:
            self.amtool("alert", "add", *(f"{name}={value}" for name, value in labels.items()))

    def add_at_once(self, alerts: Sequence[Mapping[str, Any]]) -> None:
        """Have these alerts fire at one moment, as Prometheus sends them: each with its labels and annotations."""
        request = urllib.request.Request(
            f"{self.url}/api/v2/alerts", data=json.dumps(alerts).encode(), headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60):
            pass

    def names(self, *state: str) -> list[str]:
        """The names of alerts: those that people are told of, or by amtool's option, such as `--inhibited`."""
        found = json.loads(self.amtool("--output=json", "alert", "query", *state))
        return sorted(one["labels"]["alertname"] for one in found)


@contextlib.contextmanager
def run_alertmanager(config: dict[str, Any]) -> Iterator[AlertmanagerServer]:
    """An Alertmanager on a free loopback port; its files are in a folder of its own, which goes with it."""
    binary = program("prometheus-alertmanager", "prometheus-alertmanager")
    with tempfile.TemporaryDirectory(prefix="observatory-alertmanager-") as name:
        folder = Path(name)
        (folder / "alertmanager.yml").write_text(yaml.safe_dump(config))
        shutil.copy(SHIPPED.with_name("observatory.tmpl"), folder)
        files = (f"--config.file={folder / 'alertmanager.yml'}", f"--storage.path={folder / 'data'}")
        with started_server(binary, *files, "--cluster.listen-address=", output=folder / "output") as port:
            yield AlertmanagerServer(port=port)


def wait_until_sent(webhook: Webhook, path: str, names: Sequence[str], *, limit_s: float = 120.0) -> None:
    """Wait until alerts of all these names were sent to the path."""
    until = time.monotonic() + limit_s
    while not set(names) <= {alert["labels"]["alertname"] for alert in webhook.alerts(path)}:
        if time.monotonic() > until:
            pytest.fail(f"{path} was sent {webhook.sent}, and not {', '.join(names)}")
        time.sleep(0.1)
