"""What a fleet takes of a Prometheus, from series that are counted and not remembered."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path

import pytest

from bench.cli import main
from bench.cli.watching.stack import print_size
from bench.errors import Misuse
from bench.exporter.demo import RANKS, made_ranks, open_demonstration
from bench.exporter.stack.settings import PrometheusSettings, StackSettings
from bench.exporter.stack.size import (
    BEAT_S,
    CHUNK_BYTES_PER_SAMPLE,
    OF_FLEET,
    OWN_SERIES,
    UNITS,
    Fleet,
    blocks_bytes,
    body,
    fleet_sources,
    memory_bytes,
    of_one,
    series_by_unit,
    series_of_units,
    size,
    unit_of,
    usual_fleet,
)
from collectors.metrics.agent import AGENT_BEATS
from collectors.node.registry import PollingConfig

DOCS = Path(__file__).parents[4] / "docs"
EACH = dict.fromkeys(UNITS, 10.0)
USUAL = StackSettings()


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


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_has_the_series_that_a_scrape_of_the_demonstration_has(
    unit: str, each: dict[str, float], scraped: dict[str, list[int]]
) -> None:
    if unit not in scraped:
        assert unit not in each
        pytest.skip(f"this machine has no {unit}")
    assert each[unit] * len(scraped[unit]) == pytest.approx(sum(scraped[unit]), rel=0.25)


def test_the_nodes_own_series_are_all_counted(each: dict[str, float], scraped: dict[str, list[int]]) -> None:
    assert [each["node"]] == scraped["node"]


def test_the_page_shows_what_the_command_prints(each: dict[str, float], capsys: pytest.CaptureFixture[str]) -> None:
    """What is recorded or made up is the same on each machine; what the host has is near."""
    shown = (
        (DOCS / "monitoring" / "scale.md")
        .read_text()
        .partition("## 2,000 nodes of 8 GPUs\n\n")[2]
        .partition("\n\nEach 15 s")[0]
    )
    lines = [line.removeprefix("    ") for line in shown.splitlines()]
    of_page = {
        line.split()[0]: float(line.split()[2]) for line in lines[1:] if line.split()[:1] and line.split()[0] in UNITS
    }
    assert set(of_page) == set(UNITS)
    of_host = {"node", "disk", "interface", "filesystem", "numa"} & set(each)
    assert {unit: of_page[unit] for unit in each if unit not in of_host} == {
        unit: each[unit] for unit in each if unit not in of_host
    }
    assert {unit: of_page[unit] for unit in of_host} == pytest.approx({unit: each[unit] for unit in of_host}, rel=0.25)
    print_size(size(usual_fleet(2000, 8, {}), USUAL, of_page), 15, 30, "table")
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == lines


def test_series_are_those_of_all_units_and_prometheus_own() -> None:
    fleet = Fleet(
        nodes=3, per_node={**dict.fromkeys(UNITS, 0), "node": 1, "gpu": 2}, of_fleet=dict.fromkeys(OF_FLEET, 1)
    )
    found = size(fleet, USUAL, EACH)
    assert found.series == 3 * 10 + 3 * 2 * 10 + len(OF_FLEET) * 10 + 4 * OWN_SERIES
    assert found.samples_per_second == found.series / 15
    assert found.memory_bytes == memory_bytes(found.series)


def test_disk_grows_with_retention_and_shrinks_with_the_interval() -> None:
    fleet = usual_fleet(100, 8, {})

    def disk(scrape_seconds: int, retention_days: int) -> float:
        prometheus = PrometheusSettings(scrape_seconds=scrape_seconds, retention_days=retention_days)
        return size(fleet, StackSettings(prometheus=prometheus), EACH).disk_bytes

    assert disk(15, 60) > 1.9 * disk(15, 30)
    assert disk(30, 30) < 0.6 * disk(15, 30)


def test_a_block_is_its_samples_and_an_entry_of_each_series() -> None:
    a_second_block = blocks_bytes(10, 1000, blocks=2) - blocks_bytes(10, 1000, blocks=1)
    more_samples = blocks_bytes(10, 2000, blocks=1) - blocks_bytes(10, 1000, blocks=1)
    assert a_second_block > 0
    assert more_samples == pytest.approx(1000 * CHUNK_BYTES_PER_SAMPLE)


def test_a_fleet_of_2000_nodes_has_a_rank_and_a_port_for_each_gpu() -> None:
    fleet = usual_fleet(2000, 8, {"disk": 1, "result": 7})
    assert [fleet.number(unit) for unit in ("gpu", "rank", "port", "run", "disk", "result")] == [
        *(16_000, 16_000, 16_000, 2000, 2000, 7),
    ]


def test_an_unknown_unit_is_refused() -> None:
    with pytest.raises(Misuse, match="unit disc is unknown"):
        usual_fleet(1, 8, {"disc": 1})


def test_what_a_machine_has_none_of_is_left_out_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = usual_fleet(1, 8, {})
    without = {unit: each for unit, each in EACH.items() if unit != "numa"}
    found = size(fleet, USUAL, without)
    (numa,) = (part for part in found.parts if part.unit == "numa")
    assert numa.each is None
    assert found.series == size(fleet, USUAL, EACH).series - fleet.number("numa") * 10


def test_the_command_says_all_four_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["stack", "size", "--nodes", "2000", "--gpus-per-node", "8", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["series"] == sum(row["series"] for row in found["units"])
    assert found["samples_per_second"] == found["series"] / found["scrape_seconds"]
    assert 0 < found["memory_bytes"] < found["disk_bytes"] < found["late_disk_bytes"]
