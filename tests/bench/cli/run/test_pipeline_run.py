"""A pipeline runs through the whole house: measured by real ranks, explained, drawn, kept and exported."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from bench.analysis.traces.pipeline_trace import FILE
from bench.case import Purpose
from bench.cli import main
from bench.errors import FINE, MISUSE
from bench.results.estimate import estimate
from bench.serve.history_source import HistorySource
from bench.serve.latest_results import NewestResults
from bench.store.hardware_baselines import against_history
from bench.store.history import History
from collectors.metrics import probes as probes_metrics
from collectors.metrics.metric import Metric
from collectors.metrics.registry import SHOWN
from collectors.metrics.results import (
    RUN_BUBBLE_PART_RATIO,
    RUN_BUBBLE_RATIO,
    RUN_LIVE_MICROBATCHES,
    RUN_STAGE_ACTIVATION_BYTES,
    RUN_STAGE_SECONDS,
)
from collectors.prometheus.exposition import Exporter
from tests.bench.made.examples import make_machine, make_probe, make_summary, small_case
from tests.bench.made.fake_engine import FakeEngine
from tests.bench.made.fake_runs import find, measure_fake

RUN = ["--ranks", "2", "--trials", "1", "--steps", "2", "--warm-up", "1", "--trace-steps", "2", "--port", "0"]
PIPELINE = small_case("gpipe", ranks=2, options={"microbatches": 4}, trace_steps=1)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


def _shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    """What a command prints and says; it ends well."""
    capsys.readouterr()
    assert main.run(arguments) == FINE
    printed = capsys.readouterr()
    return printed.out, printed.err


def _values(run: dict[str, Any], metric: str) -> dict[tuple[str, ...], float]:
    return {tuple(one["labels"].values()): one["median"] for one in run["estimates"] if one["metric"] == metric}


@pytest.mark.slow
def test_real_ranks_are_measured_drawn_and_traced(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, said = _shown(capsys, "run", "gpipe", *RUN, "--option", "microbatches=4", "--timeline")
    rows = [line for line in table.splitlines() if line.startswith(("rank 0 |", "rank 1 |"))]
    assert len(rows) == 2
    (run,) = json.loads(_shown(capsys, "show", "--format", "json")[0])
    spans = [event for event in json.loads((Path(run["folder"]) / FILE).read_text())["traceEvents"] if "dur" in event]
    assert len(spans) == 2 * 2 * 2 * 4  # Steps, ranks, ways, microbatches.
    assert f"timeline: {run['folder']}/{FILE} opens in ui.perfetto.dev" in said.splitlines()
    bubbles, parts = _values(run, RUN_BUBBLE_RATIO.name), _values(run, RUN_BUBBLE_PART_RATIO.name)
    assert 0 < bubbles["measured",] < 1
    assert sum(parts.values()) == pytest.approx(bubbles["measured",], abs=1e-9)
    assert _values(run, RUN_LIVE_MICROBATCHES.name) == dict.fromkeys(
        [(rank, account) for rank in "01" for account in ("measured", "expected")], 4
    )
    assert len(_values(run, RUN_STAGE_SECONDS.name)) == 4
    assert any(note.startswith("the transfer's part of the bubble is absent") for note in run["notes"])
    drawn, _ = _shown(capsys, "show", run["run"], "--timeline")
    assert [line for line in drawn.splitlines() if line.startswith("rank")] == rows


def test_a_link_by_sends_explains_the_transfer(tmp_path: Path) -> None:
    engine = FakeEngine(make_machine(), {"gpipe": [[[0.1, 0.1, 0.1]] * 2]})
    (summary,) = measure_fake(tmp_path, engine, PIPELINE).summaries
    with History(f"sqlite:///{tmp_path / 'history.sqlite'}") as history:
        for collective, latency_s in (("send", 1e-3), ("all_reduce", 5.0)):
            link = (
                estimate(probes_metrics.RUN_LINK_LATENCY_SECONDS, [latency_s], collective=collective),
                estimate(probes_metrics.RUN_LINK_BANDWIDTH, [1e15], collective=collective),
            )
            probe = make_summary(collective, case=make_probe(), estimates=link, scaling=(), hardware=summary.hardware)
            history.add(probe, make_machine())
        judged = against_history(summary, history)
    # Each way is a millisecond longer, so that 15 ms become 17, of which both ranks compute 12.
    assert find(judged, RUN_BUBBLE_RATIO, account="expected").median == pytest.approx(1 - 12 / 17, abs=1e-6)
    assert find(judged, RUN_BUBBLE_PART_RATIO, part="transfer").median == pytest.approx(
        0.2 - 5 / 17 + 2 * (5 / 17 - 0.2)
    )
    assert find(judged, RUN_BUBBLE_PART_RATIO, part="unexplained").median == pytest.approx(0.2 - 5 / 17, abs=1e-6)


def test_activations_of_stages_that_only_the_run_knows_are_not_expected(tmp_path: Path) -> None:
    engine = FakeEngine(make_machine(), {"gpipe": [[[0.1, 0.1, 0.1]] * 2]})
    case = small_case("gpipe", ranks=2, options={"microbatches": 4, "balance": "measured"}, trace_steps=1)
    (summary,) = measure_fake(tmp_path, engine, case).summaries
    accounts = {one.labels["account"] for one in summary.estimates if one.metric == RUN_STAGE_ACTIVATION_BYTES.name}
    assert accounts == {"measured"}
    assert any(note.startswith("expected activations of stages are absent: balance=") for note in summary.notes)


def test_a_pipelines_results_are_exported(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'history.sqlite'}"
    engine = FakeEngine(make_machine(), {"gpipe": [[[0.1, 0.1, 0.1]] * 2]})
    (summary,) = measure_fake(tmp_path, engine, PIPELINE).summaries
    with History(url) as history:
        kept = replace(against_history(summary, history), purpose=Purpose(origin="nightly"))
        history.add(kept, make_machine())
    newest = HistorySource(url, [NewestResults(on_notice=pytest.fail)], on_notice=pytest.fail)
    newest.ask()
    body = generate_latest(Exporter(SHOWN, [newest.samples], on_notice=pytest.fail))
    lines = body.decode().splitlines()

    def value(metric: Metric, *labels: str) -> float:
        median = metric.statistic("median").name
        (line,) = [line for line in lines if line.startswith(median) and all(label in line for label in labels)]
        return float(line.split()[-1])

    assert value(RUN_BUBBLE_RATIO.alone(account="measured")) == pytest.approx(0.2)
    assert value(RUN_BUBBLE_PART_RATIO, 'part="schedule"') == pytest.approx(0.2)
    assert value(RUN_STAGE_SECONDS, 'stage="1"', 'action="backward"') == pytest.approx(2e-3)
    assert value(RUN_LIVE_MICROBATCHES.alone(account="expected"), 'stage="1"') == 4
    assert value(RUN_STAGE_ACTIVATION_BYTES.alone(account="measured"), 'stage="1"') == 2e6


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            "run ddp --timeline",
            "--timeline draws pipeline stages, but ddp has none; leave it out, or choose a pipeline",
        ),
        ("run gpipe --trace-steps 0 --timeline", "trace-steps is 0; use --trace-steps 1 or more"),
        ("run matmul --timeline", "matmul is a probe and trains no model: --timeline cannot be set"),
        ("run gpipe --check-convergence --timeline", "does not measure speed; leave out --timeline"),
        ("show --timeline", "--timeline needs a run; `observatory show RUN --timeline`"),
        ("show --timeline --export folder", "--import, --export, --rebuild and --timeline exclude each other"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line(
    arguments: str, line: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(arguments.split()) == MISUSE
    (said,) = capsys.readouterr().err.splitlines()
    assert line in said
