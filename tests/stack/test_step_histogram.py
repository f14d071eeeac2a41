"""A real Prometheus tells quantiles of a run's steps, from classic and from native buckets, and names slow steps."""

from __future__ import annotations

import json
import math
import random
import re
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from statistics import quantiles
from typing import Any, Literal

import pytest

from bench.exporter.server import open_server
from bench.runs.run_dir import begin
from collectors.metrics.agent import RUN_INFO
from collectors.metrics.rank import LOSS, STEP_SECONDS
from collectors.metrics.run_counts import STEP_DURATION, STEPS
from collectors.prometheus.histogram import CLASSIC_BOUNDS, classic_bucket, native_bucket
from collectors.sample_log import Opened, Reading, SampleLog
from tests.bench.made.examples import make_machine, small_case
from tests.dashboards.boards import board
from tests.support.grafana_expressions import with_choices
from tests.support.servers import PrometheusServer, run_prometheus

pytestmark = [pytest.mark.stack, pytest.mark.timeout(120)]

Buckets = Literal["classic", "native"]
FEATURES = {"classic": ("exemplar-storage",), "native": ("exemplar-storage", "native-histograms")}
STEPS_DONE = 10_000
LOSS_NATS = 1.25
_RANDOM = random.Random(3)
TIMES_S = [_RANDOM.lognormvariate(math.log(0.12), 0.25) for _ in range(STEPS_DONE)]
"""Of each measured step of the one rank."""
TRUE_S = {percent / 100: quantiles(TIMES_S, n=100)[percent - 1] for percent in (50, 99)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What two Prometheus have stored of a live run, by the buckets that each keeps."""

    run: str
    stored: Mapping[Buckets, PrometheusServer]


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
        stored: dict[Buckets, PrometheusServer] = {
            kept: stack.enter_context(run_prometheus(f"127.0.0.1:{server.port}", features=FEATURES[kept]))
            for kept in ("classic", "native")
        }
        log.write(Opened(run=run.id, trial=0, rank=0, time_ns=time.time_ns(), pid=1, host="node0"))
        _wait_until(lambda: all(_count(stored, kept) == 0 for kept in stored))
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
        _wait_until(lambda: all(_count(stored, kept) == STEPS_DONE for kept in stored))
        yield Seen(run=run.id, stored=stored)


def _count(stored: Mapping[Buckets, PrometheusServer], kept: Buckets) -> float | None:
    name = STEP_DURATION.name
    found = stored[kept].query(f"{name}_count" if kept == "classic" else f"histogram_count({name})")
    return float(found[0]["value"][1]) if found else None


def _wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until, "it never became so"
        time.sleep(0.2)


def _value(seen: Seen, kept: Buckets, expression: str) -> float:
    (one,) = seen.stored[kept].query(expression)
    return float(one["value"][1])


@pytest.mark.parametrize("quantile", TRUE_S)
def test_a_quantile_by_classic_buckets_is_in_the_bucket_of_the_true_one(seen: Seen, quantile: float) -> None:
    place = classic_bucket(native_bucket(TRUE_S[quantile]))
    for expression in (
        f"histogram_quantile({quantile}, sum by (le) (rate({STEP_DURATION.name}_bucket[5m])))",
        f"histogram_quantile({quantile}, sum by (le) ({STEP_DURATION.name}_bucket))",
    ):
        assert CLASSIC_BOUNDS[place - 1] < _value(seen, "classic", expression) <= CLASSIC_BOUNDS[place]


@pytest.mark.parametrize("quantile", TRUE_S)
def test_a_quantile_by_native_buckets_is_within_five_percent_of_the_true_one(seen: Seen, quantile: float) -> None:
    for expression in (
        f"histogram_quantile({quantile}, rate({STEP_DURATION.name}[5m]))",
        f"histogram_quantile({quantile}, {STEP_DURATION.name})",
    ):
        assert _value(seen, "native", expression) == pytest.approx(TRUE_S[quantile], rel=0.05)


ASKED = {
    f"{panel.title}: {query.legend}": query.expression
    for panel in board("one-run").all_panels
    for query in panel.queries
    if STEP_DURATION.name in query.expression and panel.kind != "heatmap"
}
"""What "One run" asks of quantiles of steps."""


def _of_run(seen: Seen, expression: str) -> str:
    return with_choices(expression.replace("$__rate_interval", "5m"), run=seen.run)


@pytest.mark.parametrize("kept", FEATURES)
@pytest.mark.parametrize("name", ASKED)
def test_the_page_of_a_run_tells_quantiles_of_either_buckets(seen: Seen, name: str, kept: Buckets) -> None:
    quantile = float(re.findall(r"histogram_quantile\(([\d.]+),", ASKED[name])[0])
    true_s = quantiles(TIMES_S, n=100)[round(100 * quantile) - 1]
    assert _value(seen, kept, _of_run(seen, ASKED[name])) == pytest.approx(true_s, rel=_widest(kept, true_s))


def _widest(kept: Buckets, true_s: float) -> float:
    if kept == "native":
        return 0.05
    place = classic_bucket(native_bucket(true_s))
    return CLASSIC_BOUNDS[place] / CLASSIC_BOUNDS[place - 1] - 1


@pytest.mark.parametrize("kept", FEATURES)
def test_the_page_of_a_run_has_a_heatmap_of_either_buckets(seen: Seen, kept: Buckets) -> None:
    (heatmap,) = (panel for panel in board("one-run").all_panels if panel.kind == "heatmap")
    classic, native = (seen.stored[kept].query(_of_run(seen, query.expression)) for query in heatmap.queries)
    assert bool(classic) == (kept == "classic")
    assert [list(one) for one in native] == ([["metric", "histogram"]] if kept == "native" else [])


def test_the_page_of_a_run_tells_no_quantile_of_another(seen: Seen) -> None:
    for expression in ASKED.values():
        asked = with_choices(expression.replace("$__rate_interval", "5m"), run="another")
        assert [server.query(asked) for server in seen.stored.values()] == [[], []]


@pytest.mark.parametrize("kept", FEATURES)
def test_all_else_is_the_same_in_each_format(seen: Seen, kept: Buckets) -> None:
    assert _value(seen, kept, LOSS.name) == LOSS_NATS
    assert _value(seen, kept, RUN_INFO.name) == 1
    assert _value(seen, kept, f'{STEPS.name}{{mark="measured"}}') == STEPS_DONE


def _exemplars(server: PrometheusServer, expression: str) -> dict[str, list[dict[str, Any]]]:
    """By the upper bound of their bucket, where it has a series of its own."""
    now_s = time.time()
    asked = urllib.parse.urlencode({"query": expression, "start": now_s - 300, "end": now_s + 60})
    with urllib.request.urlopen(f"{server.url}/api/v1/query_exemplars?{asked}", timeout=30) as answer:
        return {one["seriesLabels"].get("le", ""): one["exemplars"] for one in json.load(answer)["data"]}


def test_each_classic_bucket_names_a_step_that_took_so_long(seen: Seen) -> None:
    found = _exemplars(seen.stored["classic"], f"{STEP_DURATION.name}_bucket")
    assert len(found) == len({classic_bucket(native_bucket(step_s)) for step_s in TIMES_S})
    for bound, exemplars in found.items():
        for one in exemplars:
            assert one["labels"] == {"run": seen.run, "trial": "0", "rank": "0", "step": one["labels"]["step"]}
            assert float(one["value"]) == TIMES_S[int(one["labels"]["step"])] <= float(bound)


def test_native_buckets_name_the_newest_of_the_slowest_steps(seen: Seen) -> None:
    slowest = classic_bucket(native_bucket(max(TIMES_S)))
    newest = max(step for step, step_s in enumerate(TIMES_S) if classic_bucket(native_bucket(step_s)) == slowest)
    (exemplars,) = _exemplars(seen.stored["native"], STEP_DURATION.name).values()
    assert exemplars[-1]["labels"] == {"run": seen.run, "trial": "0", "rank": "0", "step": str(newest)}
    assert float(exemplars[-1]["value"]) == TIMES_S[newest]


@pytest.mark.parametrize("kept", FEATURES)
def test_the_page_of_a_run_shows_exemplars_of_either_buckets(seen: Seen, kept: Buckets) -> None:
    (asked,) = (query for panel in board("one-run").all_panels for query in panel.queries if query.has_exemplars)
    found = _exemplars(seen.stored[kept], _of_run(seen, asked.expression))
    assert {one["labels"]["run"] for exemplars in found.values() for one in exemplars} == {seen.run}


@pytest.mark.parametrize("kept", FEATURES)
def test_no_exemplar_is_refused(seen: Seen, kept: Buckets) -> None:
    with urllib.request.urlopen(f"{seen.stored[kept].url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    refused = "prometheus_target_scrapes_exemplar_out_of_order_total"
    assert [line for line in lines if line.startswith(refused)] == [f"{refused} 0"]
