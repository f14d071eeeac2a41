"""Every dashboard as Grafana asks it, over a made-up past: what is there is shown, and only of what is chosen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

import pytest

from bench.serve.demo import RUN, STRATEGY
from dashboards.board import BOARDS, read_board
from tests.stack.pages.asking import Page, rendered
from tests.stack.pages.past import OTHER_RUN, PART_S, PARTS, Part, Past, made_past

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(300)]

NAMES = list(BOARDS)
MOST_SAMPLES = 5_000_000
"""What a query may read: a Prometheus reads some ten million a second."""
NODES = 50
OF_A_WATCHED_RUN = {
    "Late rank of a watched run",
    "Long steps of a watched run",
    "Phases of each rank of a watched run",
}


@pytest.fixture(scope="module", params=[15, 60], ids=lambda scrape_s: f"scraped each {scrape_s} s")
def past(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Past]:
    with made_past(tmp_path_factory.mktemp("past"), nodes=1, scrape_s=request.param) as made:
        yield made


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Past]:
    parts: tuple[Part, ...] = ("two runs",)
    with made_past(tmp_path_factory.mktemp("fleet"), nodes=NODES, scrape_s=60, parts=parts) as made:
        yield made


def _page(
    past: Past, name: str, part: Part, *, told_s: int | None = None, chosen: Mapping[str, str] | None = None
) -> Page:
    """The page at the end of a part. told_s: the interval that the data source was told; None for the true one."""
    return Page(
        dashboard=rendered(name),
        prometheus=past.prometheus,
        end_s=past.end_of(part),
        back_s=PART_S - 2 * past.scrape_s,
        scrape_s=told_s or past.scrape_s,
        chosen=chosen or {},
    )


@pytest.mark.parametrize(("name", "part"), list(product(NAMES, PARTS)))
def test_no_panel_is_empty_whose_metrics_are_there(name: str, part: Part, past: Past) -> None:
    assert _page(past, name, part).empty() == set()


@pytest.mark.parametrize("part", ["between runs", "two runs"])  # Before, there is no result.
def test_a_watched_run_that_is_chosen_fills_its_panels(part: Part, past: Past) -> None:
    answers = _page(past, "who-waits-for-whom", part, chosen={"strategy": "watched"}).answers()
    assert {answer.panel for answer in answers if answer.series} >= OF_A_WATCHED_RUN
    assert all(answer.series for answer in answers if answer.panel in OF_A_WATCHED_RUN)


@pytest.mark.parametrize("name", NAMES)
def test_no_panel_is_empty_where_grafana_was_told_a_shorter_interval(name: str, past: Past) -> None:
    assert _page(past, name, "two runs", told_s=15).empty() == set()


@pytest.mark.parametrize(
    ("name", "variable", "value"),
    [
        (name, variable["name"], {"run": RUN, "strategy": STRATEGY}[variable["name"]])
        for name in BOARDS
        for variable in read_board(name)["variables"]
        if variable["name"] in ("run", "strategy")
    ],
)
def test_nothing_of_another_run_is_shown(name: str, variable: str, value: str, past: Past) -> None:
    answers = _page(past, name, "two runs", chosen={variable: value}).answers()
    runs = {series["run"] for answer in answers for series in answer.series if "run" in series}
    assert OTHER_RUN not in runs


@pytest.mark.parametrize("name", NAMES)
def test_a_page_of_fifty_nodes_reads_little(name: str, fleet: Past) -> None:
    answers = _page(fleet, name, "two runs").answers()
    most = max(answers, key=lambda answer: answer.samples)
    assert most.samples <= MOST_SAMPLES, (most.panel, most.expression)


@pytest.mark.parametrize("name", NAMES)
def test_no_panel_of_fifty_nodes_is_empty_whose_metrics_are_there(name: str, fleet: Past) -> None:
    assert _page(fleet, name, "two runs").empty() == set()


def test_the_past_has_both_runs_and_all_nodes(fleet: Past) -> None:
    page = _page(fleet, NAMES[0], "two runs")
    found = page.prometheus.query(f"count by (run) (observatory_run_info @ {page.end_s:.0f})")
    assert {series["metric"]["run"] for series in found} == {RUN, OTHER_RUN}
    nodes = page.prometheus.query(f"count(count by (instance) (observatory_gpu_state_info @ {page.end_s:.0f}))")
    assert nodes[0]["value"][1] == str(NODES)
