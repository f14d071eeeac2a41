"""`observatory show` as a person calls it, in this process."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from bench.cli.main import run
from bench.rank.fault_injection import Fault
from bench.store.history import History
from bench.store.run_dir import case_file, load
from tests.bench.made.examples import make_case, make_machine, make_summary, small_case
from tests.bench.made.fake_engine import FakeEngine
from tests.bench.made.fake_runs import DDP, DDP_STEPS_S, SINGLE, SINGLE_STEPS_S, measure_fake
from workloads.cost_models.shape import PRESETS


def test_a_lost_history_is_rebuilt_and_what_was_taken_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S, "single": SINGLE_STEPS_S})
    folder, store = tmp_path / "runs", f"sqlite:///{tmp_path / 'new.sqlite'}"
    names = {summary.run for summary in measure_fake(folder, engine, SINGLE, DDP).summaries}
    assert run(["show", "--rebuild", "--runs", str(folder), "--store", store]) == 0
    said = capsys.readouterr()
    assert all(name in said.out for name in names)
    assert said.err.strip() == f"added 2 runs of {folder} to the history"
    assert run(["show", "--rebuild", "--runs", str(folder), "--store", store]) == 0
    assert capsys.readouterr().err.strip() == f"added 0 runs of {folder} to the history"


def test_a_folder_is_shown_without_the_machine_of_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (summary,) = measure_fake(tmp_path / "runs", FakeEngine(make_machine(), {"ddp": DDP_STEPS_S}), DDP).summaries
    folder = Path(summary.folder)
    (folder / "machine.json").unlink(missing_ok=True)
    (folder / "summary.json").write_bytes(msgspec.json.encode(summary))
    for form in ("table", "json"):
        assert run(["show", str(folder), "--format", form]) == 0
        assert summary.run in capsys.readouterr().out


@pytest.fixture
def moved(tmp_path: Path) -> tuple[str, list[str]]:
    """A run of the history whose folder was moved, and the options that say where to."""
    store = f"sqlite:///{tmp_path / 'history.sqlite'}"
    case = small_case("gpipe", ranks=2, trials=3, trace_steps=1)
    (summary,) = measure_fake(tmp_path / "runs", FakeEngine(make_machine(), {"gpipe": DDP_STEPS_S}), case).summaries
    with History(store) as history:
        history.add(summary, make_machine())
    (tmp_path / "runs").rename(tmp_path / "moved")
    return summary.run, ["--runs", str(tmp_path / "moved"), "--store", store]


def test_a_rebuild_finds_known_runs_at_another_place(
    moved: tuple[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    _, options = moved
    assert run(["show", "--rebuild", *options]) == 0
    found, taken = capsys.readouterr().err.splitlines()
    assert found == "1 run was found in another folder"
    assert taken.startswith("added 0 runs of ")
    assert run(["show", "--rebuild", *options]) == 0
    assert "another place" not in capsys.readouterr().err


def test_a_run_that_was_moved_is_shown_with_its_new_folder(
    moved: tuple[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    name, options = moved
    assert run(["show", name, *options, "--format", "json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)[0]["folder"] == f"{options[1]}/{name}"
    assert said.err.strip() == "1 run was found in another folder"


def test_a_timeline_is_of_the_folder_that_the_run_was_moved_to(
    moved: tuple[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    name, options = moved
    assert run(["show", name, "--timeline", *options]) == 0
    assert f"timeline: {options[1]}/{name}/" in capsys.readouterr().err


def test_a_look_leaves_nothing_beside_a_lone_store(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'history.sqlite'}"
    with History(store) as history:
        history.add(make_summary(), make_machine())
    before = (tmp_path / "history.sqlite").read_bytes()
    for arguments in ([], ["run-a"], ["--rebuild"]):
        (tmp_path / "runs").mkdir(exist_ok=True)
        assert run(["show", *arguments, "--runs", str(tmp_path / "runs"), "--store", store]) == 0
        assert sorted(path.name for path in tmp_path.iterdir()) == ["history.sqlite", "runs"]
    assert (tmp_path / "history.sqlite").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--rebuild", "--timeline"], "--import, --export, --rebuild and --timeline exclude each other"),
        (["--rebuild", "2026"], "--rebuild takes all runs of a folder"),
        (["--rebuild", "--runs", "/nowhere"], "/nowhere is not a folder; name the folder of the runs with --runs"),
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
    assert "in the history yet" in (said := capsys.readouterr().err) or "0 runs" in said
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


@pytest.fixture
def varied(tmp_path: Path) -> str:
    """A store with runs that differ in one thing each, among which the oldest is a fire drill."""
    store = f"sqlite:///{tmp_path / 'history.sqlite'}"
    case = make_case("ddp", model=PRESETS["tiny"], steps=20, warm_up=5, trace_steps=3)
    wide = replace(case, model=replace(case.shape, width=256))
    with History(store) as history:
        for number, summary in enumerate(
            (
                make_summary("20261101-ddp-drill", case=case, drill="kill@1:7"),
                make_summary("20261101-ddp-wide", case=wide),
                make_summary("20261101-ddp-wide-drill", case=wide, drill="hang@0:3"),
                make_summary("20261101-ddp-plain", case=case),
            )
        ):
            history.add(replace(summary, started_ns=summary.started_ns + number), make_machine())
    return store


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ([], ["plain", "wide-drill", "wide", "drill"]),
        (["--setting", "drill"], ["wide-drill", "drill"]),
        (["--setting", "drill=kill@1:7"], ["drill"]),
        (["--setting", "width=256"], ["wide-drill", "wide"]),
        (["--setting", "width=256", "--setting", "drill"], ["wide-drill"]),
        (["--setting", "drill", "--limit", "1"], ["wide-drill"]),
        (["--setting", "drill", "--strategy", "fsdp"], []),
    ],
)
def test_the_list_shows_and_finds_what_tells_runs_apart(
    words: list[str], names: list[str], varied: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["show", *words, "--store", varied, "--runs", str(tmp_path)]) == 0
    said = capsys.readouterr()
    rows = [line.split() for line in said.out.splitlines() if line.startswith("2026")]
    assert [row[0].removeprefix("20261101-ddp-") for row in rows] == names
    assert all(("width=256" in row) == ("wide" in row[0]) for row in rows)
    assert ("no run with" in said.err) == (not names)


def test_a_run_that_was_a_fire_drill_says_so_when_it_is_read_from_its_logs(tmp_path: Path) -> None:
    (summary,) = measure_fake(tmp_path / "runs", FakeEngine(make_machine(), {"ddp": DDP_STEPS_S}), DDP).summaries
    folder = Path(summary.folder)
    case = msgspec.structs.replace(case_file(folder), fault=Fault(kind="kill", rank=1, step=7))
    (folder / "case.json").write_bytes(msgspec.json.encode(case))
    (folder / "summary.json").unlink(missing_ok=True)
    assert load(folder).drill == "kill@1:7"
