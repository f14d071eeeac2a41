"""A real Prometheus tells quantiles of a run's steps from their histogram, and names slow steps."""

from __future__ import annotations

import json
import math
import random
import re
import time
import urllib.parse
import urllib.request
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

import pytest

from bench.serve.server import open_server
from bench.store.run_dir import begin
from collectors.metrics.agent import RUN_INFO
from collectors.metrics.rank import LOSS, STEP_SECONDS
from collectors.metrics.run_counts import STEP_DURATION, STEPS
from collectors.prometheus.exposition import BOUNDS_S
from collectors.sample_log import Opened, Reading, SampleLog
from tests.bench.made.examples import make_machine, small_case
from tests.dashboards.boards import board
from tests.support.grafana_expressions import with_choices
from tests.support.servers import PrometheusServer, run_prometheus
from tests.waiting import wait_until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(120)]

BY_SLOT = f"sum by (le, job, instance, slot) ({STEP_DURATION.name}_bucket)"
LATELY_BY_SLOT = f"sum by (le, job, instance, slot) (rate({STEP_DURATION.name}_bucket[5m]))"
STEPS_DONE = 10_000
LOSS_NATS = 1.25
_RANDOM = random.Random(3)
TIMES_S = [_RANDOM.lognormvariate(math.log(0.12), 0.25) for _ in range(STEPS_DONE)]
"""Of each measured step of the one rank."""
TRUE_S = {percent / 100: quantiles(TIMES_S, n=100)[percent - 1] for percent in (50, 99)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a Prometheus has stored of a live run."""

    run: str
    stored: PrometheusServer


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    home = tmp_path_factory.mktemp("home")
    run = begin(small_case(), make_machine(), home / "runs")
    log = SampleLog(run.folder / "rank0.jsonl")
    with ExitStack() as stack:
        stack.callback(run.close)
        stack.enter_context(closing(log))
        server = stack.enter_context(
            open_server(
                home / "runs", f"sqlite:///{home}/history.sqlite", host="127.0.0.1", port=0, on_notice=lambda text: None
            )
        )
        stored = stack.enter_context(run_prometheus(f"127.0.0.1:{server.port}", features=("exemplar-storage",)))
        log.write(Opened(run=run.id, trial=0, rank=0, time_ns=time.time_ns(), pid=1, host="node0"))
        wait_until(lambda: _count(stored) == 0)
        for step, step_s in enumerate(TIMES_S):
            log.write(
                Reading(
                    trial=0,
                    time_ns=time.time_ns(),
                    mark="measured",
                    step=step,
                    samples=[STEP_SECONDS.at(step_s), LOSS.at(LOSS_NATS)],
                )
            )
        wait_until(lambda: _count(stored) == STEPS_DONE)
        yield Seen(run=run.id, stored=stored)


def _count(stored: PrometheusServer) -> float | None:
    found = stored.query(f"{STEP_DURATION.name}_count")
    return float(found[0]["value"][1]) if found else None


def _value(seen: Seen, expression: str) -> float:
    (one,) = seen.stored.query(expression)
    return float(one["value"][1])


@pytest.mark.parametrize("quantile", TRUE_S)
def test_a_quantile_is_in_the_bucket_of_the_true_one(seen: Seen, quantile: float) -> None:
    place = bisect_left(BOUNDS_S, TRUE_S[quantile])
    for expression in (
        f"histogram_quantile({quantile}, {LATELY_BY_SLOT})",
        f"histogram_quantile({quantile}, {BY_SLOT})",
    ):
        assert BOUNDS_S[place - 1] < _value(seen, expression) <= BOUNDS_S[place]


def test_a_quantile_can_be_told_with_its_run(seen: Seen) -> None:
    quantile = f"histogram_quantile(0.99, {LATELY_BY_SLOT})"
    run = "max by (job, instance, slot, run, strategy) (observatory_run_info)"
    (one,) = seen.stored.query(f"{quantile} * on (job, instance, slot) group_left (run, strategy) {run}")
    assert (one["metric"]["run"], one["metric"]["strategy"], one["metric"]["slot"]) == (seen.run, "ddp", "0")


ASKED = {
    f"{panel.title}: {query.legend}": query.expression
    for panel in board("one-run").all_panels
    for query in panel.queries
    if STEP_DURATION.name in query.expression and panel.kind != "heatmap"
}
"""What "One run" asks of quantiles of steps."""


def _of_run(seen: Seen, expression: str) -> str:
    return with_choices(expression.replace("$__rate_interval", "5m"), run=seen.run)


@pytest.mark.parametrize("name", ASKED)
def test_the_page_of_a_run_tells_quantiles(seen: Seen, name: str) -> None:
    quantile = float(re.findall(r"histogram_quantile\(([\d.]+),", ASKED[name])[0])
    true_s = quantiles(TIMES_S, n=100)[round(100 * quantile) - 1]
    place = bisect_left(BOUNDS_S, true_s)
    assert BOUNDS_S[place - 1] < _value(seen, _of_run(seen, ASKED[name])) <= BOUNDS_S[place]


def test_the_page_of_a_run_has_a_heatmap(seen: Seen) -> None:
    (heatmap,) = (panel for panel in board("one-run").all_panels if panel.kind == "heatmap")
    (query,) = heatmap.queries
    assert {one["metric"]["le"] for one in seen.stored.query(_of_run(seen, query.expression))} >= {"0.125", "+Inf"}


def test_the_page_of_a_run_tells_no_quantile_of_another(seen: Seen) -> None:
    for expression in ASKED.values():
        asked = with_choices(expression.replace("$__rate_interval", "5m"), run="another")
        assert seen.stored.query(asked) == []


def test_all_else_is_there(seen: Seen) -> None:
    assert _value(seen, LOSS.name) == LOSS_NATS
    assert _value(seen, RUN_INFO.name) == 1
    assert _value(seen, f'{STEPS.name}{{mark="measured"}}') == STEPS_DONE


def _exemplars(server: PrometheusServer, expression: str) -> dict[str, list[dict[str, Any]]]:
    """By the upper bound of their bucket, where it has a series of its own."""
    now_s = time.time()
    asked = urllib.parse.urlencode({"query": expression, "start": now_s - 300, "end": now_s + 60})
    with urllib.request.urlopen(f"{server.url}/api/v1/query_exemplars?{asked}", timeout=30) as answer:
        return {one["seriesLabels"].get("le", ""): one["exemplars"] for one in json.load(answer)["data"]}


def test_each_bucket_names_a_step_that_took_so_long(seen: Seen) -> None:
    found = _exemplars(seen.stored, f"{STEP_DURATION.name}_bucket")
    assert len(found) == len({bisect_left(BOUNDS_S, step_s) for step_s in TIMES_S})
    for bound, exemplars in found.items():
        for one in exemplars:
            assert one["labels"] == {"run": seen.run, "trial": "0", "rank": "0", "step": one["labels"]["step"]}
            assert float(one["value"]) == TIMES_S[int(one["labels"]["step"])] <= float(bound)


def test_the_page_of_a_run_shows_exemplars(seen: Seen) -> None:
    (asked,) = (query for panel in board("one-run").all_panels for query in panel.queries if query.has_exemplars)
    found = _exemplars(seen.stored, _of_run(seen, asked.expression))
    assert {one["labels"]["run"] for exemplars in found.values() for one in exemplars} == {seen.run}


def test_no_exemplar_is_refused(seen: Seen) -> None:
    with urllib.request.urlopen(f"{seen.stored.url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    refused = "prometheus_target_scrapes_exemplar_out_of_order_total"
    assert [line for line in lines if line.startswith(refused)] == [f"{refused} 0"]
