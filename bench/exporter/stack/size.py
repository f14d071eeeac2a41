"""What a fleet's metrics take of a Prometheus: series, samples per second, memory and disk.

Series are counted per unit (a GPU, a rank, a disk) in what the demonstration's sources show now, so that a metric that
is new is in the figures. What a series takes in memory and a sample on disk was measured: docs/monitoring/scale.md.
Not covered: queries, whose memory depends on what is asked, and series of runs that have ended, until the head forgets
them.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from bench.errors import InfrastructureFailed, Misuse
from bench.exporter.demo import made_ports, made_ranks, made_results, made_suites, open_recorded_collectors
from bench.exporter.own_process import own_process
from bench.exporter.server import page_of
from bench.exporter.stack.settings import StackSettings
from collectors.metrics.agent import AGENT_BEATS
from collectors.node.registry import PollingConfig
from collectors.node.watch import NodeWatch
from collectors.prometheus.exposition import Source

# Measured with Prometheus 2.42.0 on 2026-11-23: docs/monitoring/scale.md.

BASE_BYTES = 51.5e6
"""Resident memory of a Prometheus with our rules and no target."""
SERIES_BYTES = 4000.0
"""Resident memory of each series in the head, its scrape and the rules on it included."""
CHUNK_BYTES_PER_SAMPLE = 1.8
"""With scrapes on time. Each time that is not an interval after the one before takes up to two bytes more."""
LATE_CHUNK_BYTES_PER_SAMPLE = 3.4
"""On a machine that had too much to do, so that scrapes came late and a tenth was missed."""
INDEX_BYTES_PER_SERIES = 73.0
"""What each block keeps of a series beside its samples."""
WAL_BYTES_PER_SAMPLE = 6.5

HEAD_S = 3 * 3600.0
"""How much of the newest samples is in the write-ahead log, too: the head's two hours, and half of them more."""
LONGEST_BLOCK_RATIO = 0.1
"""Prometheus joins blocks until one spans this share of the retention."""
OWN_SERIES = 5
"""Series that Prometheus adds to those of a target: up, and four of the scrape."""

UNITS = {
    "node": "the node itself",
    "gpu": "a GPU",
    "rank": "a rank of a run that goes on",
    "run": "a run that goes on, on a node",
    "port": "a port of InfiniBand",
    "disk": "a disk",
    "interface": "a network interface",
    "filesystem": "a file system with runs",
    "numa": "a NUMA node",
    "result": "a newest result, of the fleet",
    "strategy": "a strategy in the history, of the fleet",
    "suite": "a suite, of the fleet",
    "figure": "a judged figure of a suite, of the fleet",
}
"""What series belong to."""
OF_FLEET = ("result", "strategy", "suite", "figure")
"""Units that one exporter shows for the whole fleet."""
_LABELS = (
    ("figure", ("suite", "case", "figure")),
    ("rank", ("slot", "rank")),
    ("run", ("slot",)),
    ("result", ("series",)),  # Its info names suite and GPUs, too.
    ("suite", ("suite",)),
    ("gpu", ("gpu",)),
    ("strategy", ("strategy",)),
    ("port", ("device", "port")),
    ("disk", ("device",)),
    ("interface", ("interface",)),
    ("filesystem", ("folder",)),
    ("numa", ("numa",)),
    ("node", ()),
)
"""The labels that name a unit; a series belongs to the first of which it has all."""
BEAT_S = 1.0
"""Time between two polls of the node on which series are counted: as long as usual, so that deadlines are."""
_BEATS = 3
_COUNTED_S = 30.0
"""How long a node may take until all of it has answered twice, as rates need."""


