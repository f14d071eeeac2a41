"""What ranks say together reaches the summary, the terminal and the metrics; a broken window costs no other figure."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from bench.cli import main
from bench.errors import FINE
from bench.report.run.summary import print_summaries
from bench.results.estimate import estimate, estimate_share
from bench.results.timelines import window_path
from bench.serve.history_source import HistorySource
from bench.serve.latest_results import NewestResults
from bench.store.history import History
from bench.store.run_dir import load
from bench.store.summary import Summary
from collectors.metrics.registry import SHOWN
from collectors.metrics.results import (
    RUN_COLLECTIVE_TRANSFER_SECONDS,
    RUN_COLLECTIVE_WAIT_SECONDS,
    RUN_STEP_SECONDS,
    RUN_STRAGGLER_RATIO,
    RUN_WAITING_RATIO,
)
from collectors.prometheus.exposition import Exporter
from collectors.traces import timeline
from tests.bench.made.examples import make_machine, make_summary

TRIALS = 2
RUN = ["--trials", str(TRIALS), "--steps", "2", "--warm-up", "1", "--trace-steps", "2", "--port", "0"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two real ranks."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(home))
        assert main.run(["run", "ddp", "--ranks", "2", *RUN, "--runs", str(home / "runs")]) == FINE
    (found,) = (home / "runs").iterdir()
    return found


def _labels(summary: Summary, name: str) -> list[dict[str, str]]:
    return [one.labels for one in summary.estimates if one.metric == name]


@pytest.mark.slow
def test_real_ranks_are_joined_in_each_trial(folder: Path) -> None:
    summary = load(folder)
    for metric in (RUN_COLLECTIVE_WAIT_SECONDS, RUN_COLLECTIVE_TRANSFER_SECONDS):
        (found,) = [one for one in summary.estimates if one.metric == metric.name]
        assert found.labels == {"collective": "all_reduce"}
        assert len(found.trials) == TRIALS
    verdicts = ("holds the others up", "no straggler", "straggler: likely")
    assert sum(any(verdict in note for verdict in verdicts) for note in summary.notes) == 1
    assert (folder / "rank1.timeline.npz").read_bytes() == window_path(folder, TRIALS - 1, 1).read_bytes()


def test_show_tells_how_long_ranks_wait(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main.run(["show", str(folder), "--details"]) == FINE
    rows = capsys.readouterr().out.splitlines()
    assert not any(row.startswith("clocks agree within") for row in rows)
    assert sum("ranks 0, 1 are on host " in row for row in rows) == 1
    for title in ("waiting / time in collectives", "  wait of one all reduce", "  transfer of one all reduce"):
        assert any(row.startswith(title) for row in rows)


def test_a_run_whose_runner_died_is_joined_from_its_windows(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "summary.json").unlink()
    assert _labels(load(copy), RUN_WAITING_RATIO.name) == [{}]


def test_a_window_that_cannot_be_read_costs_no_other_figure(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "summary.json").unlink()
    window_path(copy, 0, 1).write_bytes(b"half a file")
    summary = load(copy)
    assert _labels(summary, RUN_STEP_SECONDS.name) == [{}]
    (waiting,) = [one for one in summary.estimates if one.metric == RUN_WAITING_RATIO.name]
    assert len(waiting.trials) == TRIALS - 1
    (note,) = [note for note in summary.notes if note.startswith("trial 0 is left out of waits and stragglers: ")]
    assert f"{window_path(copy, 0, 1)} is not a Timeline of this program" in note


def test_windows_of_which_nobody_foresaw_what_they_hold_cost_no_other_figure(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "summary.json").unlink()
    path = window_path(copy, 0, 1)
    window = timeline.load(path)
    timeline.save(replace(window, end_ns=window.end_ns[:1]), path)
    summary = load(copy)
    assert _labels(summary, RUN_STEP_SECONDS.name) == [{}]
    (note,) = [note for note in summary.notes if note.startswith("waits and stragglers are absent")]
    assert "the windows cannot be joined: a bug of ours, IndexError" in note


def test_the_straggler_reaches_the_metrics(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'history.sqlite'}"
    joined = (
        estimate_share(RUN_STRAGGLER_RATIO, [0.2, 0.3, 0.4], rank="2", cause="compute"),
        estimate(RUN_COLLECTIVE_WAIT_SECONDS, [0.02, 0.03, 0.04], collective="all_reduce"),
    )
    with History(url) as history:
        history.add(make_summary(estimates=joined), make_machine())
    newest = HistorySource(url, [NewestResults(on_notice=pytest.fail)], on_notice=pytest.fail)
    newest.ask()
    body = generate_latest(Exporter(SHOWN, [newest.samples], on_notice=pytest.fail))
    median = RUN_STRAGGLER_RATIO.statistic("median").name
    (line,) = [line for line in body.decode().splitlines() if line.startswith(median)]
    assert 'rank="2"' in line
    assert 'cause="compute"' in line
    assert float(line.split()[-1]) == 0.3


def test_the_straggler_stands_in_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    joined = (estimate_share(RUN_STRAGGLER_RATIO, [0.2, 0.3, 0.4], rank="2", cause="compute"),)
    print_summaries([make_summary(estimates=joined)], "table")
    assert any(row.startswith("straggler rank 2 compute") for row in capsys.readouterr().out.splitlines())
    print_summaries([make_summary(estimates=joined)], "json")
    (run,) = json.loads(capsys.readouterr().out)
    found: list[dict[str, Any]] = run["estimates"]
    assert found[0]["labels"] == {"rank": "2", "cause": "compute"}
