"""A real Prometheus takes for simulated nodes what docs/monitoring/scale.md predicts, within a quarter."""

from __future__ import annotations

import pytest

from tests.benchmarks.exporter_parts.fleet import OFF_RATIO, Compared, compare
from tests.benchmarks.exporter_parts.simulated_fleet import Measured, measure

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(300)]

NODES, SCRAPE_S, DURATION_S = 20, 1, 130.0
"""So long that each series has one full chunk, of 120 samples. docs/measured/fleet.md has 200 nodes."""


@pytest.fixture(scope="module")
def measured() -> Measured:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("GOGC", raising=False)  # Other tests let Prometheus keep its garbage longer.
        return measure(nodes=NODES, scrape_s=SCRAPE_S, duration_s=DURATION_S)


@pytest.fixture(scope="module")
def compared(measured: Measured) -> dict[str, Compared]:
    figures = compare(measured, nodes=NODES, scrape_s=SCRAPE_S)
    return {figure.name: figure for figure in figures}


def test_each_simulated_node_is_scraped(measured: Measured) -> None:
    assert measured.down == 0


@pytest.mark.parametrize("name", ["series", "samples per second", "memory, MB", "block on disk, MB"])
def test_a_prediction_is_within_a_quarter(name: str, compared: dict[str, Compared]) -> None:
    assert abs(compared[name].off_ratio) <= OFF_RATIO, compared[name]
