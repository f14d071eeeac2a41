"""Each moment that a page marks is marked once, at whatever steps Grafana asks: from an hour to thirty days."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from collectors.metrics.agent import RESULT_INFO, RUN_INFO
from collectors.metrics.gate import VERDICT
from collectors.metrics.metric import Metric
from tests.dashboards.boards import Board, board
from tests.support.grafana_expressions import select, with_choices
from tests.support.servers import PrometheusServer, program, started_server

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(300)]

HOUR_S, DAY_S = 3600, 86_400
SCRAPE_S = 60
BACK_S = 31 * DAY_S
STEPS = {HOUR_S: 60, 6 * HOUR_S: 216, 24 * HOUR_S: 864, 30 * DAY_S: 25_920}
"""How far a page looks back, and the step at which Grafana asks it for marks: a hundred, and none below 60 s."""
LAST_SEEN = {"5m": "stays for five minutes", "241s": "is gone sooner"}
"""For how long Prometheus goes on to answer with a series that ended: unless it saw it end, or the server did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class There:
    """A series that is there between two moments, as seconds before now."""

    series: str
    begun_s: int
    ended_s: int


def _series(metric: Metric, **labels: str) -> str:
    return select(metric, job="observatory", **labels)


def _run(run: str, begun_s: int, lasted_s: int, *, strategy: str = "ddp", instance: str = "node0:9464") -> There:
    labels = {"strategy": strategy, "name": f"{strategy} on 2", "nodes": "1", "cluster": "east"}
    info = _series(RUN_INFO, run=run, instance=instance, **labels)
    return There(series=info, begun_s=begun_s, ended_s=begun_s - lasted_s)


def _alert(name: str, begun_s: int, lasted_s: int, **labels: str) -> There:
    told = ",".join(f'{label}="{value}"' for label, value in {"alertname": name, **labels}.items())
    series = f'ALERTS{{alertstate="firing",{told}}}'
    return There(series=series, begun_s=begun_s, ended_s=begun_s - lasted_s)


def _result(series: str, commit: str, driver: str, begun_s: int, ended_s: int) -> There:
    labels = {"strategy": "ddp", "name": f"{series} on 2", "commit": commit, "driver": driver}
    info = _series(RESULT_INFO, series=series, instance="results:9464", **labels)
    return There(series=info, begun_s=begun_s, ended_s=ended_s)


def _verdict(series: str, verdict: str, begun_s: int, ended_s: int) -> There:
    labels = {"suite": "nightly", "case": series, "ranks": "2", "figure": "step"}
    info = _series(VERDICT, series=series, verdict=verdict, instance="results:9464", **labels)
    return There(series=info, begun_s=begun_s, ended_s=ended_s)


