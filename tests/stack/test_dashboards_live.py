"""The dashboards of runs have an answer in a real Prometheus, for a node with GPUs where a run goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.case import Case, Purpose
from bench.machine.gpus import Gpu
from bench.machine.machine import Machine
from bench.rank.messages import TrialEnded, TrialOrder, TrialProgress
from bench.results.timelines import save_timeline
from bench.serve.server import open_server
from bench.session.measure import TrialSettings, alike, measure
from bench.session.persist import persist
from bench.store import run_dir
from bench.store.history import History
from bench.store.suite_record import SuiteRecord
from collectors.metrics import rank as rank_metrics
from collectors.metrics.metric import Sample
from collectors.metrics.results import RUN_BUBBLE_RATIO, RUN_STAGE_ACTIVATION_BYTES
from collectors.nvml.collector import NvmlCollector
from collectors.nvml.recorder import EIGHT_GPUS, load
from collectors.nvml.replay import RecordedNvml
from collectors.sample_log import Opened, Polled, Reading, SampleLog, open_node_log
from tests.bench.made.examples import SMALL, make_machine, small_case
from tests.bench.made.fake_engine import FakeEngine
from tests.bench.made.windows import made_windows
from tests.dashboards.boards import Board, board
from tests.support.grafana_expressions import with_choices, with_every_choice
from tests.support.servers import PrometheusServer, run_prometheus

pytestmark = [pytest.mark.stack, pytest.mark.timeout(120)]

H200 = Gpu(index=0, name="NVIDIA H200", uuid="GPU-0", memory_bytes=150_754_820_096)
NODE = replace(make_machine(), gpus=(H200, replace(H200, index=1, uuid="GPU-1")), driver_version="570.0")
TRIALS = 7
"""In which one of two ranks can be told to be late, and not unlucky."""
DDP = small_case("ddp", ranks=2, trials=TRIALS, device="cuda", backend="nccl", trace_steps=8)
LATE = [[(1, 300_000 + 10_000 * trial)] * 7 + [(trial % 2, 30_000)] for trial in range(TRIALS)]
"""By trial the rank, and by how many nanoseconds, in each traced step."""

SINGLE = small_case("single", ranks=1, trials=2, device="cuda", backend="nccl", model=replace(SMALL, batch=2))
PIPELINE = small_case("gpipe", ranks=2, trials=2, device="cuda", backend="nccl")
STEPS_S = {
    "ddp": [[[0.20 + 0.01 * (trial % 3), 0.21]] * 2 for trial in range(TRIALS)],
    "single": [[[0.15, 0.15]], [[0.16, 0.16]]],
    "gpipe": [[[0.20, 0.21]] * 2, [[0.22, 0.21]] * 2],
}
SUITE = SuiteRecord(
    id="suite-a",
    suite="nightly",
    started_ns=time.time_ns(),
    progress_ns=time.time_ns(),
    cases={"done": 2, "failed": 1},
    total=5,
    running=("ddp",),
    folder="/runs/suites/suite-a",
)
STAGES = "where-does-the-pipeline-wait: Time of a stage per microbatch"
NOT_IN_THESE_RUNS = {
    "what-needs-me-now: Alerts: critical: ",
    "what-needs-me-now: Alerts: warnings: ",
    "where-does-the-pipeline-wait: Due to transfer: transfer",
    "where-does-the-pipeline-wait: Due to messages: message",
    "where-does-the-pipeline-wait: Due to waiting for a core: waiting_for_a_core",
    f"{STAGES}: Backward: input",
    f"{STAGES}: Backward: weights",
    "who-waits-for-whom: Collectives of a traced step: Hidden",
    "who-waits-for-whom: Communication per step, traced and predicted: traced (low end)",
    "who-waits-for-whom: Communication per step, traced and predicted: traced (high end)",
    "who-waits-for-whom: Communication per step, traced and predicted: predicted",
    "who-waits-for-whom: Late rank of a watched run: rank {{rank}}: {{phase}}",
    *(f"who-waits-for-whom: Long steps of a watched run: {quantile}" for quantile in ("p90", "p99")),
    *(
        f"who-waits-for-whom: Phases of each rank of a watched run: {phase}"
        for phase in ("Data", "Forward", "Backward", "Optimizer")
    ),
}
"""Queries that need our rules, a measured link, several collectives or trials, a schedule that splits backward, or a
watched run, which `tests/stack/test_run_dashboards.py` has as made results."""
DASHBOARDS = (board("what-needs-me-now"), board("where-does-the-pipeline-wait"), board("who-waits-for-whom"))
NOTHING_IS_WRONG = {"Firing alerts", "Figures that changed, by the gate's verdict"}
"""Tables of what is wrong, which nothing is here; tests/stack/test_joins.py asks them where something is."""
EXPECTED_BUBBLE = RUN_BUBBLE_RATIO.alone(account="expected")
NOT_EXPECTED = (
    EXPECTED_BUBBLE.statistic("low").name,
    EXPECTED_BUBBLE.statistic("high").name,
    RUN_STAGE_ACTIVATION_BYTES.alone(account="expected").statistic("median").name,
)
"""What the made pipeline has not: its bubble is expected equal in all trials, its stages' activations not at all."""
OF_REAL_RUNS = (
    (
        board("one-run"),
        (
            "Step, median rank",
            "p99 of steps",
            "Step vs result",
            "Slowest rank",
            "MFU",
            "The run",
            "Step: slowest, median and fastest rank",
            "Step of all ranks: p50, p90, p99",
            "Distribution of step times",
            "Parts of a traced step, mean of ranks",
        ),
    ),
    (
        board("which-strategy-pays"),
        ("Tokens per second and device", "Step", "Model FLOPs utilization"),
    ),
    (board("does-it-scale"), ("Worst efficiency", "Efficiency over the nights")),
    (board("nightly"), ("Step of the selected series, with its interval", "Failed cases", "Since newest night")),
)
"""Panels that a real run and its results fill; the demonstration fills all others: test_run_dashboards.py."""
QUERIES = [
    (f"{dashboard.name}: {panel.title}: {number}", query.expression)
    for dashboard, titles in OF_REAL_RUNS
    for panel in dashboard.all_panels
    if panel.title in titles
    for number, query in enumerate(panel.queries)
] + [
    (f"{dashboard.name}: {panel.title}: {query.legend}", query.expression)
    for dashboard in DASHBOARDS
    for panel in dashboard.all_panels
    if panel.title not in NOTHING_IS_WRONG
    for query in panel.queries
    if not any(name in query.expression for name in NOT_EXPECTED)
]


