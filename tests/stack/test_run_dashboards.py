"""The dashboards of runs and results have an answer in a real Prometheus, and none shows another run's series.

Asked is the demonstration, beside which another run goes on: in another slot of its node, with steps of its own length.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from bench.serve import demo
from bench.serve.server import answering
from collectors.metrics import agent, rank
from collectors.metrics.gpu import RANK_GPU
from collectors.node.registry import PollingConfig
from collectors.node.watch import NodeWatch
from collectors.prometheus.exposition import Owned
from collectors.prometheus.http_server import ServerConfig
from tests.dashboards.boards import Board, board
from tests.support.grafana_expressions import with_choices, with_every_choice
from tests.support.servers import PrometheusServer, run_prometheus

pytestmark = [pytest.mark.stack, pytest.mark.timeout(180)]

OTHER, OTHER_STEP_S, OTHER_RANKS = "other", 7.0, 2
DASHBOARDS = tuple(map(board, ("one-run", "which-strategy-pays", "does-it-scale", "nightly", "ceilings")))
AT_THE_END = " and topk("
"""After it an expression says which series are kept: those that were largest at whole minutes of the time range."""
NOT_HERE = ("series:", AT_THE_END, 'outcome="timed_out"', 'outcome="missing"')
"""What is recorded every ten minutes or asked at whole minutes, for which a test does not
wait, and outcomes that no made-up case has. tests/stack/test_joins.py asks for what is joined there.
"""


BEGUN_S = 300.0
"""The demonstration's run goes on for so long already."""

SCRAPES = {"scrape_interval": "3s", "scrape_timeout": "3s"}
"""A busy machine may need more than a second for this page, and what misses its limit is absent."""

LATE_S = 60.0
"""The longest wait for an answer: windows of rates must fill, and GPUs be asked."""

Found = list[dict[str, Any]]


def _other_run() -> Iterator[Owned]:
    of_case = {"strategy": "fsdp", "ranks": str(OTHER_RANKS), "nodes": "1", "device": "cuda", "shape": "8b"}
    named = {"name": "fsdp on 2, 8b, bf16, cuda", "precision": "bf16", "suite": "", "case": "", "commit": ""}
    yield agent.RUN_INFO.at(1, run=OTHER, slot="1", series="other", **of_case, **named), {}
    for number in range(OTHER_RANKS):
        owner = {"rank": str(number), "slot": "1"}
        yield agent.RANK_INFO.at(1, run=OTHER, host="demonstration"), owner
        yield rank.STEP_SECONDS.at(OTHER_STEP_S), owner
        yield RANK_GPU.at(1, run=OTHER, gpu="0", slice=""), owner


@pytest.fixture(scope="module")
def prometheus() -> Iterator[PrometheusServer]:
    begun_s, unix_s = time.monotonic() - BEGUN_S, time.time() - BEGUN_S
    notices: list[str] = []
    sources = (
        lambda: demo.made_ranks(time.monotonic() - begun_s, unix_s),
        lambda: demo.made_results(unix_s - demo.COMPLETED_AGO_S),
        lambda: demo.made_suites(unix_s, time.monotonic() - begun_s),
        _other_run,
    )
    with (
        NodeWatch(
            lambda: demo.open_recorded_collectors(PollingConfig(beat_s=0.5)), beat_s=0.5, on_notice=lambda _: None
        ) as watch,
        answering(
            (watch.samples, *sources), host="127.0.0.1", port=0, config=ServerConfig, on_notice=notices.append
        ) as server,
        run_prometheus(f"127.0.0.1:{server.port}", jobs={"observatory": SCRAPES}) as started,
    ):
        yield started
    assert len(notices) == 1, notices  # Where it served, and no trouble.


def _ask(prometheus: PrometheusServer, expression: str) -> Found:
    """Return the answer, asking again while there is none: a scrape may be late on a busy machine."""
    until = time.monotonic() + LATE_S
    while not (found := prometheus.query(expression)) and time.monotonic() < until:
        time.sleep(0.5)
    return found


def _of_run(expression: str, run: str = demo.RUN, window: str = "1m") -> str:
    """Return the expression with one run chosen, and everything else."""
    return with_every_choice(expression.replace("$__rate_interval", window).replace("$run", run))


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.name)
def test_no_panel_is_empty(dashboard: Board, prometheus: PrometheusServer) -> None:
    for query in dashboard.queries:
        if any(words in query.expression for words in NOT_HERE):
            continue
        for expression in {_of_run(query.expression, window=window) for window in ("15s", "1m")}:
            found = _ask(prometheus, expression)
            assert found, expression
            assert all(series["value"][1] not in {"NaN", "+Inf", "-Inf"} for series in found), expression


