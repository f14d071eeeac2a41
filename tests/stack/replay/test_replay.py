"""Real traces of GPUs go the whole way of a run, and what is shown is what plain sums over their kernels say."""

from __future__ import annotations

import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.machine.machine import Machine
from bench.serve.server import open_server
from bench.store.summary import Summary
from collectors.metrics.metric import Metric
from collectors.metrics.results import (
    RUN_OVERLAP_RATIO,
    RUN_TRACED_RATIO,
    RUN_TRACED_STEP_SECONDS,
    RUN_WAITING_RATIO,
)
from tests.dashboards.boards import board
from tests.gpu.readings import series_on
from tests.stack.pages.asking import Page, rendered
from tests.stack.pages.past import create_blocks
from tests.stack.replay import plain_sums
from tests.stack.replay.past import replayed_past
from tests.stack.replay.runs import SETS, TraceSet, begun, stored
from tests.support.grafana_expressions import with_every_choice
from tests.support.servers import PrometheusServer, program, started_server

LONGEST_NOTE = 600
AT_S = int(time.time()) // 3600 * 3600 - 3 * 3600
"""Old enough that promtool puts it into a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A replayed run: what the history keeps of it, and what /metrics shows then."""

    traces: TraceSet
    summary: Summary
    page: str

    def median(self, metric: Metric, **labels: str) -> float:
        """The run's only estimate of the metric with these labels."""
        (value,) = [
            estimate.median
            for estimate in self.summary.estimates
            if estimate.metric == metric.name and labels.items() <= estimate.labels.items()
        ]
        return value

    def shown(self, name: str, **labels: str) -> float:
        """The only series of that name with these labels on the page."""
        (value,) = [value for own, value in series_on(self.page, name) if labels.items() <= own.items()]
        return value


def _replay(traces: TraceSet, folder: Path) -> tuple[Summary, Machine]:
    if missing := [path.name for path in traces.paths() if not path.exists()]:
        pytest.skip(f"{missing[0]} is not in shared/data/traces; docs/measured/replay.md says where it comes from")
    run = begun(traces, folder / "runs", begun_s=time.time() - 3600)
    return run.finish(), run.run.machine


