"""A real Prometheus stores what ranks measured, for as long as they run, and the results after them."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest

from bench.store.history import History
from bench.store.summary import Summary, series_of
from collectors.metrics import host, probes, results
from collectors.metrics.agent import RANK_INFO, RESULT_INFO, RUN_INFO, RUN_LAST_COMPLETION
from collectors.metrics.metric import STATISTICS, Metric
from collectors.metrics.rank import LOSS, OVERLAP_SECONDS, PHASE_SECONDS, STATE_BYTES, STEP_SECONDS, TOKENS
from collectors.metrics.registry import form_of
from collectors.metrics.run_counts import RUNS, STEP_DURATION, STEPS
from collectors.sample_log import NodeState, Reading, read
from dashboards.board import BOARDS
from tests.stack.pages.asking import Page, rendered
from tests.support.servers import PrometheusServer, program, run_prometheus

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(280)]

SHAPE = {"layers": 1, "width": 16, "heads": 2, "kv-heads": 1, "mlp-width": 32, "vocabulary": 32, "sequence": 8}
SLOW_LOADER = ("--option", "loader_delay_ms=100")
FIGURES = {metric.name: metric for metric in (*probes.METRICS, *results.METRICS)}
SCRAPE_S = 1
POINT_S = 5
"""Lines have points at multiples of a sixtieth of the page's time, which is less; what came since the last is not
drawn yet."""
AGENT_LAG_S = 10.0
"""What is stored may be older by a beat; far more on a machine that others keep busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What was seen of two runs side by side: one long, and a short one that began and ended beside it.

    texts: the bodies of /metrics before, while and after they ran. live: names of series, by slot, while both ran.
    empty: panels of each dashboard that showed nothing though their metrics were there, while and after they ran.
    """

    prometheus: PrometheusServer
    long: Summary
    short: Summary
    texts: dict[str, str]
    live: dict[str, set[str]]
    empty: dict[str, dict[str, set[str]]]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    home = tmp_path_factory.mktemp("home")
    with _observatory(home, "serve", "--port", "0") as served:
        assert served.stderr is not None
        address = served.stderr.readline().split()[1]
        with run_prometheus(address.split("/")[2]) as prometheus:
            yield _watch(home, address, prometheus)
        served.send_signal(signal.SIGINT)
        served.communicate(timeout=60)
        assert served.returncode == 0


def _watch(home: Path, address: str, prometheus: PrometheusServer) -> Watched:
    texts, empty = {"before": _text(address)}, {}
    with _run(home, "--batch", "8", "--steps", "200", "--trials", "3") as long:
        _wait_until(lambda: prometheus.query(_on_slot(STEP_SECONDS, 0)), beside=long)
        with _run(home, "--batch", "4", "--steps", "40", "--trials", "1") as short:
            _wait_until(lambda: prometheus.query(_on_slot(STEP_SECONDS, 1)), beside=short)
            # Between two trials a rank has no step to show.
            _wait_until(lambda: len(prometheus.query(STEP_SECONDS.name)) == 4, beside=short)
            texts["while"] = _text(address)
            (of_long,) = prometheus.query(_on_slot(RUN_INFO, 0))
            live = {slot: _live_names(prometheus, slot) for slot in ("0", "1")}
            _end(short)
        # What is instrumented comes at the end of a trial: the short run may have had it before the long one has.
        _wait_until(lambda: prometheus.query(f"{_on_slot(STATE_BYTES, 0)} offset {POINT_S}s"), beside=long)
        # The panels of results show the short run, which must have been scraped.
        _wait_until(lambda: prometheus.query(f"{RESULT_INFO.name} offset {POINT_S}s"), beside=long)
        while_s = time.time()
        assert prometheus.query(_on_slot(RUN_INFO, 0)), "the long run goes on"
        # All is asked as of that time: the long run may end meanwhile.
        empty["while"] = _empty_panels(prometheus, of_long["metric"]["run"], while_s)
        _end(long)
    _wait_until(lambda: len(prometheus.query(f"{RESULT_INFO.name} offset {POINT_S}s")) == 2)
    _wait_until(lambda: not prometheus.query(STEP_SECONDS.name))
    _wait_until(lambda: sum(float(one["value"][1]) for one in prometheus.query(RUNS.name)) == 2)
    texts["after"] = _text(address)
    empty["after"] = _empty_panels(prometheus, of_long["metric"]["run"], time.time())
    summaries = _history(home)
    return Watched(prometheus=prometheus, long=summaries[200], short=summaries[40], texts=texts, live=live, empty=empty)


def _empty_panels(prometheus: PrometheusServer, run: str, now_s: float) -> dict[str, set[str]]:
    """Ask for each dashboard as Grafana does, for as long as this Prometheus has scraped. run: that is chosen."""
    begun_s = float(prometheus.query("process_start_time_seconds")[0]["value"][1])
    return {
        name: Page(
            dashboard=rendered(name),
            prometheus=prometheus,
            end_s=now_s,
            back_s=math.ceil(now_s - begun_s),
            scrape_s=SCRAPE_S,
            chosen={"run": run},
        ).empty()
        for name in BOARDS
    }


@contextmanager
def _observatory(home: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "bench", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_DATA_HOME": str(home), "CUDA_VISIBLE_DEVICES": ""},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _run(home: Path, *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
    shape = [f"--{name}={size}" for name, size in SHAPE.items()]
    return _observatory(home, "run", "ddp", "--ranks=2", "--nightly", *shape, *SLOW_LOADER, *arguments)


def _end(run: subprocess.Popen[str]) -> None:
    _, errors = run.communicate(timeout=180)
    assert run.returncode == 0, errors


def _wait_until(is_so: Callable[[], object], *, beside: subprocess.Popen[str] | None = None) -> None:
    """Wait. beside: what must go on meanwhile."""
    until = time.monotonic() + 120
    while not is_so():
        if beside is not None and beside.poll() is not None:
            pytest.fail(f"the run ended too early: {beside.communicate()[1]}")
        assert time.monotonic() < until, "it never became so"
        time.sleep(0.2)


def _text(address: str) -> str:
    with urllib.request.urlopen(address, timeout=30) as answer:
        body: bytes = answer.read()
        return body.decode()


def _on_slot(metric: Metric, slot: int | str) -> str:
    return f'{metric.name}{{slot="{slot}"}}'


def _live_names(prometheus: PrometheusServer, slot: str) -> set[str]:
    return {series["metric"]["__name__"] for series in prometheus.query(f'{{slot="{slot}"}}')}


def _history(home: Path) -> dict[int, Summary]:
    with History(f"sqlite:///{home}/parallel-observatory/history.sqlite", writable=False) as history:
        return {summary.case.steps: summary for summary in history.runs(limit=10)}


def _stored(watched: Watched, expression: str) -> dict[str, list[float]]:
    """The values that Prometheus has stored of each rank, in order."""
    found = watched.prometheus.query(f"{expression}[10m]")
    return {series["metric"]["rank"]: [float(value) for _, value in series["values"]] for series in found}


def _logged(summary: Summary, metric: Metric, *marks: str, **labels: str) -> dict[str, list[float]]:
    """The values that the ranks' logs hold, in order."""
    values: dict[str, list[float]] = defaultdict(list)
    for rank in range(summary.case.ranks):
        for record in read(Path(summary.folder) / f"rank{rank}.jsonl").records:
            if isinstance(record, Reading) and record.mark in marks:
                values[str(rank)] += [
                    sample.value
                    for sample in record.samples
                    if sample.metric == metric.name and sample.labels == labels
                ]
    return values


