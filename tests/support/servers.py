"""Real servers for tests, if they are installed; each is removed after use."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

_START_ATTEMPTS = 3


def absent_server(reason: str) -> NoReturn:
    """Skip the test because a server is not installed; in CI, where all must be installed, fail instead."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason}; CI installs it")
    pytest.skip(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresServer:
    """A running PostgreSQL. binaries, data, folder: its programs, its database, and the folder of all its files."""

    port: int
    user: str
    password: str
    binaries: Path
    data: Path
    folder: Path

    def url(self, database: str) -> str:
        """Return the database's address, as a user writes it."""
        return f"postgresql://{self.user}:{self.password}@127.0.0.1:{self.port}/{database}"

    def stop(self) -> None:
        """Stop the server, as an administrator does; its data stay."""
        _run([self.binaries / "pg_ctl", "stop", "--pgdata", self.data, "--mode=immediate", "--wait"], self.folder)

    def start(self) -> None:
        """Start the server again, on the same port."""
        _run([self.binaries / "pg_ctl", "start", "--pgdata", self.data, *_words(self.port, self.folder)], self.folder)


@contextlib.contextmanager
def run_postgres() -> Iterator[PostgresServer]:
    """Run PostgreSQL on a free loopback port, with its files in a temporary folder."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda path: int(path.parts[-3]))
    if not programs:
        absent_server("PostgreSQL is not installed (apt-get install postgresql)")
    binaries = programs[-1].parent
    folder = Path(tempfile.mkdtemp(prefix="observatory-postgres-"))
    try:
        password_file = folder / "password"
        password_file.write_text("geheim-0815\n")
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root.
            for path in (folder, password_file):
                shutil.chown(path, "postgres", "postgres")
        data = folder / "data"
        login = ("--username=tester", "--auth=scram-sha-256", f"--pwfile={password_file}")
        _run([binaries / "initdb", "--pgdata", data, "--no-sync", "--encoding=UTF8", "--locale=C", *login], folder)
        port = _start(binaries, data, folder)
        server = PostgresServer(
            port=port,
            user="tester",
            password=password_file.read_text().strip(),
            binaries=binaries,
            data=data,
            folder=folder,
        )
        try:
            yield server
        finally:
            if (data / "postmaster.pid").exists():
                server.stop()
    finally:
        shutil.rmtree(folder)


def _start(binaries: Path, data: Path, folder: Path) -> int:
    """Start the server. Another process may take the free port first, so this tries a few."""
    for attempt in range(_START_ATTEMPTS):
        port = free_port()
        try:
            _run([binaries / "pg_ctl", "start", "--pgdata", data, *_words(port, folder)], folder)
        except subprocess.CalledProcessError:
            if attempt == _START_ATTEMPTS - 1:
                pytest.fail(f"PostgreSQL does not start: {(folder / 'log').read_text()[-2000:]}")
        else:
            return port
    raise AssertionError("the last attempt returned or failed")


def _words(port: int, folder: Path) -> tuple[str | Path, ...]:
    """Return pg_ctl's arguments to start the server."""
    options = f"-c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off -p {port}"
    return "--wait", "--log", folder / "log", "-o", options


def _run(command: Sequence[str | Path], folder: Path) -> None:
    account = "postgres" if os.geteuid() == 0 else None
    # To a file: the server keeps its output open, and a pipe would never end.
    with (folder / "output").open("ab") as output:
        subprocess.run(
            command,
            check=True,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            user=account,
            group=account,
            extra_groups=[] if account else None,
            timeout=60,
        )


def free_port() -> int:
    """Return a loopback port that is free now; another process may take it first."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


def program(name: str, package: str) -> str:
    """Return the path of an installed program; without it, skip the test."""
    path = shutil.which(name)
    if path is None:
        absent_server(f"{name} is not installed (apt-get install {package})")
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusServer:
    """A running Prometheus that scrapes each second."""

    port: int

    @property
    def url(self) -> str:
        """Its address, as Grafana expects it."""
        return f"http://127.0.0.1:{self.port}"

    def query(self, expression: str, at_unix_s: float | None = None) -> list[dict[str, Any]]:
        """Return the result of an instant query: each series' `metric` with its `value`, or `values` of a range.

        at_unix_s: the instant; None means now.
        """
        instant = {} if at_unix_s is None else {"time": at_unix_s}
        fields = urllib.parse.urlencode({"query": expression, **instant}).encode()
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/query", data=fields, timeout=30) as answer:
                series: list[dict[str, Any]] = json.load(answer)["data"]["result"]
                return series
        except urllib.error.HTTPError as error:
            pytest.fail(f"Prometheus refuses {expression}: {error.read().decode()}")


@contextlib.contextmanager
def run_prometheus(
    *targets: str,
    rules: Sequence[Path] = (),
    jobs: Mapping[str, Mapping[str, object]] | None = None,
    alertmanagers: Sequence[str] = (),
    features: Sequence[str] = (),
) -> Iterator[PrometheusServer]:
    """Run Prometheus on a free loopback port; it scrapes the targets (host:port) and evaluates the rules each second.

    Its files are in a temporary folder.
    alertmanagers: receivers of alerts (host:port).
    jobs: further settings of each scrape job by name, for example its scheme; each job scrapes all targets.
    features: features to enable that are off by default.
    """
    binary = program("prometheus", "prometheus")
    with tempfile.TemporaryDirectory(prefix="observatory-prometheus-") as name:
        folder = Path(name)
        config = {
            # scrape_timeout must not be longer than the interval, and would inherit 10 s.
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rule.absolute()) for rule in rules],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": list(alertmanagers)}]}]},
            "scrape_configs": [
                {"job_name": name, "static_configs": [{"targets": list(targets)}], **job}
                for name, job in (jobs or {"observatory": {}}).items()
            ],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML.
        words = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
        words += [f"--enable-feature={feature}" for feature in features]
        with started_server(binary, *words, output=folder / "output") as port:
            yield PrometheusServer(port=port)


@contextlib.contextmanager
def started_server(binary: str, *words: str, output: Path) -> Iterator[int]:
    """Run a server of the Prometheus project with these arguments; yields its loopback port.

    Another process may take a free port first, so this tries a few. output: file for the server's output.
    """
    for _ in range(_START_ATTEMPTS):
        port = free_port()
        with output.open("ab") as printed:
            server = subprocess.Popen(
                [binary, *words, f"--web.listen-address=127.0.0.1:{port}"],
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
            )
        try:
            is_ready = _is_ready(server, port)
        except BaseException:  # Ctrl-C, or SIGTERM in a program that handles it this way.
            server.kill()
            server.wait(60)
            raise
        if is_ready:
            break
    else:
        pytest.fail(f"{binary} does not start: {output.read_text()[-2000:]}")
    try:
        yield port
    finally:
        server.terminate()
        server.wait(60)


def _is_ready(server: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until the server answers; False if it has ended."""
    until = time.monotonic() + 60
    while server.poll() is None and time.monotonic() < until:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=30):
                return True
        except OSError:  # Not listening yet, or not ready.
            time.sleep(0.1)
    server.kill()
    server.wait(60)
    return False