@pytest.fixture(scope="module", params=SETS, ids=[traces.name for traces in SETS])
def replay(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Replay:
    """Each set of traces, replayed once."""
    folder = tmp_path_factory.mktemp(request.param.name)
    url = f"sqlite:///{folder / 'history.sqlite'}"
    (summary,) = stored([_replay(request.param, folder)], url)
    notices: list[str] = []
    with open_server(
        folder / "runs", url, host="127.0.0.1", port=0, on_notice=notices.append, results="only"
    ) as server:
        page, until_s = "", time.monotonic() + 60
        while "observatory_result_info{" not in page and time.monotonic() < until_s:
            with urllib.request.urlopen(server.url, timeout=30) as answer:
                page = answer.read().decode()
    return Replay(traces=request.param, summary=summary, page=page)


def test_a_traced_step_is_divided_as_plain_sums_divide_it(replay: Replay) -> None:
    paths = replay.traces.paths()
    if not any(plain_sums.traced_steps(path) for path in paths):
        assert any(note.startswith("the division of a step") for note in replay.summary.notes)
        return
    truth = plain_sums.traced_shares(paths)
    assert replay.median(RUN_TRACED_STEP_SECONDS) == pytest.approx(truth["step_s"], rel=1e-9)
    for part in ("compute", "communication", "overlap", "exposed_communication"):
        if truth["communication"] or part == "compute":
            assert replay.median(RUN_TRACED_RATIO, part=part) == pytest.approx(truth[part], rel=1e-9)
    for part in ("compute", "exposed_communication") if truth["communication"] else ("compute",):  # They add up.
        assert replay.shown("observatory_run_traced_median_ratio", part=part) == pytest.approx(truth[part])


def test_waiting_is_what_plain_sums_say_where_every_rank_has_a_trace(replay: Replay) -> None:
    if len(replay.traces.files) < replay.traces.ranks or replay.traces.ranks == 1:
        assert not [estimate for estimate in replay.summary.estimates if estimate.metric == RUN_WAITING_RATIO.name]
        return
    truth = plain_sums.waiting_ratio(replay.traces.paths())
    assert truth == pytest.approx(0.927, abs=0.001)  # As shared/data/README.md has it.
    assert replay.median(RUN_WAITING_RATIO) == pytest.approx(truth, rel=1e-9)
    assert replay.shown("observatory_run_waiting_median_ratio") == pytest.approx(truth)


def test_only_traces_of_nvidia_are_called_nvidia(replay: Replay) -> None:
    hardware = replay.summary.hardware
    assert (replay.traces.gpu in hardware) == replay.traces.has_nvml
    assert ("NVIDIA" in replay.page) == ("NVIDIA" in replay.traces.gpu)
    assert f'gpu="{hardware}"' in replay.page
    assert f", {hardware.replace('NVIDIA ', '')}" in replay.page  # In the name by which dashboards choose.


def test_what_is_absent_is_said_once_and_no_longer_than_a_person_reads(replay: Replay) -> None:
    notes = replay.summary.notes
    assert len(set(notes)) == len(notes)
    assert max(map(len, notes)) <= LONGEST_NOTE
    absent = [note for note in notes if "waits and stragglers" in note]
    assert len(absent) == (1 if len(replay.traces.files) < replay.traces.ranks else 0)
    has_overlap = any(estimate.metric == RUN_OVERLAP_RATIO.name for estimate in replay.summary.estimates)
    assert has_overlap == ("observatory_run_overlap_median_ratio{" in replay.page)


@pytest.mark.stack
def test_shares_of_a_step_add_up_where_a_run_does_not_communicate(tmp_path: Path) -> None:
    parts = ("compute", "exposed_communication", "exposed_copy", "idle")
    steps_s = {"ddp": (0.5, 0.3, 0.05, 0.15), "single": (0.6, None, 0.1, 0.3)}  # Each a step of a second.
    text = []
    for part in ("step", *parts):
        for run, values_s in steps_s.items():
            value_s = dict(zip(parts, values_s, strict=True)).get(part, 1.0)
            labels = f'instance="{run}",job="observatory",slot="0",rank="0"'
            text += [] if value_s is None else [f"observatory_traced_{part}_seconds{{{labels}}} {value_s} {AT_S}\n"]
    for run in steps_s:
        labels = f'instance="{run}",job="observatory",slot="0",run="{run}",strategy="{run}",series="{run}",name="{run}"'
        text.append(f"observatory_run_info{{{labels}}} 1 {AT_S}\n")
    (tmp_path / "text").write_text("".join([*text, "# EOF\n"]))
    create_blocks(tmp_path / "text", tmp_path / "data")
    (tmp_path / "prometheus.yml").write_text("{}")
    words = [f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    with started_server(program("prometheus", "prometheus"), *words, output=tmp_path / "output") as port:
        panel = board("what-needs-me-now").panel("Where the time of a traced step goes, mean of all ranks")
        shares = [
            float(series["value"][1])
            for query in panel.queries
            for series in PrometheusServer(port=port).query(
                f"last_over_time(({with_every_choice(query.expression)})[10s:10s] @ {AT_S})"
            )
        ]
    assert shares == pytest.approx([0.55, 0.15, 0.075, 0.225])


@pytest.mark.stack
@pytest.mark.slow
def test_a_dashboard_shows_each_gpu_as_a_series_of_its_own(tmp_path: Path) -> None:
    if not SETS[0].paths()[0].exists():
        pytest.skip("shared/data/traces is not here")
    with replayed_past(tmp_path) as state:
        page = Page(
            dashboard=rendered("who-waits-for-whom"),
            prometheus=state.prometheus,
            end_s=state.end_s,
            back_s=state.back_s,
            scrape_s=state.scrape_s,
            chosen={},
        )
        answers = [answer for answer in page.answers() if answer.panel in ("Waiting", "Exposed communication")]
    assert [len(answer.series) for answer in answers] == [1, 1]
