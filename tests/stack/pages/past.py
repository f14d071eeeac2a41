"""A made-up past in a real Prometheus: nodes, runs and results, written as it would have scraped them.

Each node has the recorded GPUs, made-up ports, and the figures of this host with counters that go on. There are parts
of ten minutes: nothing runs; a first run, and no result is known; between runs; two runs at a time; after them.
"""

from __future__ import annotations

import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import msgspec
from prometheus_client import generate_latest

from bench.serve.demo import RUN, SERIES, STRATEGY, made_ports, made_ranks, made_results, made_suites
from bench.serve.server import page_of
from collectors.host.collector import HostCollector
from collectors.metrics.metric import Sample
from collectors.metrics.registry import METRICS
from collectors.nvml.collector import NvmlCollector
from collectors.prometheus.exposition import Owned
from tests.collectors.nvml.nodes import FakeClock, eight_gpus, replayed
from tests.support.servers import PrometheusServer, program, started_server

Part = Literal["nothing runs", "first run", "between runs", "two runs", "after the runs"]
PARTS: tuple[Part, ...] = get_args(Part)
PART_S = 600
OTHER_RUN, OTHER_STRATEGY = "another-run", "fsdp"
_COUNTERS = {metric.name for metric in METRICS if metric.kind == "counter"}
_HOURS_AGO = 3
"""Old enough that promtool puts all of it into blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """A Prometheus that knows the past. begun_s: Unix time of its begin. scrape_s: between two scrapes."""

    prometheus: PrometheusServer
    begun_s: float
    scrape_s: int
    parts: tuple[Part, ...]

    def end_of(self, part: Part) -> float:
        """The moment of the last scrape in a part, as Unix time."""
        return self.begun_s + (self.parts.index(part) + 1) * PART_S - self.scrape_s


@contextmanager
def made_past(
    folder: Path,
    *,
    nodes: int,
    scrape_s: int,
    parts: tuple[Part, ...] = PARTS,
    cluster: str = "",
    standing: Sequence[str] = (),
) -> Iterator[Past]:
    """Serve the past of so many nodes, the first of which shows the runs and the results.

    cluster: what Prometheus was told that their cluster is called; empty where it was told nothing.
    standing: series that are there all the time, as alerts that fire; their value is the time at which it begins.
    """
    now_s = time.time()
    begun_s = now_s // 3600 * 3600 - _HOURS_AGO * 3600
    blocks = folder / "data"
    text = folder / "past.txt"
    with text.open("w") as written:
        for at_s in range(0, len(parts) * PART_S, scrape_s):
            written.writelines(f"{series} {begun_s:.0f} {begun_s + at_s:.0f}\n" for series in standing)
        for line in _lines(nodes, scrape_s, parts, begun_s, cluster):
            written.write(line)
    create_blocks(text, blocks)
    text.unlink()
    config = folder / "prometheus.yml"
    config.write_text("{}")
    # What is written afterwards has no mark where a series ends, so that it must end by its age.
    words = [f"--config.file={config}", f"--storage.tsdb.path={blocks}", f"--query.lookback-delta={scrape_s + 5}s"]
    with started_server(program("prometheus", "prometheus"), *words, output=folder / "output") as port:
        yield Past(prometheus=PrometheusServer(port=port), begun_s=begun_s, scrape_s=scrape_s, parts=parts)


def create_blocks(text: Path, blocks: Path) -> None:
    """Write the samples of a text in OpenMetrics into Prometheus's blocks."""
    promtool = program("promtool", "prometheus")
    made = subprocess.run(
        [promtool, "tsdb", "create-blocks-from", "openmetrics", "--quiet", text, blocks],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr


def _lines(nodes: int, scrape_s: int, parts: tuple[Part, ...], begun_s: float, cluster: str) -> Iterator[str]:
    """Yield all samples as OpenMetrics, those of one metric together, and of one series in the order of time."""
    shown: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    clock = FakeClock()
    with closing(NvmlCollector(replayed(eight_gpus(), clock), clock_ns=clock.ns)) as gpus:
        host = _read_host()
        for at_s in range(0, len(parts) * PART_S, scrape_s):
            clock.now_s = float(at_s)
            part = parts[at_s // PART_S]
            every: list[Owned] = [(sample, {}) for sample in (*gpus.read(), *_moved(host, at_s))]
            every += made_ports(at_s)
            with_runs = list(exposed([*every, *_of_part(part, at_s, begun_s)]))
            alone = list(exposed(every)) if nodes > 1 else []
            for node in range(nodes):
                for series, value in alone if node else with_runs:
                    shown[series.partition("{")[0]][_at_node(series, node, cluster)].append(
                        f"{value} {begun_s + at_s:.0f}\n"
                    )
    for of_metric in shown.values():
        for series, values in of_metric.items():
            yield from (f"{series} {value}" for value in values)
    yield "# EOF\n"


def _of_part(part: Part, at_s: int, begun_s: float) -> Iterator[Owned]:
    into_s = at_s % PART_S + 1
    if part in ("first run", "two runs"):
        yield from made_ranks(into_s, begun_s + at_s - into_s)
    if part == "two runs":
        yield from map(_another, made_ranks(into_s, begun_s + at_s - into_s))
    if part in ("between runs", "two runs", "after the runs"):
        yield from made_results(begun_s + 2 * PART_S)
        yield from made_suites(begun_s, at_s)


def _another(owned: Owned) -> Owned:
    """The same of another run, in another slot."""
    sample, owner = owned
    new = {"run": OTHER_RUN, "strategy": OTHER_STRATEGY, "series": f"demonstration-{OTHER_STRATEGY}", "slot": "1"}
    old = {"run": RUN, "strategy": STRATEGY, "series": SERIES}
    labels = {name: new.get(name, value) for name, value in sample.labels.items()}
    if "name" in labels:
        labels["name"] = labels["name"].replace(old["strategy"], new["strategy"])
    return msgspec.structs.replace(sample, labels=labels), {name: new.get(name, value) for name, value in owner.items()}


def _read_host() -> Sequence[Sample]:
    with closing(HostCollector()) as host:
        return host.read()


def _moved(samples: Iterable[Sample], at_s: int) -> Iterator[Sample]:
    """Let counters go on: by a ten-thousandth of what they had, or one, in each second."""
    for sample in samples:
        grown = at_s * max(1.0, sample.value / 1e4) if sample.metric in _COUNTERS else 0.0
        yield Sample(sample.metric, sample.value + grown, sample.labels)


def exposed(given: Sequence[Owned]) -> Iterator[tuple[str, str]]:
    """Each series and its value, as /metrics has them."""
    refused: list[str] = []
    body = generate_latest(page_of([lambda: given], on_notice=refused.append))
    assert refused == []
    for line in body.decode().splitlines():
        if not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            yield series, value


def _at_node(series: str, node: int, cluster: str) -> str:
    name, brace, labels = series.partition("{")
    where = f'instance="node{node}:9464",job="observatory"' + (f',cluster="{cluster}"' if cluster else "")
    return f"{name}{{{where},{labels}" if brace else f"{name}{{{where}}}"
