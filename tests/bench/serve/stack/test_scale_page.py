"""docs/monitoring/scale.md: its series are the demonstration's, and its figures follow from them by its formula."""

from __future__ import annotations

import re
import time
import urllib.request
from pathlib import Path

import pytest

from bench.serve.demo import RANKS, made_ranks, open_demonstration
from bench.serve.stack.settings import StackSettings
from collectors.metrics.agent import AGENT_BEATS
from collectors.node.registry import PollingConfig
from tests.benchmarks.exporter_parts.fleet import (
    BASE_BYTES,
    BLOCKS,
    CHUNK_BYTES_PER_SAMPLE,
    INDEX_BYTES_PER_SERIES,
    LATE_CHUNK_BYTES_PER_SAMPLE,
    OWN_SERIES,
    SERIES_BYTES,
    WAL_BYTES_PER_SAMPLE,
    WAL_HOURS,
    disk_bytes,
    memory_bytes,
)
from tests.benchmarks.exporter_parts.units import (
    BEAT_S,
    OF_FLEET,
    body,
    fleet_sources,
    of_one,
    series_by_unit,
    series_of_units,
    unit_of,
)

PAGE = (Path(__file__).parents[4] / "docs" / "monitoring" / "scale.md").read_text()
PROMETHEUS = StackSettings().prometheus
_ROW = re.compile(r"^\| (\w+)[^|]* \| ([\d,]+) \| ([\d.]+) \| ([\d,]+) \|$", re.MULTILINE)


def _number(text: str) -> int:
    return int(text.replace(",", ""))


@pytest.fixture(scope="module")
def rows() -> dict[str, tuple[int, float, int]]:
    """The page's number, series each and series of each unit."""
    return {unit: (_number(number), float(each), _number(series)) for unit, number, each, series in _ROW.findall(PAGE)}


