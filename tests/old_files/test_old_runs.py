"""Runs and histories that an earlier version wrote are read as that version read them, or are refused in its words."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import sqlite3
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psycopg
import pytest

from collectors.metrics.agent import RUN_INFO, RUN_LAST_PROGRESS
from collectors.metrics.rank import LIVE_TENSOR_BYTES
from collectors.metrics.run_counts import STEP_DURATION, STEPS
from tests.old_files import forms
from tests.old_files.command import (
    COLLECTIVES,
    DDP,
    FAILED,
    GPIPE,
    HERE,
    RUNS,
    SINGLE,
    answer,
    observatory,
    postgresql_dump,
    unpack_history,
    unpack_runs,
)
from tests.support.servers import PostgresServer, run_postgres

MEASURED = (SINGLE, DDP, GPIPE, COLLECTIVES)
TABLES = ("schema_version", "runs", "estimates", "trial_values")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No history of the user's."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """The folder of the old runs."""
    return unpack_runs(tmp_path)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The old SQLite history."""
    return f"sqlite:///{unpack_history(tmp_path)}"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with run_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.stack)])
def history(request: pytest.FixtureRequest, sqlite_url: str) -> Iterator[str]:
    """The old history in each kind of store."""
    if request.param == "sqlite":
        yield sqlite_url
        return
    server: PostgresServer = request.getfixturevalue("server")
    _execute(server.url("postgres"), "CREATE DATABASE old")
    _execute(server.url("old"), postgresql_dump())
    yield server.url("old")
    _execute(server.url("postgres"), "DROP DATABASE old")


def _execute(url: str, statements: str) -> None:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as sqlite:
            sqlite.executescript(statements)
    else:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statements.encode())


_OF_FILES = {"head_dim": None, "norm_epsilon": 1e-5, "rope_theta": 5e5, "rope_scaling": None, "is_tied": False}
"""What shapes have had since files describe them."""


def _summary(run: Path) -> Any:
    """What the file has, with the keys that later versions added."""
    found = json.loads((run / "summary.json").read_text())
    found["purpose"]["member"] = None
    found["case"] |= {"nodes": 1, "bind": False, **_UNSAVED}
    if (model := found["case"]["model"]) is not None:
        model |= _OF_FILES
    if found["cause"] is not None:
        found["cause"]["explained"] = []
    version = found.pop("schema_version")
    return found | {
        "step_spreads": [],
        "hosts": [],
        "in_turn_with": [],
        "drill": None,
        "prediction": None,
        "watched": None,
        "schema_version": version,
    }


def test_the_history_lists_its_runs_as_their_folders_have_them(history: str, runs: Path, tmp_path: Path) -> None:
    found = json.loads(answer("show", "--format", "json", "--store", history, "--runs", tmp_path / "none"))
    assert found == [_summary(runs / name) for name in reversed(RUNS)]
    assert [list(run) for run in found] == [list(_summary(runs / name)) for name in reversed(RUNS)]


def test_the_history_as_csv_is_what_it_was(history: str, tmp_path: Path) -> None:
    found = answer("show", "--format", "csv", "--store", history, "--runs", tmp_path / "none")
    assert found == (HERE / "expected" / "show.csv").read_text()


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_the_history_is_what_its_folder_has(name: str, history: str, runs: Path, tmp_path: Path) -> None:
    found = answer("show", name, "--format", "json", "--store", history, "--runs", tmp_path / "none")
    assert json.loads(found) == [_summary(runs / name)]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_s_folder_is_shown_where_it_lies_now(name: str, runs: Path) -> None:
    (found,) = json.loads(answer("show", runs / name, "--format", "json"))
    assert found == _summary(runs / name) | {"folder": str(runs / name)}
    rows = list(csv.DictReader(io.StringIO(answer("show", runs / name, "--format", "csv"))))
    with (HERE / "expected" / "show.csv").open(newline="") as file:
        assert rows == [row for row in csv.DictReader(file) if row["run"] == name]


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("details", [[], ["--details"]], ids=["short", "details"])
def test_a_person_is_shown_every_run(name: str, details: list[str], runs: Path, sqlite_url: str) -> None:
    found = answer("show", name, *details, "--store", sqlite_url, "--runs", runs)
    assert name in found
    assert str(runs / name) in found


