"""Many nodes in one process: paths of one HTTP server, which a real Prometheus scrapes as nodes of their own."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median

from dashboards.publishing.publish import RENDERED
from tests.benchmarks.exporter_parts.units import BEAT_S, body, fleet_sources, made_up_node
from tests.dashboards.promtool import promtool
from tests.support.servers import PrometheusServer, program, started_server

_CALM_FROM_S = 1_440_000_000
"""Begin of the samples with even times: one of a block, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a real Prometheus takes.

    index_bytes, chunk_bytes: of a block of the whole head. calm_chunk_bytes_per_sample: of one node's samples, written
    anew with the even times that a machine with nothing else to do gives them; a busy one's times take more. down:
    targets that were not scraped for a minute.
    """

    series: int
    samples_per_second: float
    memory_bytes: float
    chunk_bytes: int
    index_bytes: int
    wal_bytes: int
    block_samples: int
    block_series: int
    down: int
    calm_chunk_bytes_per_sample: float | None


@contextmanager
def _nodes() -> Iterator[int]:
    """The port of a server whose paths are all one node, as it is now, and /results/metrics the fleet's results."""
    begun_s = time.monotonic()
    results = body(fleet_sources(time.time())).encode()
    shown = [b""]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = results if self.path.startswith("/results") else shown[0]
            with suppress(ConnectionError):  # Prometheus waits no longer than its timeout: that target is down then.
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    with made_up_node(lambda: time.monotonic() - begun_s) as now:
        is_over = threading.Event()

        def renew() -> None:
            while not is_over.wait(BEAT_S):
                shown[0] = now().encode()

        shown[0] = now().encode()
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threads = [threading.Thread(target=one, daemon=True) for one in (server.serve_forever, renew)]
        for thread in threads:
            thread.start()
        try:
            yield server.server_address[1]
        finally:
            is_over.set()
            server.shutdown()
            server.server_close()
            for thread in threads:
                thread.join()


@contextmanager
def _prometheus(folder: Path, port: int, nodes: int, scrape_s: int) -> Iterator[PrometheusServer]:
    """A Prometheus with our rules that scrapes the nodes and the results at that port."""
    names = [f"node{number:04d}" for number in range(nodes)]
    groups = [
        {
            "targets": [f"127.0.0.1:{port}"],
            "labels": {"instance": f"{name}:9464", "__metrics_path__": f"/{name}/metrics"},
        }
        for name in ([*names, "results"] if nodes else [])
    ]
    config = {
        "global": {
            "scrape_interval": f"{scrape_s}s",
            "scrape_timeout": f"{min(scrape_s, 10)}s",
            "evaluation_interval": "15s",
        },
        "rule_files": [str(RENDERED / "rules.yaml")],
        "scrape_configs": [{"job_name": "observatory", "static_configs": groups}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML.
    words = (
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--storage.tsdb.retention.time=30d",
        "--web.enable-admin-api",
    )
    with started_server(program("prometheus", "prometheus"), *words, output=folder / "output") as listening:
        yield PrometheusServer(port=listening)


def _own(prometheus: PrometheusServer) -> dict[str, float]:
    """Prometheus's metrics of itself that have no labels."""
    with urllib.request.urlopen(f"{prometheus.url}/metrics", timeout=60) as answer:
        lines = [line.split() for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {words[0]: float(words[1]) for words in lines if "{" not in words[0]}


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measure(*, nodes: int, scrape_s: int, duration_s: float) -> Measured:
    """Let a real Prometheus scrape so many nodes for this time, and return what it takes.

    Memory is the median of the last third of the time. Disk is a block of the whole head, written as Prometheus's own
    snapshot, and the write-ahead log.
    """
    with (
        tempfile.TemporaryDirectory(prefix="observatory-fleet-") as name,
        _nodes() as port,
        _prometheus(Path(name), port, nodes, scrape_s) as prometheus,
    ):
        begun_s = time.monotonic()
        resident: list[float] = []
        appended: list[tuple[float, float]] = []
        while (elapsed_s := time.monotonic() - begun_s) < duration_s:
            time.sleep(max(1.0, min(5.0, duration_s / 60)))
            if elapsed_s > duration_s * 2 / 3:
                own = _own(prometheus)
                resident.append(own["process_resident_memory_bytes"])
                appended.append((time.monotonic(), _samples(prometheus)))
        (from_s, first), (to_s, last) = appended[0], appended[-1]
        series = int(_own(prometheus)["prometheus_tsdb_head_series"])
        down = sum(float(one["value"][1]) == 0 for one in prometheus.query("max_over_time(up[1m])"))
        wal_bytes = _bytes(Path(name) / "data" / "wal")
        block = _snapshot(prometheus, Path(name) / "data") if nodes else None
        stats = {"numSamples": 0, "numSeries": 0}
        if block is not None:
            stats = json.loads((block / "meta.json").read_text())["stats"]
        return Measured(
            series=series,
            samples_per_second=(last - first) / (to_s - from_s),
            memory_bytes=median(resident),
            chunk_bytes=0 if block is None else _bytes(block / "chunks"),
            index_bytes=0 if block is None else (block / "index").stat().st_size,
            wal_bytes=wal_bytes,
            block_samples=stats["numSamples"],
            block_series=stats["numSeries"],
            down=down,
            calm_chunk_bytes_per_sample=calm_chunk_bytes(prometheus, Path(name), scrape_s) if nodes else None,
        )


def _samples(prometheus: PrometheusServer) -> float:
    """Samples that Prometheus has stored since its start, of whatever type."""
    with urllib.request.urlopen(f"{prometheus.url}/metrics", timeout=60) as answer:
        return sum(
            float(line.split()[-1])
            for line in answer.read().decode().splitlines()
            if line.startswith("prometheus_tsdb_head_samples_appended_total")
        )


def _snapshot(prometheus: PrometheusServer, data: Path) -> Path:
    """Write the head as a block; return the folder of the largest block."""
    request = urllib.request.Request(f"{prometheus.url}/api/v1/admin/tsdb/snapshot", method="POST")
    with urllib.request.urlopen(request, timeout=300) as answer:
        name: str = json.load(answer)["data"]["name"]
    blocks = [path.parent for path in (data / "snapshots" / name).glob("*/meta.json")]
    return max(blocks, key=_bytes)


def calm_chunk_bytes(prometheus: PrometheusServer, folder: Path, scrape_s: int) -> float:
    """Bytes of a sample in chunks, of the first node's samples with times that are all one interval apart."""
    lines, samples = [], 0
    for one in prometheus.query('{instance="node0000:9464",__name__=~"observatory_.+"}[30m]'):
        labels = ",".join(f"{name}={json.dumps(value)}" for name, value in one["metric"].items() if name != "__name__")
        for number, (_, value) in enumerate(one["values"]):
            lines.append(f"{one['metric']['__name__']}{{{labels}}} {value} {_CALM_FROM_S + number * scrape_s}\n")
        samples += len(one["values"])
    (folder / "calm.txt").write_text("".join([*lines, "# EOF\n"]))
    words = ("tsdb", "create-blocks-from", "openmetrics", folder / "calm.txt", folder / "calm")
    written = promtool(*words)
    assert written.returncode == 0, written.stderr
    return sum(_bytes(chunks) for chunks in (folder / "calm").glob("*/chunks")) / samples


def version() -> str:
    """The version of Prometheus."""
    said = subprocess.run(
        [program("prometheus", "prometheus"), "--version"], capture_output=True, text=True, check=True
    )
    return (said.stdout or said.stderr).split("(")[0].strip()