@pytest.mark.parametrize(
    ("labels", "unit"),
    [
        ({"gpu": "0", "clock": "sm"}, "gpu"),
        ({"rank": "1", "slot": "0", "gpu": "1", "run": "r"}, "rank"),
        ({"run": "r", "slot": "0"}, "run"),
        ({"device": "mlx5_0", "port": "1"}, "port"),
        ({"device": "nvme0n1", "direction": "read"}, "disk"),
        ({"series": "s", "strategy": "ddp", "rank": "3"}, "result"),
        ({"series": "s", "suite": "nightly", "case": "ddp", "gpu": "8 x H100"}, "result"),
        ({"suite": "nightly", "case": "ddp", "figure": "step", "series": "s"}, "figure"),
        ({"suite": "nightly", "outcome": "done"}, "suite"),
        ({"mode": "idle"}, "node"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_series_belongs_to_what_its_labels_name(labels: dict[str, str], unit: str) -> None:
    assert unit_of(labels)[0] == unit


def test_each_line_of_a_histogram_is_a_series() -> None:
    text = (
        "# TYPE h histogram\n"
        'h_bucket{rank="0",slot="0",le="1.0"} 1\n'
        'h_bucket{rank="0",slot="0",le="+Inf"} 2\n'
        'h_sum{rank="0",slot="0"} 2\n'
        'h_count{rank="0",slot="0"} 2\n'
    )
    assert series_of_units(text) == {"rank": [4]}


def test_ranks_are_counted_in_what_the_demonstration_shows() -> None:
    text = body([lambda: made_ranks(0.0)])
    lines = [line for line in text.splitlines() if 'rank="' in line]
    counted = series_of_units(text)
    assert sum(counted["rank"]) == len(lines)
    assert of_one(counted)["rank"] == len(lines) / RANKS


def test_each_unit_of_the_fleet_is_in_the_demonstration() -> None:
    assert set(series_of_units(body(fleet_sources()))) == set(OF_FLEET)


@pytest.fixture(scope="module")
def each() -> dict[str, float]:
    return series_by_unit()


def test_a_node_has_gpus_ranks_and_ports(each: dict[str, float]) -> None:
    assert {"node", "gpu", "rank", "run", "port", *OF_FLEET} <= set(each)


@pytest.fixture(scope="module")
def scraped() -> dict[str, list[int]]:
    """The series of each unit that `observatory serve --demo` shows, once each GPU has rates."""
    polling = PollingConfig(beat_s=BEAT_S)
    with open_demonstration(host="127.0.0.1", port=0, polling=polling, on_notice=lambda _: None) as server:
        until_s = time.monotonic() + 60
        beats = 0.0
        while beats < 3:
            assert time.monotonic() < until_s, "it has no beats"
            time.sleep(0.2)
            with urllib.request.urlopen(server.url, timeout=30) as answer:
                text = answer.read().decode()
            beats = sum(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{AGENT_BEATS.name} "))
    return series_of_units(text)


def test_a_unit_has_the_series_that_a_scrape_of_the_demonstration_has(
    each: dict[str, float], scraped: dict[str, list[int]]
) -> None:
    assert each.keys() == scraped.keys()
    for unit, counts in scraped.items():
        assert each[unit] * len(counts) == pytest.approx(sum(counts), rel=0.25), unit


def test_the_nodes_own_series_are_all_counted(each: dict[str, float], scraped: dict[str, list[int]]) -> None:
    assert [each["node"]] == scraped["node"]


def test_the_page_has_the_series_of_each_unit(each: dict[str, float], rows: dict[str, tuple[int, float, int]]) -> None:
    """What is recorded or made up is the same on each machine; what the host has is near."""
    of_host = {"node", "disk", "interface", "filesystem", "numa"}
    assert set(each) <= set(rows)
    assert set(rows) - set(each) <= of_host | {"target"}
    for unit, series in each.items():
        assert rows[unit][1] == (pytest.approx(series, rel=0.25) if unit in of_host else series), unit
    assert rows["target"][:2] == (rows["node"][0] + 1, OWN_SERIES)


def test_the_page_adds_up(rows: dict[str, tuple[int, float, int]]) -> None:
    for number, each, series in rows.values():
        assert series == number * each
    assert f"| all | | | {sum(series for _, _, series in rows.values()):,} |" in PAGE
    nodes, gpus = rows["node"][0], rows["gpu"][0]
    assert rows["rank"][0] == rows["port"][0] == gpus
    assert rows["interface"][0] == gpus + 2 * nodes


def test_the_page_has_the_constants_that_are_compared_with_a_real_prometheus() -> None:
    for line in (
        f"| memory | {BASE_BYTES / 1e6} MB + series x {SERIES_BYTES:,.0f} B |",
        f"| disk | samples x {CHUNK_BYTES_PER_SAMPLE} B + series x {INDEX_BYTES_PER_SERIES:g} B x {BLOCKS} blocks"
        f" + {WAL_HOURS} h x samples per second x {WAL_BYTES_PER_SAMPLE} B |",
        f"a sample takes {LATE_CHUNK_BYTES_PER_SAMPLE} B instead of {CHUNK_BYTES_PER_SAMPLE} B",
        f"{PROMETHEUS.scrape_seconds} s and {PROMETHEUS.retention_days} days",
    ):
        assert line in PAGE


def test_the_page_computes_by_the_formula(rows: dict[str, tuple[int, float, int]]) -> None:
    series = sum(series for _, _, series in rows.values())
    scrape_s, days = PROMETHEUS.scrape_seconds, PROMETHEUS.retention_days
    memory_gb = memory_bytes(series) / 1e9
    on_time_gb, late_gb = (
        disk_bytes(series, scrape_s=scrape_s, retention_days=days, sample_bytes=sample_bytes) / 1e9
        for sample_bytes in (CHUNK_BYTES_PER_SAMPLE, LATE_CHUNK_BYTES_PER_SAMPLE)
    )
    idle = series - rows["rank"][2] - rows["run"][2]
    text = " ".join(PAGE.split())
    assert (
        f"that is {series / scrape_s:,.0f} samples per second, {memory_gb:.1f} GB of memory (so give it"
        f" {2 * memory_gb:.0f} GB), and {on_time_gb:,.0f} GB of disk for {days} days, or {late_gb:,.0f} GB if"
    ) in text
    assert f"(no rank, no run) {idle:,} series need {memory_bytes(idle) / 1e9:.1f} GB" in text
