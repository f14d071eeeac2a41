"""What a real Prometheus takes of simulated nodes, compared with what the formula of docs/monitoring/scale.md predicts.

    python -m tests.benchmarks.exporter_parts.fleet [--nodes N] [--scrape-seconds N] [--minutes N]

Ends with 1 where a prediction is off by more than a quarter. With --nodes 0 it measures a Prometheus without a target.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

from tests.benchmarks.exporter_parts.simulated_fleet import Measured, measure, version
from tests.benchmarks.exporter_parts.units import OF_FLEET, body, fleet_sources, made_up_node, series_of_units

OFF_RATIO = 0.25
"""How far a prediction may be from what is measured."""

# Measured with Prometheus 2.42.0: docs/measured/fleet.md. docs/monitoring/scale.md is tested against these.

BASE_BYTES = 51.5e6
"""Resident memory of a Prometheus with our rules and no target."""
SERIES_BYTES = 4000.0
"""Resident memory of each series in the head, its scrape and the rules on it included."""
CHUNK_BYTES_PER_SAMPLE = 1.8
"""With scrapes on time. Each time that is not an interval after the one before takes up to two bytes more."""
LATE_CHUNK_BYTES_PER_SAMPLE = 3.4
"""On a machine that had too much to do, so that scrapes came late and a tenth was missed."""
INDEX_BYTES_PER_SERIES = 73.0
"""What each block keeps of a series besides its samples."""
WAL_BYTES_PER_SAMPLE = 6.5
WAL_HOURS = 3
"""How much of the newest samples is also in the write-ahead log: the head's two hours, and half of them more."""
BLOCKS = 10
"""Prometheus joins blocks until one spans a tenth of the retention."""
OWN_SERIES = 5
"""Series that Prometheus adds to those of a target: up, and four of the scrape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A figure as predicted and as measured."""

    name: str
    predicted: float
    measured: float

    @property
    def off_ratio(self) -> float:
        """By which share the prediction is off; above 0 where it is too much."""
        return self.predicted / self.measured - 1


def memory_bytes(series: float) -> float:
    """Return the resident memory of a Prometheus with so many series in its head, without queries."""
    return BASE_BYTES + SERIES_BYTES * series


def blocks_bytes(series: float, samples: float, sample_bytes: float = CHUNK_BYTES_PER_SAMPLE, *, blocks: int) -> float:
    """Return the size on disk of the samples of these series, divided among so many blocks."""
    return sample_bytes * samples + INDEX_BYTES_PER_SERIES * series * blocks


def disk_bytes(series: float, *, scrape_s: float, retention_days: float, sample_bytes: float) -> float:
    """Return the size of Prometheus's data once the retention is full."""
    per_second = series / scrape_s
    samples = per_second * retention_days * 86400
    return (
        blocks_bytes(series, samples, sample_bytes, blocks=BLOCKS)
        + WAL_BYTES_PER_SAMPLE * per_second * WAL_HOURS * 3600
    )


def simulated_series(nodes: int) -> int:
    """Return the series of so many simulated nodes, and of the target that shows the fleet's results."""
    with made_up_node() as shown:
        of_node = series_of_units(shown())
    of_fleet = series_of_units(body(fleet_sources()))
    results = sum(sum(of_fleet[unit]) for unit in OF_FLEET)
    return nodes * sum(map(sum, of_node.values())) + results + OWN_SERIES * (nodes + 1)


def compare(measured: Measured, *, nodes: int, scrape_s: int) -> list[Compared]:
    """Return each figure as predicted for these nodes and this time, and as measured.

    Disk is predicted from the samples that were taken: scrapes that a busy machine misses count as samples per second.
    """
    series = simulated_series(nodes)
    per_second = series / scrape_s
    samples = measured.block_samples
    return [
        Compared(name="series", predicted=series, measured=measured.series),
        Compared(name="samples per second", predicted=per_second, measured=measured.samples_per_second),
        Compared(name="memory, MB", predicted=memory_bytes(series) / 1e6, measured=measured.memory_bytes / 1e6),
        Compared(
            name="block on disk, MB",
            predicted=blocks_bytes(series, samples, blocks=1) / 1e6,
            # With even times: those of a machine that has too much to do are its own, and not the fleet's.
            measured=((measured.calm_chunk_bytes_per_sample or 0.0) * measured.block_samples + measured.index_bytes)
            / 1e6,
        ),
        Compared(
            name="write-ahead log, MB",
            predicted=WAL_BYTES_PER_SAMPLE * samples / 1e6,
            measured=measured.wal_bytes / 1e6,
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--scrape-seconds", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=20)
    arguments = parser.parse_args()
    duration_s = 60 * arguments.minutes
    measured = measure(nodes=arguments.nodes, scrape_s=arguments.scrape_seconds, duration_s=duration_s)
    print(f"{version()}; {arguments.nodes} nodes each {arguments.scrape_seconds} s for {arguments.minutes:g} minutes")
    if not arguments.nodes:
        print(f"memory without a target: {measured.memory_bytes / 1e6:.1f} MB")
        return
    samples, series = measured.block_samples, measured.block_series
    print(
        f"{measured.memory_bytes / measured.series:.0f} B of memory a series; in a block of"
        f" {samples / series:.0f} samples a series {measured.chunk_bytes / samples:.2f} B a sample and"
        f" {measured.index_bytes / series:.0f} B a series in its index; {measured.wal_bytes / samples:.2f} B a sample"
        f" in the write-ahead log; {measured.down} targets down; {measured.calm_chunk_bytes_per_sample:.2f} B a sample"
        " in chunks if no scrape were late"
    )
    compared = compare(measured, nodes=arguments.nodes, scrape_s=arguments.scrape_seconds)
    for figure in compared:
        print(
            f"{figure.name:20} predicted {figure.predicted:12,.0f}  measured {figure.measured:12,.0f}"
            f"  {figure.off_ratio:+.1%}"
        )
    if measured.down or any(abs(figure.off_ratio) > OFF_RATIO for figure in compared):
        sys.exit(1)


if __name__ == "__main__":
    main()