RUNS = (
    _run("two-minutes", 1500, 120),
    _run("ten-minutes", 3000, 600),
    _run("some-hours", 12 * HOUR_S, 7 * HOUR_S),
    _run("two-days", 20 * DAY_S, 2 * DAY_S),
    _run("of-last-week", 8 * DAY_S, 180),
    _run("at-noon", 23 * HOUR_S, 120),
    _run("on-two-nodes", 4 * HOUR_S, 900),
    _run("on-two-nodes", 4 * HOUR_S - 60, 900, instance="node1:9464"),
    _run("of-another-strategy", 2400, 300, strategy="fsdp", instance="node1:9464"),
)
ALERTS = (
    _alert("GpuHot", 2000, 180, component="gpu", instance="node0:9464", gpu="1", cluster="east"),
    _alert("GpuHot", 2400, 180, component="gpu", instance="node0:9464", gpu="2", cluster="east"),
    _alert("GpuHeldBack", 2700, 180, component="gpu", instance="node1:9464", gpu="1", cluster="east"),
    _alert("NodeAgentLate", 1000, 180, component="agent", instance="node0:9464", cluster="east"),
    _alert("RunSlow", 1200, 180, component="run", strategy="fsdp", run="of-another-strategy", cluster="west"),
    _alert("SuiteNotRun", 3 * DAY_S, HOUR_S, component="suite", suite="nightly"),
    _alert("LevelCrept", 5 * DAY_S, HOUR_S, component="result", suite="weekly", strategy="ddp"),
)
RESULTS = (
    _result("a", "c1", "570", BACK_S, 20 * DAY_S),
    _result("a", "c2", "570", 20 * DAY_S, 10 * DAY_S),
    _result("a", "c2", "580", 10 * DAY_S, 0),
    _result("b", "c1", "570", 25 * DAY_S, 0),
)
VERDICTS = (
    _verdict("a", "same", BACK_S, 20 * DAY_S),
    _verdict("a", "regression", 20 * DAY_S, 12 * DAY_S),
    _verdict("a", "same", 12 * DAY_S, 6 * DAY_S),
    _verdict("a", "regression", 6 * DAY_S, 0),
    _verdict("b", "creep", 15 * DAY_S, 0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """A Prometheus that saw all of it until a moment, as Unix time."""

    prometheus: PrometheusServer
    end_s: int

    def marks(self, dashboard: Board, name: str, back_s: int, **chosen: str) -> list[tuple[Mapping[str, str], int]]:
        """Each mark that Grafana would draw: its labels, and how many seconds before the end it is."""
        (mark,) = (one for one in dashboard.document["annotations"]["list"] if one["name"] == name)
        step_s = STEPS[back_s]
        asked = with_choices(mark["expr"].replace("${__interval_ms}", str(1000 * step_s)), **chosen)
        # Grafana rounds both ends of the range down to whole steps.
        start_s, end_s = ((at_s // step_s) * step_s for at_s in (self.end_s - back_s, self.end_s))
        fields = urllib.parse.urlencode({"query": asked, "start": start_s, "end": end_s, "step": step_s})
        with urllib.request.urlopen(f"{self.prometheus.url}/api/v1/query_range?{fields}", timeout=60) as answer:
            found = json.load(answer)["data"]["result"]
        return [(one["metric"], self.end_s - int(at_s)) for one in found for at_s, _ in one["values"]]


END_S = (int(time.time()) - 5 * HOUR_S) // STEPS[30 * DAY_S] * STEPS[30 * DAY_S] + 17 * SCRAPE_S
"""A while ago, and always as far from the steps of each page: a series that has ended is there for some minutes, and
what ended so shortly before a page's last step may be marked or not."""


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a month of samples, as Prometheus keeps them."""
    folder = tmp_path_factory.mktemp("marks")
    of_metrics: dict[str, list[str]] = {}
    for one in (*RUNS, *ALERTS, *RESULTS, *VERDICTS):
        # What stands for days is scraped more seldom: a month of blocks takes long to write.
        scrape_s = SCRAPE_S if one.begun_s - one.ended_s <= DAY_S else 4 * SCRAPE_S
        lines = (f"{one.series} 1 {END_S - at_s}\n" for at_s in range(one.begun_s, one.ended_s - 1, -scrape_s))
        of_metrics.setdefault(one.series.partition("{")[0], []).extend(lines)
    text = folder / "past.txt"
    text.write_text("".join(line for lines in of_metrics.values() for line in lines) + "# EOF\n")
    words = [program("promtool", "prometheus"), "tsdb", "create-blocks-from", "openmetrics", "--quiet"]
    made = subprocess.run([*words, text, folder / "data"], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    (folder / "prometheus.yml").write_text("{}")
    return folder


@pytest.fixture(scope="module", params=list(LAST_SEEN), ids=list(LAST_SEEN.values()))
def past(request: pytest.FixtureRequest, blocks: Path) -> Iterator[Past]:
    words = [f"--config.file={blocks / 'prometheus.yml'}", f"--storage.tsdb.path={blocks / 'data'}"]
    words += [f"--query.lookback-delta={request.param}", "--storage.tsdb.retention.time=90d"]
    with started_server(program("prometheus", "prometheus"), *words, output=blocks / "output") as port:
        yield Past(prometheus=PrometheusServer(port=port), end_s=END_S)


def _within(back_s: int, moments: Mapping[str, int]) -> dict[str, int]:
    """Those of the moments that are between the page's first step, which may show what was before, and its last."""
    step_s = STEPS[back_s]
    return {name: at_s for name, at_s in moments.items() if END_S % step_s <= at_s < back_s - step_s}


def _once(found: list[tuple[Mapping[str, str], int]], label: str, due: Mapping[str, int], *, late_s: int) -> None:
    """Hold marks against the moments: one each, none of anything else, and at most so late."""
    assert sorted(labels[label] for labels, _ in found) == sorted(due)
    for labels, at_s in found:
        assert 0 <= due[labels[label]] - at_s <= late_s, labels


BEGUN = {
    "two-minutes": 1500,
    "ten-minutes": 3000,
    "some-hours": 12 * HOUR_S,
    "two-days": 20 * DAY_S,
    "of-last-week": 8 * DAY_S,
    "at-noon": 23 * HOUR_S,
    "on-two-nodes": 4 * HOUR_S,
    "of-another-strategy": 2400,
}
LASTED = {
    "two-minutes": 120,
    "ten-minutes": 600,
    "some-hours": 7 * HOUR_S,
    "two-days": 2 * DAY_S,
    "of-last-week": 180,
    "at-noon": 120,
    "on-two-nodes": 840 + 120,
    "of-another-strategy": 300,
}


@pytest.mark.parametrize("back_s", STEPS)
def test_each_run_is_marked_once_where_it_began(past: Past, back_s: int) -> None:
    found = past.marks(board("what-needs-me-now"), "Run began", back_s)
    _once(found, "run", _within(back_s, BEGUN), late_s=STEPS[back_s])


@pytest.mark.parametrize("back_s", STEPS)
def test_each_run_is_marked_once_where_it_ended(past: Past, back_s: int) -> None:
    ended = {run: at_s - LASTED[run] for run, at_s in BEGUN.items()}
    found = past.marks(board("what-needs-me-now"), "Run ended", back_s)
    _once(found, "run", _within(back_s, ended), late_s=STEPS[back_s] + 300)


@pytest.mark.parametrize("back_s", STEPS)
def test_each_alert_is_marked_once_where_it_began_to_fire(past: Past, back_s: int) -> None:
    begun = {"GpuHot": 2000, "GpuHeldBack": 2700, "NodeAgentLate": 1000, "RunSlow": 1200}
    begun |= {"SuiteNotRun": 3 * DAY_S, "LevelCrept": 5 * DAY_S}
    found = past.marks(board("what-needs-me-now"), "Alert", back_s)
    one_of_each = [(labels, at_s) for labels, at_s in found if labels.get("gpu") != "2"]
    _once(one_of_each, "alertname", _within(back_s, begun), late_s=STEPS[back_s])


def test_each_verdict_and_change_of_thirty_days_is_marked_once(past: Past) -> None:
    back_s, late_s = 30 * DAY_S, STEPS[30 * DAY_S]
    verdicts = past.marks(board("nightly"), "Verdict", back_s)
    found = sorted((labels["case"], labels["verdict"], at_s) for labels, at_s in verdicts)
    expected = [("a", "regression", 6 * DAY_S), ("a", "regression", 20 * DAY_S), ("b", "creep", 15 * DAY_S)]
    assert [words[:2] for words in found] == [words[:2] for words in expected]
    assert all(0 <= due[2] - mark[2] <= late_s for mark, due in zip(found, expected, strict=True))
    for name, label, value, due_s in (
        ("Commit changed", "commit", "c2", 20 * DAY_S),
        ("Driver changed", "driver", "580", 10 * DAY_S),
    ):
        _once(past.marks(board("nightly"), name, back_s), label, {value: due_s}, late_s=late_s)


# What is chosen.


def _marked(past: Past, dashboard: Board, name: str, label: str, back_s: int, **chosen: str) -> set[str]:
    return {labels[label] for labels, _ in past.marks(dashboard, name, back_s, **chosen)}


def test_a_page_marks_the_runs_that_are_chosen(past: Past) -> None:
    for mark in ("Run began", "Run ended"):
        assert _marked(past, board("one-run"), mark, "run", HOUR_S, run="ten-minutes") == {"ten-minutes"}
        of_strategy = _marked(past, board("what-needs-me-now"), mark, "run", 6 * HOUR_S, strategy="fsdp")
        assert of_strategy == {"of-another-strategy"}
        of_node = _marked(past, board("one-gpu"), mark, "run", 6 * HOUR_S, node="node1:9464")
        assert of_node == {"of-another-strategy", "on-two-nodes"}
        assert _marked(past, board("one-gpu"), mark, "run", 6 * HOUR_S, cluster="west") == set()


def test_a_page_marks_the_verdicts_on_the_series_that_are_chosen(past: Past) -> None:
    assert _marked(past, board("nightly"), "Verdict", "case", 30 * DAY_S, series="b on 2") == {"b"}
    assert _marked(past, board("nightly"), "Verdict", "case", 30 * DAY_S, suite="weekly") == set()
    assert _marked(past, board("nightly"), "Verdict", "case", 30 * DAY_S, strategy="fsdp") == set()
    assert _marked(past, board("nightly"), "Commit changed", "series", 30 * DAY_S, series="b on 2") == set()


def test_a_page_marks_the_alerts_of_what_is_chosen_and_those_without_the_label(past: Past) -> None:
    def marked(dashboard: Board, back_s: int = 6 * HOUR_S, **chosen: str) -> set[str]:
        return _marked(past, dashboard, "Alert", "what", back_s, **chosen)

    node0 = {"node0:9464 1    ", "node0:9464     "}
    assert marked(board("one-gpu"), cluster="east", node="node0:9464", gpu="1") == node0
    assert marked(board("what-needs-me-now"), cluster="west") == {"    fsdp of-another-strategy"}
    assert marked(board("what-needs-me-now"), cluster="west", strategy="ddp") == set()
    assert marked(board("nightly"), 30 * DAY_S, suite="nightly") == {"  nightly   "}
    assert marked(board("nightly"), 30 * DAY_S, strategy="ddp") == {"  nightly   ", "  weekly  ddp "}
