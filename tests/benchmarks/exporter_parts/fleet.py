"""What a real Prometheus takes of simulated nodes, beside what `observatory stack size` predicts of them.

    python -m tests.benchmarks.exporter_parts.fleet [--nodes N] [--scrape-seconds N] [--minutes N]

Ends with 1 where a prediction is off by more than a quarter. With --nodes 0 it measures a Prometheus without a target.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

from bench.exporter.stack.settings import PrometheusSettings, StackSettings
from bench.exporter.stack.size import (
    OF_FLEET,
    UNITS,
    WAL_BYTES_PER_SAMPLE,
    Fleet,
    blocks_bytes,
    body,
    fleet_sources,
    made_up_node,
    memory_bytes,
    of_one,
    series_of_units,
    size,
)
from tests.benchmarks.exporter_parts.simulated_fleet import Measured, measure, version

OFF_RATIO = 0.25
"""How far a prediction may be from what is measured."""


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


def simulated(nodes: int) -> tuple[Fleet, dict[str, float]]:
    """Return the fleet that is simulated, and the series of one unit of each kind in it."""
    with made_up_node() as shown:
        of_node = series_of_units(shown())
    of_fleet = {unit: counts for unit, counts in series_of_units(body(fleet_sources())).items() if unit in OF_FLEET}
    fleet = Fleet(
        nodes=nodes,
        per_node={unit: len(of_node.get(unit, ())) for unit in UNITS if unit not in OF_FLEET},
        of_fleet={unit: len(of_fleet[unit]) for unit in OF_FLEET},
    )
    return fleet, of_one({**of_node, **of_fleet})


def compare(measured: Measured, *, nodes: int, scrape_s: int, duration_s: float) -> list[Compared]:
    """Return each figure as predicted for these nodes and this time, and as measured."""
    fleet, each = simulated(nodes)
    predicted = size(fleet, StackSettings(prometheus=PrometheusSettings(scrape_seconds=scrape_s)), each)
    samples = predicted.samples_per_second * duration_s
    return [
        Compared(name="series", predicted=predicted.series, measured=measured.series),
        Compared(
            name="samples per second", predicted=predicted.samples_per_second, measured=measured.samples_per_second
        ),
        Compared(
            name="memory, MB", predicted=memory_bytes(predicted.series) / 1e6, measured=measured.memory_bytes / 1e6
        ),
        Compared(
            name="block on disk, MB",
            predicted=blocks_bytes(predicted.series, samples, blocks=1) / 1e6,
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
    asked = parser.parse_args()
    duration_s = 60 * asked.minutes
    found = measure(nodes=asked.nodes, scrape_s=asked.scrape_seconds, duration_s=duration_s)
    print(f"{version()}; {asked.nodes} nodes each {asked.scrape_seconds} s for {asked.minutes:g} minutes")
    if not asked.nodes:
        print(f"memory without a target: {found.memory_bytes / 1e6:.1f} MB")
        return
    samples, series = found.block_samples, found.block_series
    print(
        f"{found.memory_bytes / found.series:.0f} B of memory a series; in a block of {samples / series:.0f} samples a"
        f" series {found.chunk_bytes / samples:.2f} B a sample and {found.index_bytes / series:.0f} B a series in its"
        f" index; {found.wal_bytes / samples:.2f} B a sample in the write-ahead log; {found.down} targets down;"
        f" {found.calm_chunk_bytes_per_sample:.2f} B a sample in chunks if no scrape were late"
    )
    compared = compare(found, nodes=asked.nodes, scrape_s=asked.scrape_seconds, duration_s=duration_s)
    for one in compared:
        print(f"{one.name:20} predicted {one.predicted:12,.0f}  measured {one.measured:12,.0f}  {one.off_ratio:+.1%}")
    if found.down or any(abs(one.off_ratio) > OFF_RATIO for one in compared):
        sys.exit(1)


if __name__ == "__main__":
    main()
