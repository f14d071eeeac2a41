"""`observatory prune` as a person calls it, in this process, and what other commands say of a run that is pruned."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.cli.main import run
from bench.store.history import History
from tests.bench.made.examples import make_machine, small_case
from tests.bench.made.fake_engine import FakeEngine
from tests.bench.made.fake_runs import DDP, DDP_STEPS_S, measure_fake

OLD, NEW = 0, 1


@pytest.fixture
def names(tmp_path: Path) -> list[str]:
    """Two runs of one series in the history, both ended well."""
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S, "gpipe": DDP_STEPS_S})
    summaries = [measure_fake(tmp_path / "runs", engine, DDP).summaries[0] for _ in range(2)]
    with History(f"sqlite:///{tmp_path / 'history.sqlite'}") as history:
        for seconds, summary in enumerate(summaries):
            history.add(replace(summary, started_ns=summary.started_ns + seconds), make_machine())
    return [summary.run for summary in summaries]


@pytest.fixture
def place(tmp_path: Path) -> list[str]:
    """The options that say where runs and history are."""
    return ["--runs", str(tmp_path / "runs"), "--store", f"sqlite:///{tmp_path / 'history.sqlite'}"]


def _folders(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "runs").iterdir()}


def test_a_dry_run_says_what_would_go_and_what_stays_and_deletes_nothing(
    names: list[str], place: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted((path, path.lstat().st_mtime_ns) for path in tmp_path.rglob("*"))
    assert run(["prune", "--older-than", "0.001s", "--dry-run", *place]) == 0
    said = capsys.readouterr().out
    gone, _, rest = said.partition("stays regardless of age")
    assert names[OLD] in gone
    assert "it is older than --older-than" in gone
    assert names[NEW] in rest
    assert "it is the newest good run of its series" in rest
    assert "1 run would be deleted, " in rest
    assert sorted((path, path.lstat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


def test_what_was_deleted_is_told_and_its_results_are_still_there(
    names: list[str], place: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["prune", "--older-than", "0.001s", *place]) == 0
    assert "1 run deleted, " in capsys.readouterr().out
    assert _folders(tmp_path) == {names[NEW]}
    assert run(["show", names[OLD], *place]) == 0
    said = capsys.readouterr()
    assert f"run folder: {tmp_path}/runs/{names[OLD]} (missing: pruned, moved, or on another machine" in said.out
    assert said.err == ""
    assert run(["show", *place]) == 0
    assert names[OLD] in capsys.readouterr().out


def test_json_and_csv_have_each_folder_with_its_reason(
    names: list[str], place: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    half_deleted = tmp_path / "runs" / ".pruned-older"
    half_deleted.mkdir()
    options = ["--keep-bytes", "0", "--dry-run", *place]
    assert run(["prune", *options, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    found = {folder["name"]: folder["action"] for folder in document["folders"]}
    assert found == {names[OLD]: "deleted", names[NEW]: "kept"}
    assert document["is_dry_run"] is True
    assert document["leftovers"] == [str(half_deleted)]
    assert document["deleted_bytes"] == document["folders"][0]["bytes"] > 0
    assert run(["prune", *options, "--format", "csv"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert rows == [
        {name: "" if value is None else str(value) for name, value in folder.items()} for folder in document["folders"]
    ]


def test_where_what_is_needed_is_too_much_that_is_said(
    names: list[str], place: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["prune", "--keep-bytes", "10", *place]) == 0
    assert "are needed, which is more than --keep-bytes; that much stays" in capsys.readouterr().err


def test_results_are_deleted_where_that_is_said(
    names: list[str], place: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["prune", "--older-than", "0.001s", "--history", *place]) == 0
    capsys.readouterr()
    assert run(["show", names[OLD], *place]) == 2
    assert f'run "{names[OLD]}" is unknown' in capsys.readouterr().err


def test_a_run_that_is_named_by_its_beginning_stays(
    names: list[str], place: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["prune", "--older-than", "0.001s", "--keep", names[OLD][:-2], *place]) == 0
    assert "--keep names it" in capsys.readouterr().out
    assert _folders(tmp_path) == set(names)


def test_what_is_of_the_folder_alone_is_refused_of_a_pruned_run(
    place: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = FakeEngine(make_machine(), {"gpipe": DDP_STEPS_S})
    case = small_case("gpipe", ranks=2, trials=3, trace_steps=1)
    failed, _ = (measure_fake(tmp_path / "runs", engine, case).summaries[0] for _ in range(2))
    with History(place[-1]) as history:
        history.add(replace(failed, outcome="failed"), make_machine())
    assert run(["prune", "--older-than", "0.001s", *place]) == 0
    capsys.readouterr()
    for arguments in (["show", failed.run, "--timeline"], ["analyse", "summary", failed.run]):
        assert run([*arguments, *place]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert (
            f"{tmp_path}/runs/{failed.run} is gone" in line or f"{tmp_path}/runs/{failed.run} no longer exists" in line
        )


def test_without_a_history_nothing_is_deleted(
    names: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    assert run(["prune", "--older-than", "0.001s", "--runs", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr()
    assert "no run can be deleted, since none is in a history" in said.err
    assert "nothing deleted" in said.out
    assert _folders(tmp_path) == set(names)


def test_a_folder_that_cannot_be_deleted_is_a_failure_of_the_machine(
    names: list[str], place: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs" / f".pruned-{names[OLD]}").write_text("no folder, which no prune can delete")
    assert run(["prune", "--older-than", "0.001s", *place]) == 4
    assert "the next prune tries again" in capsys.readouterr().err