@pytest.mark.parametrize(("when", "dashboard"), list(product(("while", "after"), BOARDS)))
def test_no_dashboard_has_an_empty_panel_whose_metrics_are_there(when: str, dashboard: str, watched: Watched) -> None:
    # The run that goes on has no result of its series yet; and after the end no run goes on.
    right = {"Step vs result", "vs result"} | ({"Active runs", "Tokens per second"} if when == "after" else set())
    assert watched.empty[when][dashboard] - right == set()


@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize(
    ("metric", "labels", "marks"),
    [
        (STEP_SECONDS, {}, ("measured",)),
        (PHASE_SECONDS, {"phase": "backward"}, ("measured",)),
        (LOSS, {}, ("warm_up", "measured", "traced")),
        (TOKENS, {}, ("warm_up", "measured", "traced")),
    ],
    ids=lambda value: value.name if isinstance(value, Metric) else "",
)
def test_what_prometheus_stored_is_what_the_ranks_logged(
    watched: Watched, metric: Metric, labels: dict[str, str], marks: tuple[str, ...], slot: int
) -> None:
    selector = ",".join([f'slot="{slot}"', *(f'{name}="{value}"' for name, value in labels.items())])
    stored = _stored(watched, f"{metric.name}{{{selector}}}")
    logged = _logged(watched.short if slot else watched.long, metric, *marks, **labels)
    assert stored.keys() == {"0", "1"}
    for rank, values in stored.items():
        assert set(values) <= set(logged[rank])
        assert len(set(values)) >= 3, "it was scraped while it ran"


def test_the_tokens_of_a_rank_only_grow_within_a_trial(watched: Watched) -> None:
    for values in _stored(watched, _on_slot(TOKENS, 0)).values():
        falls = [(before, after) for before, after in pairwise(values) if after < before]
        assert len(falls) <= watched.long.trials_done - 1


def test_side_by_side_each_run_has_its_slot_and_all_series(watched: Watched) -> None:
    for names in watched.live.values():
        assert names >= {STEP_SECONDS.name, TOKENS.name, LOSS.name, RUN_INFO.name, RANK_INFO.name}
    runs = {
        series["metric"]["slot"]: series["metric"]["run"]
        for series in watched.prometheus.query(f"last_over_time({RUN_INFO.name}[10m])")
    }
    assert runs == {"0": watched.long.run, "1": watched.short.run}