def unit_of(labels: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Return which unit a series belongs to, and which of them, by its labels."""
    return next(
        (unit, tuple(labels[name] for name in names))
        for unit, names in _LABELS
        if all(name in labels for name in names)
    )


def series_of_units(text: str) -> dict[str, list[int]]:
    """Return how many series each unit has in a body of /metrics, by its kind."""
    counted: dict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            unit, which = unit_of(sample.labels)
            counted[unit][which] += 1
    return {unit: list(counts.values()) for unit, counts in counted.items()}


def of_one(counted: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Return how many series one unit of each kind has: the median of those that were counted."""
    return {unit: float(median(counts)) for unit, counts in counted.items()}


def body(sources: Iterable[Source]) -> str:
    """Return what the sources show now, as text.

    Raises:
        ValueError: a sample fits no metric.
    """

    def refuse(notice: str) -> None:
        raise ValueError(notice)

    return generate_latest(page_of(list(sources), on_notice=refuse)).decode()


def fleet_sources(at_s: float = 0.0) -> tuple[Source, ...]:
    """Return what the one exporter of a made-up fleet's results shows."""
    return (lambda: made_results(at_s), lambda: made_suites(at_s, 0.0))


@contextmanager
def made_up_node(at_s: Callable[[], float] = lambda: 0.0) -> Iterator[Callable[[], str]]:
    """Yield what returns the body of a made-up node as it is now, once all of it has answered.

    at_s: seconds since the made-up run's begin.

    Raises:
        InfrastructureFailed: the machine is too busy for that.
    """
    polling = PollingConfig(beat_s=BEAT_S)
    with NodeWatch(lambda: open_recorded_collectors(polling), beat_s=BEAT_S, on_notice=lambda _: None) as watch:
        made: tuple[Source, ...] = (lambda: made_ranks(at_s()), lambda: made_ports(at_s()))
        sources = (own_process(), watch.samples, *made)
        until_s = time.monotonic() + _COUNTED_S
        while not _is_whole(watch):
            if time.monotonic() >= until_s:
                raise InfrastructureFailed(
                    f"this machine is too busy to count series: after {_COUNTED_S:g} s a part of the made-up node is"
                    " still late; try again later"
                )
            time.sleep(BEAT_S / 10)
        yield lambda: body(sources)


def _is_whole(watch: NodeWatch) -> bool:
    """Return whether the node was polled often enough for rates, and nothing of it was late."""
    samples = [sample for sample, _ in watch.samples()]
    beats = sum(sample.value for sample in samples if sample.metric == AGENT_BEATS.name)
    return beats >= _BEATS and not any(sample.labels.get("state") == "late" for sample in samples)


def series_by_unit() -> dict[str, float]:
    """Return how many series one unit of each kind has now; a unit that this machine has none of is absent.

    Raises:
        InfrastructureFailed: the machine is too busy to count them.
    """
    with made_up_node() as shown:
        of_node = series_of_units(shown())
    of_fleet = series_of_units(body(fleet_sources()))
    return of_one({**of_node, **{unit: counts for unit, counts in of_fleet.items() if unit in OF_FLEET}})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """How many of each unit there are. per_node: on each node. of_fleet: in all."""

    nodes: int
    per_node: Mapping[str, int]
    of_fleet: Mapping[str, int]

    def number(self, unit: str) -> int:
        """Return how many of a unit there are in all."""
        return self.of_fleet[unit] if unit in OF_FLEET else self.nodes * self.per_node[unit]


def usual_fleet(nodes: int, gpus_per_node: int, changed: Mapping[str, int]) -> Fleet:
    """Return a fleet with a port and a rank for each GPU, all of a node in one run, and the usual rest.

    changed: numbers of units that shall differ.

    Raises:
        Misuse: a unit is unknown.
    """
    usual = {
        "node": 1,
        "gpu": gpus_per_node,
        "rank": gpus_per_node,
        "run": min(1, gpus_per_node),
        "port": gpus_per_node,
        "disk": 4,
        "interface": gpus_per_node + 2,
        "filesystem": 2,
        "numa": 2,
        "result": 200,
        "strategy": 15,
        "suite": 4,
        "figure": 400,
    }
    if unknown := sorted(changed.keys() - (usual.keys() - {"node", "gpu"})):
        raise Misuse(
            f"--with: unit {unknown[0]} is unknown; it may be {', '.join(sorted(usual.keys() - {'node', 'gpu'}))}"
        )
    numbers = usual | dict(changed)
    return Fleet(
        nodes=nodes,
        per_node={unit: number for unit, number in numbers.items() if unit not in OF_FLEET},
        of_fleet={unit: number for unit, number in numbers.items() if unit in OF_FLEET},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The series of a kind of unit. each: of one; None where this machine has none to count them on."""

    unit: str
    number: int
    each: float | None

    @property
    def series(self) -> float:
        """Series of all of them."""
        return self.number * (self.each or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What a Prometheus needs for a fleet.

    disk_bytes: once the retention is full, with scrapes on time. late_disk_bytes: with late ones, as measured.
    """

    parts: tuple[Part, ...]
    own_series: int
    series: float
    samples_per_second: float
    memory_bytes: float
    disk_bytes: float
    late_disk_bytes: float


def size(fleet: Fleet, settings: StackSettings, each: Mapping[str, float]) -> Size:
    """Return what a Prometheus with these settings needs for the fleet. each: series of one unit of each kind."""
    parts = tuple(Part(unit=unit, number=fleet.number(unit), each=each.get(unit)) for unit in UNITS)
    own = OWN_SERIES * (fleet.nodes + 1)  # One target more shows the fleet's results.
    series = sum(part.series for part in parts) + own
    samples_per_second = series / settings.prometheus.scrape_seconds
    retention_s = settings.prometheus.retention_days * 86400.0
    log_bytes = WAL_BYTES_PER_SAMPLE * samples_per_second * min(HEAD_S, retention_s)
    on_time, late = (
        log_bytes
        + blocks_bytes(series, samples_per_second * retention_s, of_sample, blocks=round(1 / LONGEST_BLOCK_RATIO))
        for of_sample in (CHUNK_BYTES_PER_SAMPLE, LATE_CHUNK_BYTES_PER_SAMPLE)
    )
    return Size(
        parts=parts,
        own_series=own,
        series=series,
        samples_per_second=samples_per_second,
        memory_bytes=memory_bytes(series),
        disk_bytes=on_time,
        late_disk_bytes=late,
    )


def memory_bytes(series: float) -> float:
    """Return the resident memory of a Prometheus with so many series in its head, without queries."""
    return BASE_BYTES + SERIES_BYTES * series


def blocks_bytes(series: float, samples: float, sample_bytes: float = CHUNK_BYTES_PER_SAMPLE, *, blocks: int) -> float:
    """Return the size on disk of the samples of these series.

    sample_bytes: of a sample in chunks. blocks: how many the samples are divided among.
    """
    return sample_bytes * samples + INDEX_BYTES_PER_SERIES * series * blocks
