"""The dashboards' queries on a real Prometheus that scrapes `observatory serve` of a node of fake GPUs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bench.fake_gpus.test_serve import BLACKWELL, HEALTHY, HOT, LINK_DOWN, LOSING, PENDING, serving, ward
from tests.dashboards.boards import board
from tests.support.grafana_expressions import with_every_choice
from tests.support.nvml.library import fake_node
from tests.support.nvml.scenes import LOST
from tests.support.servers import PrometheusServer, run_prometheus

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(300)]

QUERIES = {
    f"{name}: {panel.title}: {query.legend}": with_every_choice(query.expression).replace("[1m]", "[30s]")
    for name in ("fleet", "one-gpu")
    for panel in board(name).all_panels
    for query in panel.queries
}
HELD = "one-gpu: Share of time in which clocks are throttled, by reason"
PATIENT = {"scrape_interval": "4s", "scrape_timeout": "4s"}
"""Of a job whose scrapes a busy machine may answer late."""
RATE = 100e9
"""Bytes per second that each NVLink of a GPU carries in sum, in one direction."""
Answers = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def answers(nvml_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    """Every query's answer once a GPU is lost, and another's memory waits for a reset."""
    folder = tmp_path_factory.mktemp("ward")
    scene = {
        **ward(),
        f"{HEALTHY}.Field.138.all": f"0+{RATE / 1024}",
        f"{BLACKWELL}.Field.202.all": f"0+{RATE}",
        f"{LOSING}.All": LOST,
    }
    with (
        serving(fake_node(folder, nvml_library, scene), folder) as server,
        run_prometheus(server.address.removeprefix("http://"), jobs={"observatory": PATIENT}) as prometheus,
    ):
        yield _ask(prometheus)


def _ask(prometheus: PrometheusServer) -> Answers:
    until = time.monotonic() + 120
    while True:
        time.sleep(2)
        found = {name: prometheus.query(expression) for name, expression in QUERIES.items()}
        states = {labels["gpu"] for labels, _ in _series(found, "one-gpu: Lost, late, or waiting for a repair")}
        whole = (
            {str(LOSING), str(PENDING)} <= states,
            len([value for _, value in _series(found, "one-gpu: NVLink traffic") if value > 0]) >= 2,
            any(value > 0 for _, value in _series(found, HELD, gpu=str(HOT))),
            _series(found, "fleet: GPUs responding") and _series(found, "fleet: GPUs not responding"),
        )
        if all(whole) or time.monotonic() > until:
            return found


def _series(answers: Answers, panel: str, **labels: str) -> list[tuple[dict[str, str], float]]:
    found = [one for name, series in answers.items() if name.startswith(f"{panel}: ") for one in series]
    return [(one["metric"], float(one["value"][1])) for one in found if labels.items() <= one["metric"].items()]


def test_a_lost_gpu_and_one_that_waits_for_a_reset_are_the_ones_that_are_shown(answers: Answers) -> None:
    states = _series(answers, "one-gpu: Lost, late, or waiting for a repair")
    unhealthy = {labels["gpu"]: labels.get("state") for labels, value in states if value == 1}
    assert unhealthy[str(LOSING)] == "lost"
    assert str(PENDING) in unhealthy
    assert str(HEALTHY) not in unhealthy


def test_nvlinks_traffic_is_in_bytes_whichever_field_counts_it(answers: Answers) -> None:
    """Both GPUs send alike, one counted in KiB; the rates themselves depend on when Prometheus scraped."""
    sent = [
        value
        for gpu in (HEALTHY, BLACKWELL)
        for _, value in _series(answers, "one-gpu: NVLink traffic", gpu=str(gpu))
        if value > 0
    ]
    assert len(sent) == 2
    assert sent[0] == pytest.approx(sent[1], rel=0.3)


def test_gpus_that_are_held_back_are_shown_with_the_reason(answers: Answers) -> None:
    held = _series(answers, HELD)
    assert {(labels["gpu"], labels["reason"]) for labels, value in held if value > 0} >= {
        (str(HOT), "hardware_thermal"),
        (str(HOT), "software_thermal"),
    }


def test_the_identity_of_each_gpu_that_answers_is_listed(answers: Answers) -> None:
    listed = _series(answers, "one-gpu: Links, firmware and driver of each GPU")
    nvlinks = {labels["gpu"]: labels["nvlink"] for labels, _ in listed}
    assert nvlinks[str(LINK_DOWN)] == "4.0 x17"
    assert nvlinks[str(BLACKWELL)] == "5.0 x18"
    assert len(nvlinks) == 15


def test_the_fleet_counts_the_gpus(answers: Answers) -> None:
    counted = sum(_series(answers, f"fleet: GPUs {what}")[0][1] for what in ("responding", "not responding"))
    assert counted == 16


def test_no_answer_is_a_number_that_cannot_be(answers: Answers) -> None:
    assert [name for name, series in answers.items() if any(one["value"][1] in {"NaN", "+Inf"} for one in series)] == []
