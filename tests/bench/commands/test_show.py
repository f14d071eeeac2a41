"""`observatory show` as a person calls it, in this process."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from bench.cli import run
from tests.bench.examples import make_machine, small_case
from tests.bench.fake_engine import FakeEngine
from tests.bench.fake_runs import DDP, DDP_STEPS_S, SINGLE, SINGLE_STEPS_S, measure_fake


def test_a_lost_history_is_rebuilt_and_what_was_taken_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S, "single": SINGLE_STEPS_S})
    folder, store = tmp_path / "runs", f"sqlite:///{tmp_path / 'new.sqlite'}"
    names = {summary.run for summary in measure_fake(folder, engine, SINGLE, DDP).summaries}
    assert run(["show", "--rebuild", "--runs", str(folder), "--store", store]) == 0
    said = capsys.readouterr()
    assert all(name in said.out for name in names)
    assert said.err.strip() == f"2 run(s) of {folder} were taken into the history"
    assert run(["show", "--rebuild", "--runs", str(folder), "--store", store]) == 0
    assert capsys.readouterr().err.strip() == f"0 run(s) of {folder} were taken into the history"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--rebuild", "--timeline"], "--import, --export, --rebuild and --timeline cannot be together"),
        (["--rebuild", "2026"], "--rebuild takes all runs of a folder"),
        (["--rebuild", "--runs", "/nowhere"], "/nowhere is no folder; --runs names the one that holds the runs"),
    ],
)
def test_a_rebuild_takes_nothing_but_a_folder(
    arguments: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["show", *arguments, "--store", f"sqlite:///{tmp_path / 'new.sqlite'}"]) == 2
    assert line in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--strategy", "ddp"], ["--rebuild"], ["--format", "json"]])
def test_where_nothing_was_measured_a_look_leaves_nothing_behind(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    (tmp_path / "runs").mkdir()
    assert run(["show", *arguments, "--runs", str(tmp_path / "runs")]) == 0
    assert "in the history yet" in (said := capsys.readouterr().err) or "0 run(s)" in said
    assert list(tmp_path.rglob("*")) == [tmp_path / "runs"]


def test_runs_that_cannot_be_taken_in_are_told_and_make_no_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "runs" / "20260101-000000-ddp-abc"
    broken.mkdir(parents=True)
    (broken / "case.json").write_text("{}")
    assert run(["show", "--runs", str(broken.parent), "--store", f"sqlite:///{tmp_path / 'new.sqlite'}"]) == 0
    assert f"{broken} is left out of the history: " in capsys.readouterr().err
    assert not (tmp_path / "new.sqlite").exists()


def test_a_timeline_has_its_actions_as_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = FakeEngine(make_machine(), {"gpipe": DDP_STEPS_S})
    case = small_case("gpipe", ranks=2, trials=3, trace_steps=1)
    (summary,) = measure_fake(tmp_path / "runs", engine, case).summaries
    assert run(["show", summary.folder, "--timeline", "--format", "json"]) == 0
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert (document["run"], document["is_one_clock"]) == (summary.run, True)
    first = document["actions"][0]
    assert (first["trial"], first["rank"], first["stage"], first["action"], first["microbatch"]) == (
        2,
        0,
        0,
        "forward",
        0,
    )
    assert round((first["end_ns"] - first["start_ns"]) / 1e3) == 1200  # A forward of the third trial.
    assert said.err.startswith("timeline: ")
    assert run(["show", summary.folder, "--timeline", "--format", "csv"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert rows == [{name: str(value) for name, value in action.items()} for action in document["actions"]]