class TracingEngine(FakeEngine):
    """One that also keeps windows: one rank comes late, and in turn each leaves a collective microseconds later."""

    def run(self, order: TrialOrder, progress: Callable[[TrialProgress], None]) -> TrialEnded:
        """Write each rank's log and window."""
        for window in made_windows(LATE[order.trial], ranks=order.case.ranks):
            is_later = window.of_kind("communication") & (np.arange(window.kind.size) % 2 == window.rank)
            end_ns = window.end_ns + is_later * 1_000 * (order.trial + 1)
            save_timeline(replace(window, end_ns=end_ns), self.folder(order), order.trial)
        return super().run(order, progress)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    home = tmp_path_factory.mktemp("home")
    store = f"sqlite:///{home / 'history.sqlite'}"
    _measure_before(home / "runs", store)
    notices: list[str] = []
    with (
        _going_on(home / "runs", DDP, NODE),
        open_server(home / "runs", store, host="127.0.0.1", port=0, on_notice=notices.append) as server,
        run_prometheus(f"127.0.0.1:{server.port}") as started,
    ):
        _wait_for_two_scrapes(started)
        yield started
    assert len(notices) == 1, notices  # Where it served, and no trouble.


def _measure_before(folder: Path, store: str) -> None:
    engine = TracingEngine(NODE, STEPS_S, runs=folder)
    with History(store) as history:
        measured = measure(
            alike(
                [(SINGLE, None), (DDP, None), (PIPELINE, None)],
                TrialSettings(limit_s=60, purpose=Purpose(origin="nightly")),
            ),
            engine=engine,
            machine=NODE,
            folder=folder,
            store=store,
        )
        persist(measured.summaries, NODE, history, explicit_baseline=None)
        history.save_suite(SUITE)
        measured.close()