@pytest.mark.parametrize(("run", "ranks"), [(demo.RUN, demo.RANKS), (OTHER, OTHER_RANKS)])
def test_a_chosen_run_has_its_own_ranks_only(run: str, ranks: int, prometheus: PrometheusServer) -> None:
    (query,) = board("one-run").panel("Step: the 8 slowest ranks").queries
    found = _ask(prometheus, _of_run(query.expression.partition(AT_THE_END)[0], run))
    assert sorted(series["metric"]["rank"] for series in found) == [str(number) for number in range(ranks)]
    assert {float(series["value"][1]) > 1 for series in found} == {run == OTHER}


def test_nothing_on_the_page_of_a_run_is_of_another(prometheus: PrometheusServer) -> None:
    for panel in board("one-run").all_panels:
        for query in panel.queries:
            found = prometheus.query(_of_run(query.expression))
            assert {series["metric"].get("run", demo.RUN) for series in found} <= {demo.RUN}, panel.title
            assert all(float(series["value"][1]) != OTHER_STEP_S for series in found), panel.title


def test_two_ranks_on_one_gpu_each_have_its_values(prometheus: PrometheusServer) -> None:
    (query,) = board("one-run").panel("Power: the 8 GPUs that draw most").queries
    every, _, _ = query.expression.partition("\nand\n")  # Which are the worst is asked of whole minutes.
    found = _ask(prometheus, _of_run(every, OTHER))
    assert sorted(series["metric"]["rank"] for series in found) == ["0", "1"]
    assert {series["metric"]["gpu"] for series in found} == {"0"}


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.name)
def test_lines_of_one_query_have_names_of_their_own(dashboard: Board, prometheus: PrometheusServer) -> None:
    is_of_one_series = any(one["name"] == "series" and not one["multi"] for one in dashboard.variables)
    chosen = "ddp on 6, 8b, bf16, cuda" if is_of_one_series else "$series"
    for panel in dashboard.all_panels:
        for query in panel.queries:
            if panel.kind == "table":
                continue
            expression = _of_run(query.expression.replace("$series", chosen))
            names = [
                re.sub(r"\{\{(\w+)\}\}", lambda label: series["metric"].get(label[1], ""), query.legend)  # noqa: B023
                for series in prometheus.query(expression)
            ]
            assert len(names) == len(set(names)), (panel.title, names)


def test_of_strategies_whose_intervals_meet_none_is_called_the_best(prometheus: PrometheusServer) -> None:
    (query,) = board("which-strategy-pays").panel("Fastest strategy").queries
    (best,) = _ask(prometheus, with_choices(query.expression, ranks="6"))
    assert best["metric"]["name"] == "no difference shown"


def test_verdicts_and_failures_are_counted(prometheus: PrometheusServer) -> None:
    counts = {
        title: [float(one["value"][1]) for one in _ask(prometheus, with_every_choice(query.expression))]
        for title in ("Regressions", "Crept levels", "No change shown", "Missing cases", "Failed cases")
        for query in board("nightly").panel(title).queries
    }
    assert counts == {
        "Regressions": [1],
        "Crept levels": [0],
        "No change shown": [1],
        "Missing cases": [1],
        "Failed cases": [1],
    }


def test_the_table_of_series_tells_the_worst_verdict_on_each(prometheus: PrometheusServer) -> None:
    (table,) = (panel for panel in board("nightly").panels if panel.title.startswith("Series: "))
    (query,) = (query for query in table.queries if query.legend == "Gate")
    found = _ask(prometheus, with_every_choice(query.expression))
    words = {float(value): word["text"] for value, word in table.looks("Gate")["mappings"][0]["options"].items()}
    told = {one["metric"]["series"]: words[float(one["value"][1])] for one in found}
    assert told == {"demonstration-ddp": "worse", "demonstration-fsdp": "not worse"}


def test_a_slow_link_stands_out_among_pairs(prometheus: PrometheusServer) -> None:
    (query,) = board("ceilings").panel("Slowest pair").queries
    (ratio,) = _ask(prometheus, with_every_choice(query.expression))
    assert float(ratio["value"][1]) == pytest.approx(40 / 130, rel=0.01)