def test_after_the_end_no_series_of_a_rank_is_left_but_the_counts_of_its_steps(watched: Watched) -> None:
    left = {series["metric"]["__name__"] for series in watched.prometheus.query('{slot=~".+"}')}
    of_histogram = {f"{STEP_DURATION.name}_{part}" for part in ("bucket", "count", "sum")}
    assert left <= {STEPS.name, *of_histogram}


@pytest.mark.parametrize("slot", [0, 1])
def test_each_measured_step_of_a_run_was_counted_by_its_end(watched: Watched, slot: int) -> None:
    case = (watched.short if slot else watched.long).case
    of_slot = f'slot="{slot}"'
    done = watched.prometheus.query(f'max_over_time({STEPS.name}{{{of_slot},mark="measured"}}[10m])')
    assert [float(one["value"][1]) for one in done] == [case.steps * case.trials] * case.ranks
    (timed,) = watched.prometheus.query(f"max_over_time({STEP_DURATION.name}_count{{{of_slot}}}[10m])")
    assert float(timed["value"][1]) == case.steps * case.trials * case.ranks


def test_runs_are_counted_by_outcome_after_their_end(watched: Watched) -> None:
    found = watched.prometheus.query(RUNS.name)
    assert {one["metric"]["outcome"]: float(one["value"][1]) for one in found} == {
        "done": 2,
        "failed": 0,
        "timed_out": 0,
        "interrupted": 0,
    }


@pytest.mark.parametrize("which", ["long", "short"])
def test_after_the_end_the_results_are_those_of_the_history(watched: Watched, which: str) -> None:
    summary: Summary = getattr(watched, which)
    series = series_of(summary.case, summary.hardware)
    for estimate in summary.estimates:
        for which in STATISTICS:
            form, labels = form_of(FIGURES[estimate.metric], estimate.labels)
            name = form.statistic(which).name
            found = watched.prometheus.query(_selected(name, {**labels, "series": series}))
            expected = getattr(estimate, which)
            assert [float(one["value"][1]) for one in found] == ([] if expected is None else [expected])
    (completed,) = watched.prometheus.query(_selected(RUN_LAST_COMPLETION.name, {"series": series}))
    assert float(completed["value"][1]) == summary.ended_ns / 1e9
    (info,) = watched.prometheus.query(_selected(RESULT_INFO.name, {"series": series}))
    assert info["metric"]["run"] == summary.run


def _selected(name: str, labels: dict[str, Any]) -> str:
    return f"{name}{{{','.join(f'{label}={json.dumps(value)}' for label, value in labels.items())}}}"


def test_the_long_run_has_intervals_to_compare(watched: Watched) -> None:
    """So that the test of results is none of medians alone."""
    assert any(estimate.low is not None for estimate in watched.long.estimates)
    assert results.RUN_STEP_SECONDS.name in {estimate.metric for estimate in watched.long.estimates}


def test_the_traced_overlap_of_a_trial_stays_while_the_next_one_runs(watched: Watched) -> None:
    logged = _logged(watched.long, OVERLAP_SECONDS, "traced")
    stored = _stored(watched, _on_slot(OVERLAP_SECONDS, 0))
    assert stored.keys() == {"0", "1"}
    for rank, values in stored.items():
        assert set(values) <= set(logged[rank])
        assert len(values) > watched.long.case.trace_steps


def test_the_hosts_processor_time_is_stored_all_the_time_and_agrees_with_what_runs_logged(watched: Watched) -> None:
    logged = sorted(beat for summary in (watched.long, watched.short) for beat in _logged_user_time(summary))
    (series,) = watched.prometheus.query(f'{host.HOST_CPU_SECONDS.name}{{mode="user"}}[10m]')
    stored = [(float(at_s), float(value)) for at_s, value in series["values"]]
    assert stored[-1][0] > logged[-1][0], "the node is watched after the runs"
    for at_s, value in stored:
        before = [one for logged_s, one in logged if logged_s < at_s - AGENT_LAG_S]
        after = [one for logged_s, one in logged if logged_s > at_s]
        assert max(before, default=0.0) <= value <= min(after, default=value)


def _logged_user_time(summary: Summary) -> Iterator[tuple[float, float]]:
    """When it was polled for the run, and what it was then."""
    for path in Path(summary.folder).glob("node*.jsonl"):
        state = NodeState()
        for record in read(path).records:
            for sample in state.samples if state.take(record) else ():
                if (sample.metric, sample.labels) == (host.HOST_CPU_SECONDS.name, {"mode": "user"}):
                    assert state.time_ns is not None
                    yield state.time_ns / 1e9, sample.value


@pytest.mark.parametrize("when", ["before", "while", "after"])
def test_promtool_finds_the_page_valid(watched: Watched, when: str) -> None:
    checked = subprocess.run(
        [program("promtool", "prometheus"), "check", "metrics"],
        input=watched.texts[when],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    assert (STEP_SECONDS.name in watched.texts[when]) == (when == "while")
    assert (results.RUN_STEP_SECONDS.statistic("median").name in watched.texts[when]) == (when == "after")