@contextmanager
def _going_on(folder: Path, case: Case, machine: Machine) -> Iterator[None]:
    """A run whose two ranks end a step every half second, on a node whose GPUs are polled as often."""
    run = run_dir.begin(case, machine, folder)
    over = threading.Event()
    writer = threading.Thread(target=_write_steps, args=(run, over))
    writer.start()
    try:
        yield
    finally:
        over.set()
        writer.join()
        run.close()


def _write_steps(run: run_dir.Run, over: threading.Event) -> None:
    ranks = [SampleLog(run.folder / f"rank{rank}.jsonl") for rank in range(run.case.ranks)]
    node = open_node_log(run.folder / "node0.jsonl", run=run.id, node=0)
    gpus = NvmlCollector(RecordedNvml(load(EIGHT_GPUS)).nvml)
    for rank, log in enumerate(ranks):
        log.write(Opened(run=run.id, trial=0, rank=rank, time_ns=time.time_ns(), pid=1, host="node0"))
    number = 0
    while not over.wait(0.5):
        number += 1
        for log in ranks:
            for mark, samples in (("measured", _samples(number)), ("traced", _traced())):
                log.write(Reading(trial=0, time_ns=time.time_ns(), mark=mark, step=number, samples=samples))  # type: ignore[arg-type]
        node.write(Polled(time_ns=time.time_ns(), samples=gpus.read()))
    gpus.close()


def _samples(number: int) -> list[Sample]:
    return [
        rank_metrics.STEP_SECONDS.at(0.5),
        rank_metrics.TOKENS.at(100.0 * number),
        rank_metrics.TOKENS_PER_SECOND.at(200.0),
        rank_metrics.MFU.at(0.4),
        rank_metrics.LOSS.at(2.0),
        rank_metrics.PEAK_BYTES.at(1e9),
        rank_metrics.RESIDENT_BYTES.at(1e8),
    ]


def _traced() -> list[Sample]:
    return [
        rank_metrics.TRACED_STEP_SECONDS.at(0.5),
        rank_metrics.COMMUNICATION_SECONDS.at(0.1),
        rank_metrics.COLLECTIVE_SECONDS.at(0.1, collective="all_reduce"),
        rank_metrics.COMPUTE_SECONDS.at(0.4),
        rank_metrics.EXPOSED_COMMUNICATION_SECONDS.at(0.05),
        rank_metrics.EXPOSED_COPY_SECONDS.at(0.0),
        rank_metrics.IDLE_SECONDS.at(0.05),
        rank_metrics.OVERLAP_RATIO.at(0.75),
        rank_metrics.EXPOSED_COMMUNICATION_RATIO.at(0.1),
    ]


def _wait_for_two_scrapes(prometheus: PrometheusServer) -> None:
    until = time.monotonic() + 60
    wanted = [expression for name, expression in QUERIES if name not in NOT_IN_THESE_RUNS]
    while not all(prometheus.query(with_every_choice(expression)) for expression in wanted):
        if time.monotonic() > until:
            return  # The test names what is empty.
        time.sleep(0.5)


def test_no_panel_is_empty(prometheus: PrometheusServer) -> None:
    for name, expression in QUERIES:
        found = prometheus.query(with_every_choice(expression))
        assert found or name in NOT_IN_THESE_RUNS, name
        assert all(series["value"][1] != "NaN" for series in found), name


@pytest.mark.parametrize(
    "dashboard", [board("where-does-the-pipeline-wait"), board("who-waits-for-whom")], ids=lambda one: one.name
)
def test_results_of_a_chosen_strategy_are_of_no_other(dashboard: Board, prometheus: PrometheusServer) -> None:
    chosen = "ddp" if dashboard.name == "who-waits-for-whom" else "gpipe"
    found = [
        series["metric"].get("strategy", chosen)  # A table has it not.
        for query in dashboard.queries
        if "observatory_run_" in query.expression
        for series in prometheus.query(with_choices(query.expression, strategy=chosen))
    ]
    assert set(found) == {chosen}


def test_a_strategy_without_a_pipeline_shows_no_bubble(prometheus: PrometheusServer) -> None:
    asked = [with_choices(query.expression, strategy="ddp") for query in board("where-does-the-pipeline-wait").queries]
    assert [found for expression in asked if (found := prometheus.query(expression))] == []
