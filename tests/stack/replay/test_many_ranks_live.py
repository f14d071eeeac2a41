"""Boards show a run of many ranks by statistics, and the same values as if each of its ranks were shown."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product

import pytest

from bench.serve.live.runs import RunLogs, Shown
from bench.serve.server import answering
from bench.store.run_dir import Run, begin
from collectors.metrics.agent import RANK_INFO
from collectors.metrics.metric import Sample
from collectors.metrics.rank import METRICS
from collectors.metrics.run_counts import STEPS
from collectors.prometheus.http_server import ServerConfig
from collectors.sample_log import Opened, Reading, SampleLog
from tests.bench.made.examples import make_case, make_machine
from tests.benchmarks.exporter_parts.logging_ranks import VALUES
from tests.dashboards.boards import all_boards
from tests.support.grafana_expressions import metric_names, with_choices, with_every_choice
from tests.support.servers import PrometheusServer, run_prometheus

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(240)]

RANKS, FEW = 33, 8
"""So few are enough to be many here: more than are shown of any run."""
SCRAPES = 3
"""Each Prometheus has as many before it is asked; a rate needs two."""
OF_SINGLE_RANKS = "rank {{rank}}"
"""The beginning of legends of lines that are ranks: of many ranks only some are there."""


@dataclass(frozen=True)
class Stored:
    """The run by its statistics and some ranks, and by all ranks, each in a Prometheus of its own."""

    by_statistics: PrometheusServer
    by_ranks: PrometheusServer
    at_unix_s: float
    """Both have scraped until then, and are asked as of then: on a busy machine, later scrapes may be late."""


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    folder = tmp_path_factory.mktemp("runs")
    run = begin(make_case(ranks=RANKS), make_machine(), folder)
    for rank in range(RANKS):
        _log(run, rank)
    with ExitStack() as stack:
        both = []
        for shown in (Shown(most_ranks=FEW), Shown()):
            logs = RunLogs(folder, on_notice=pytest.fail, shown=shown)
            opening = answering([logs.read], host="127.0.0.1", port=0, config=ServerConfig, on_notice=lambda _: None)
            server = stack.enter_context(opening)
            both.append(stack.enter_context(run_prometheus(f"127.0.0.1:{server.port}")))
        until_s = time.monotonic() + 60
        at_unix_s = time.time()
        while not all(_has_scraped(prometheus, at_unix_s) for prometheus in both):
            assert time.monotonic() < until_s, "nothing is scraped"
            time.sleep(0.2)
            at_unix_s = time.time()
        assert len(both[1].query(RANK_INFO.name, at_unix_s)) == RANKS
        yield Stored(by_statistics=both[0], by_ranks=both[1], at_unix_s=at_unix_s)
    run.close()


def _has_scraped(prometheus: PrometheusServer, at_unix_s: float) -> bool:
    scrapes = prometheus.query(f"count_over_time({RANK_INFO.name}[1m]) and {RANK_INFO.name}", at_unix_s)
    return bool(scrapes) and all(int(one["value"][1]) >= SCRAPES for one in scrapes)


def _log(run: Run, rank: int) -> None:
    log = SampleLog(run.folder / f"rank{rank}.jsonl")
    log.write(Opened(run=run.id, trial=0, rank=rank, time_ns=0, pid=rank, host="node0"))
    samples = [sample for number in range(len(METRICS)) for sample in _samples(number, rank)]
    log.write(Reading(trial=0, time_ns=time.time_ns(), mark="measured", step=0, samples=samples))
    log.close()


def _samples(number: int, rank: int) -> list[Sample]:
    """All series of one metric, each with another order of the ranks."""
    metric = METRICS[number]
    value = 1.0 + (rank * 37 + number * 11) % RANKS / RANKS
    combinations = product(*(VALUES[label] for label in metric.labels))
    labels = [dict(zip(metric.labels, values, strict=True)) for values in combinations]
    return [metric.at(value + place, **one) for place, one in enumerate(labels)]


def _queries() -> dict[str, str]:
    """What panels ask of metrics that ranks have, by board, panel and legend."""
    names = {shown.name for metric in (*METRICS, STEPS) for shown in metric.shown()}
    return {
        f"{board.name}: {panel.title}: {query.legend}": query.expression
        for board in all_boards()
        for panel in board.all_panels
        for query in panel.queries
        if names & metric_names(query.expression) and not query.legend.startswith(OF_SINGLE_RANKS)
    }


def _answer(
    prometheus: PrometheusServer, expression: str, at_unix_s: float
) -> Mapping[frozenset[tuple[str, str]], float]:
    """Value by labels, without those of the exporter."""
    return {
        frozenset((name, value) for name, value in one["metric"].items() if name != "instance"): float(one["value"][1])
        for one in prometheus.query(expression, at_unix_s)
    }


def test_each_panel_has_the_value_that_it_would_have_with_all_ranks(stored: Stored) -> None:
    assert len(stored.by_statistics.query(RANK_INFO.name, stored.at_unix_s)) < RANKS
    filled = 0
    for what, expression in _queries().items():
        asked = with_every_choice(expression)
        expected = _answer(stored.by_ranks, asked, stored.at_unix_s)
        assert _answer(stored.by_statistics, asked, stored.at_unix_s) == pytest.approx(expected, nan_ok=True), what
        filled += bool(expected)
    assert filled > 50


def test_a_chosen_rank_is_shown_by_its_own_value(stored: Stored) -> None:
    for what, expression in _queries().items():
        if "$rank" in expression:
            asked = with_choices(expression, rank="0")
            expected = _answer(stored.by_ranks, asked, stored.at_unix_s)
            assert _answer(stored.by_statistics, asked, stored.at_unix_s) == pytest.approx(expected, nan_ok=True), what