def test_a_fresh_history_made_of_the_folders_is_the_old_history(runs: Path, sqlite_url: str, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh.sqlite"
    said = observatory("show", "--rebuild", "--runs", runs, "--store", f"sqlite:///{fresh}")
    assert said.code == 0
    assert said.err.splitlines()[-1] == f"added {len(RUNS)} runs of {runs} to the history"
    answer("show", "--store", sqlite_url, "--runs", tmp_path / "none")  # Brings the old one up to date.
    assert _rows(fresh, tmp_path) == _rows(Path(sqlite_url.removeprefix("sqlite:///")), tmp_path)


_UNSAVED: dict[str, Any] = {"save_every": None, "save_mode": "sync"}
"""What cases have had since checkpoints can be saved."""
_UNKNOWN_OF_OLD_RUNS = (
    *("is_rerun", "definition_version", "commit_id", "environment", "hosts"),
    *("spread_ratio", "steps"),
)
"""Columns that a history has of runs that it took in since it has them."""


def _rows(store: Path, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """All rows of the store by table, with folders as they were at first."""
    with closing(sqlite3.connect(store)) as connection:
        connection.row_factory = sqlite3.Row
        found = {table: [dict(row) for row in connection.execute(f"SELECT * FROM {table}")] for table in TABLES}
    for rows in found.values():
        for row in rows:
            row |= {name: forms.of_place(text, folder) for name, text in row.items() if isinstance(text, str)}
            row |= {name: json.loads(text) for name, text in row.items() if name.endswith("_json")}
            for name in _UNKNOWN_OF_OLD_RUNS:
                row.pop(name, None)
            if "summary_json" in row:
                row["summary_json"]["purpose"].setdefault("member", None)
                row["summary_json"]["case"].setdefault("nodes", 1)
                row["summary_json"]["case"].setdefault("bind", False)
                row["summary_json"]["case"] = _UNSAVED | row["summary_json"]["case"]
                for name in ("step_spreads", "hosts", "in_turn_with"):
                    row["summary_json"].setdefault(name, [])
                for name in ("drill", "prediction", "watched"):
                    row["summary_json"].setdefault(name, None)
                if row["summary_json"]["cause"] is not None:
                    row["summary_json"]["cause"].setdefault("explained", [])
                row["case_json"].setdefault("nodes", 1)
                row["case_json"].setdefault("bind", False)
                row["case_json"] = _UNSAVED | row["case_json"]
                for case in (row["summary_json"]["case"], row["case_json"]):
                    case["model"] = case["model"] and {**_OF_FILES, **case["model"]}
                row["machine_json"].setdefault("nodes_here", 1)
                for name in ("container_image", "cpu_limit_cores", "memory_limit_bytes"):
                    row["machine_json"].setdefault(name, None)
        rows.sort(key=lambda row: [str(value) for value in row.values()])
    return found


@pytest.mark.parametrize("name", MEASURED)
def test_the_logs_of_a_run_say_what_they_said(name: str, runs: Path) -> None:
    """As where nobody wrote a summary. What the history added to the old one is left out, and sentences."""
    old = _summary(runs / name)
    (runs / name / "summary.json").unlink()
    (found,) = json.loads(answer("show", runs / name, "--format", "json"))
    for field in ("outcome", "cause", "ended_ns", "notes", "scaling", "folder", "step_spreads", "hosts"):
        old.pop(field)
        found.pop(field, None)
    old["estimates"] = [estimate for estimate in old["estimates"] if not _is_by_the_history(estimate)]
    for summary in (old, found):
        summary["estimates"] = [estimate for estimate in summary["estimates"] if not _is_by_another_law(estimate)]
    assert forms.differences(old, found) == []


def _is_by_another_law(estimate: Any) -> bool:
    """Whether the estimate is what activations should take; since then a step frees its logits before backward."""
    labels = estimate["labels"]
    is_expected = labels.get("account") == "implementation" or estimate["metric"].endswith("predicted_ratio")
    return "_memory_" in estimate["metric"] and is_expected and labels["part"] in ("activations", "total")


def _is_by_the_history(estimate: Any) -> bool:
    """Whether the estimate is of a bubble that is expected from what messages cost, which the history may tell."""
    metric, words = estimate["metric"], set(estimate["labels"].values())
    expected = {"expected", "schedule", "imbalance", "unexplained"}
    return metric in ("observatory_run_bubble_ratio", "observatory_run_bubble_part_ratio") and bool(words & expected)


_NEW_TABLES = {"summary": ["rules"], "summary of a trace": ["rules"]}
"""Tables that analyses have behind those of that version since later ones."""


def test_an_analysis_of_old_windows_and_traces_finds_what_it_found(runs: Path, sqlite_url: str) -> None:
    old, now = forms.expected("analyses"), forms.analyses(runs, sqlite_url)
    for name, added in _NEW_TABLES.items():
        tables = now[name]["tables"]
        assert [table["name"] for table in tables[-len(added) :]] == added
        del tables[-len(added) :]
    assert forms.differences(old, now) == []


def test_a_table_of_an_analysis_as_csv_is_what_it_was(runs: Path, sqlite_url: str) -> None:
    words = ("analyse", "summary", DDP, "--table", "steps", "--format", "csv", "--runs", runs, "--store", sqlite_url)
    assert answer(*words) == (HERE / "expected" / "summary-steps.csv").read_text()


def test_old_windows_are_merged_into_one_trace(runs: Path, tmp_path: Path) -> None:
    merged = tmp_path / "merged.json"
    answer("analyse", "merge", runs / DDP, "--output", merged)
    names = {event["name"] for event in json.loads(merged.read_text())["traceEvents"]}
    assert {"process_name", "thread_name", "gloo:all_reduce"} <= names


@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_pipeline_s_timeline_is_what_it_was(form: str, runs: Path, sqlite_url: str) -> None:
    found = answer("show", GPIPE, "--timeline", "--format", form, "--runs", runs, "--store", sqlite_url)
    assert found == (HERE / "expected" / f"timeline.{form}").read_text()


def test_collectives_are_exported_as_they_were(runs: Path, sqlite_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "export"
    answer("show", COLLECTIVES, "--export", folder, "--runs", runs, "--store", sqlite_url)
    for path in folder.iterdir():
        assert json.loads(path.read_text()) == json.loads((HERE / "expected" / path.name).read_text())
    assert len(list(folder.iterdir())) == 2


def test_the_exporter_shows_old_results_and_an_old_run_that_goes_on(runs: Path, sqlite_url: str) -> None:
    old, now = forms.expected("exposition"), forms.exposition(runs, sqlite_url)
    # A run says when it last got on and counts its steps, infos have more labels, and totals names of their own, since
    # later versions.
    total = LIVE_TENSOR_BYTES.alone(category="total")
    news = tuple(one.name for one in (RUN_LAST_PROGRESS, RUN_INFO, STEP_DURATION, STEPS, total))
    assert [line for line in now["live"] if not line.startswith(news)] == [
        line for line in old["live"] if not line.startswith(news)
    ]
    for infos in zip(_infos(old), _infos(now), strict=True):
        was, told = (dict(re.findall(r'(\w+)="([^"]*)"', line)) for line in infos)
        assert was.items() <= told.items()
    assert now["results"] == old["results"]


def _infos(exposition: dict[str, Any]) -> list[str]:
    """The lines of the run that goes on, and of each result, in the order of the runs."""
    live = [line for line in exposition["live"] if line.startswith(RUN_INFO.name)]
    return [*live, *sorted(exposition["info"], key=lambda line: re.findall('run="([^"]*)"', line))]


class Damage(NamedTuple):
    """What happens to the old files, and what is said of them then; {runs} stands for the folder of runs."""

    harm: Callable[[Path], None]
    words: tuple[str, ...]
    code: int
    says: str


def _cut(*names: str) -> Callable[[Path], None]:
    """Keep the first half of these files."""

    def harm(runs: Path) -> None:
        for path in (runs / name for name in names):
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return harm


def _newer(name: str) -> Callable[[Path], None]:
    """Let every schema version in the file be 99."""

    def harm(runs: Path) -> None:
        path = runs / name
        text = path.read_text()
        changed = text.replace('"schema_version": 1', '"schema_version": 99')
        changed = changed.replace('"schema_version":1', '"schema_version":99')
        changed = changed.replace('"schema_version":2', '"schema_version":99')
        assert changed != text
        path.write_text(changed)

    return harm


def _without_summary(harm: Callable[[Path], None], run: str) -> Callable[[Path], None]:
    def both(runs: Path) -> None:
        (runs / run / "summary.json").unlink()
        harm(runs)

    return both


def _newer_window(runs: Path) -> None:
    for path in (runs / SINGLE).rglob("*.npz"):
        with np.load(path) as old:
            arrays = dict(old)
        np.savez_compressed(path, **arrays | {"schema_version": np.array(99)})


WINDOW = f"{SINGLE}/trial1/rank0.timeline.npz"
DAMAGES = {
    "summary cut": Damage(
        _cut(f"{DDP}/summary.json"), ("show", f"{{runs}}/{DDP}"), 2,
        f"{{runs}}/{DDP}/summary.json: is not a summary (Input data was truncated);"
        " delete it, and the run is read again from its logs",
    ),
    "summary newer": Damage(
        _newer(f"{DDP}/summary.json"), ("show", f"{{runs}}/{DDP}"), 2,
        f"{{runs}}/{DDP}/summary.json: written with schema version 99, but this program reads up to 1;"
        " use the version that wrote it",
    ),
    "case cut": Damage(
        _cut(f"{DDP}/case.json"), ("show", f"{{runs}}/{DDP}"), 2,
        f"{{runs}}/{DDP}/case.json cannot be read: Input data was truncated",
    ),
    "case newer": Damage(
        _newer(f"{DDP}/case.json"), ("show", f"{{runs}}/{DDP}"), 2,
        f"{{runs}}/{DDP}/case.json: schema version 99 is newer than 1, which this program reads",
    ),
    "machine newer": Damage(
        _newer(f"{COLLECTIVES}/machine.json"), ("show", f"{{runs}}/{COLLECTIVES}", "--export", "{runs}/export"), 2,
        f"{{runs}}/{COLLECTIVES}/machine.json: schema version 99 is newer than 1, which this program reads",
    ),
    "log newer": Damage(
        _without_summary(_newer(f"{DDP}/rank1.jsonl"), DDP), ("show", f"{{runs}}/{DDP}"), 2,
        f"{{runs}}/{DDP}/rank1.jsonl: written with schema version 99, but this program reads up to 4;"
        " use the version that wrote it",
    ),
    "window cut": Damage(
        _cut(WINDOW), ("analyse", "summary", f"{{runs}}/{WINDOW}"), 2,
        f"{{runs}}/{WINDOW} is not a Timeline of this program, or is incomplete",
    ),
    "window newer": Damage(
        _newer_window, ("analyse", "summary", f"{{runs}}/{WINDOW}"), 2,
        f"{{runs}}/{WINDOW}: schema version 99 is newer than 2, which this program reads",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_a_file_that_cannot_be_read_is_refused_in_the_old_words(name: str, runs: Path) -> None:
    damage = DAMAGES[name]
    damage.harm(runs)
    said = observatory(*(word.format(runs=runs) for word in damage.words))
    assert said.err == f"observatory: {damage.says.format(runs=runs)}\n"
    assert (said.code, said.out) == (damage.code, "")


def test_a_log_that_was_cut_off_loses_its_last_line_alone(runs: Path) -> None:
    log = runs / DDP / "rank1.jsonl"
    log.write_bytes(log.read_bytes()[:-20])
    (runs / DDP / "summary.json").unlink()
    (found,) = json.loads(answer("show", runs / DDP, "--format", "json"))
    assert found["trials_done"] == 1
    assert any(note.startswith("rank1.jsonl: the last line is cut off; ") for note in found["notes"])


def test_a_trace_that_was_cut_off_is_read_up_to_there(runs: Path) -> None:
    trace = f"{SINGLE}/rank0.trace.json.gz"
    _cut(trace)(runs)
    said = observatory("analyse", "summary", runs / trace, "--format", "json")
    assert said.code == 0
    assert said.err.endswith(f"{runs / trace}: left out: what cannot be unpacked: its compression is cut short\n")


def test_a_history_of_a_newer_version_is_refused_in_the_old_words(history: str, runs: Path) -> None:
    _execute(history, "UPDATE schema_version SET version = 99, written_by = '9.0'")
    for words in (["show"], ["show", DDP], ["show", "--rebuild"]):
        said = observatory(*words, "--store", history, "--runs", runs)
        assert said.err.startswith(
            "observatory: the store has schema version 99, written by parallel-observatory 9.0; "
        )
        assert said.err.endswith(" reads up to 3; use that version, or another --store\n")
        assert (said.code, said.out) == (4, "")


def test_a_history_that_was_cut_off_is_refused_in_the_old_words(sqlite_url: str, tmp_path: Path) -> None:
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    said = observatory("show", "--store", sqlite_url, "--runs", tmp_path / "none")
    assert said.err.startswith(f"observatory: store {sqlite_url}: database disk image is malformed; ")
    assert (said.code, said.out) == (4, "")


SHAPE = "--layers 1 --width 32 --heads 2 --kv-heads 1 --mlp-width 64 --vocabulary 64 --sequence 16"
WRITTEN = {
    SINGLE: (0, f"single --ranks 1 --batch 2 --trials 2 --trace-steps 1 --keep-traces {SHAPE}"),
    FAILED: (3, f"ddp --ranks 2 --batch 4 --trials 1 --trace-steps 0 --inject raise@1:2 {SHAPE}"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITTEN)
def test_a_run_of_today_has_the_files_of_an_old_one(name: str, runs: Path, sqlite_url: str, tmp_path: Path) -> None:
    code, words = WRITTEN[name]
    new, store = tmp_path / "new", tmp_path / "new.sqlite"
    places = ("--runs", new, "--store", f"sqlite:///{store}")
    said = observatory(
        "run", *words.split(), "--device", "cpu", "--steps", "3", "--warm-up", "1", "--nightly", "--port", "0", *places
    )
    assert said.code == code, said.err
    (folder,) = new.iterdir()
    added = {**_ADDED, "summary.json": _ADDED["summary.json"] | ({"/cause/explained"} if name == FAILED else set())}
    assert _forms(folder) == _forms(runs / name, added=added)
    answer("show", "--store", sqlite_url, "--runs", tmp_path / "none")  # Brings the old one up to date.
    assert _columns(store) == _columns(Path(sqlite_url.removeprefix("sqlite:///")))


_OPTIONS_ADDED = {
    f"/case/options/{name}"
    for name in (
        "checkpoint_every",
        "grad_dtype",
        "loss_chunks",
        "lr_decay",
        "lr_decay_steps",
        "lr_min",
        "lr_warm_up_start",
        "weights",
    )
}
_ADDED = {
    "case.json": {
        "/purpose/member",
        "/resumed",
        "/prediction",
        "/case/nodes",
        "/case/bind",
        "/case/save_every",
        "/case/save_mode",
        *_OPTIONS_ADDED,
        *(f"/case/model/{name}" for name in _OF_FILES),
    },
    "summary.json": {
        "/purpose/member",
        "/prediction",
        "/watched",
        "/case/nodes",
        "/case/bind",
        "/case/save_every",
        "/case/save_mode",
        *_OPTIONS_ADDED,
        *(f"/case/model/{name}" for name in _OF_FILES),
        "/step_spreads",
        "/hosts",
        "/in_turn_with",
        "/drill",
    },
    "machine.json": {"/nodes_here", "/container_image", "/cpu_limit_cores", "/memory_limit_bytes"},
    "opened": {"cpus"},
}
"""Fields that later versions have added to files, and to the first record of a rank's log."""
_OF_THE_MACHINE = ("/absent", "/environment", "/gpus", "/links", "/hosts", "/step_spreads", "/prediction", "/watched")


def _forms(folder: Path, added: dict[str, set[str]] | None = None) -> dict[str, object]:
    """The fields of each file of a run, and those added by file's name.

    None of what depends on the machine, or on how far a rank came that failed.
    """
    is_whole = _summary(folder)["outcome"] == "done"
    found: dict[str, object] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        if path.suffix == ".json":
            found[name] = _fields(json.loads(path.read_text())) | (added or {}).get(name, set())
        elif path.suffix == ".jsonl" and is_whole:
            records = [json.loads(line) for line in path.read_text().splitlines()]
            kinds = {
                (record["type"], record.get("mark"), *sorted(record.keys() | (added or {}).get(record["type"], set())))
                for record in records
            }
            found[name] = sorted(kinds - {kind for kind in kinds if kind[0] in ("changed", "note")}, key=str)
        elif path.suffix == ".npz":
            with zipfile.ZipFile(path) as packed:
                found[name] = sorted(packed.namelist())
        elif path.suffix == ".gz":
            found[name] = sorted(json.loads(gzip.decompress(path.read_bytes())))
        else:
            found[name] = None
    return found


def _fields(value: object, place: str = "") -> set[str]:
    if place.endswith(_OF_THE_MACHINE):
        return {place}
    if isinstance(value, dict):
        return {place}.union(*(_fields(below, f"{place}/{name}") for name, below in value.items()))
    if isinstance(value, list):
        return {place}.union(*(_fields(below, f"{place}/") for below in value))
    return {place}


def _columns(store: Path) -> dict[str, list[tuple[object, ...]]]:
    with closing(sqlite3.connect(store)) as connection:
        return {table: connection.execute(f"PRAGMA table_info({table})").fetchall() for table in TABLES}
