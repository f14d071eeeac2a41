"""Watched runs by their name, from the end of a run to `show`, `compare`, `diagnose` and `check`, in this process."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench.cli.main import run
from bench.errors import Misuse
from bench.serve.latest_results import NewestResults
from bench.session.keep_watched import keep_watched
from bench.session.watched.active import running_job
from bench.store import run_dir
from bench.store.active_runs import lock_folder
from bench.store.history import History
from collectors.metrics.agent import RESULT_INFO
from tests.bench.made.examples import make_machine
from tests.bench.results.watched.made_ranks import Fault, MadeSteps, made_steps, write_run

DAY_S = 86_400.0
FIRST_S = 1_795_000_000.0  # 2026-11-18, 11:06 UTC.


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder of runs and its store. said: what a command prints, and how it ends."""

    runs: Path
    store: str
    said: Callable[..., tuple[int, str, str]]

    def keep(self, day: int, made: MadeSteps, **keys: Any) -> str:
        """Keep a run that began so many days after the first one; return its id."""
        folder = write_run(
            self.runs / f"day{day:02}-{keys.get('name', 'llama-sft')}", made, start_unix_s=FIRST_S + DAY_S * day, **keys
        )
        return keep_watched(folder, self.store).run


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    store = f"sqlite:///{tmp_path / 'history.sqlite'}"

    def said(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run([*words, "--store", store, "--runs", str(tmp_path / "runs")])
        out, err = capsys.readouterr()
        return code, out, err

    return Place(runs=tmp_path / "runs", store=store, said=said)


def test_a_run_is_shown_by_its_name_and_the_newest_counts(place: Place) -> None:
    place.keep(0, made_steps("ddp", seed=1))
    place.keep(1, made_steps("ddp", seed=2), steps={"tokens": [128] * 40})
    place.keep(2, made_steps("ddp", seed=3), name="other")
    code, out, _ = place.said("show", "llama-sft")
    assert code == 0
    assert "day01-llama-sft: done, 36 measured steps of 40, found by optimizer" in out
    assert re.search(r"tokens/s\s", out)
    assert "who is late: unsure: no rank stands out" in out
    _, out, _ = place.said("show")
    assert [line.split()[0] for line in out.splitlines()[1:4]] == ["day02-other", "day01-llama-sft", "day00-llama-sft"]
    assert "name=other" in out


def test_a_day_behind_the_name_chooses_the_newest_by_then(place: Place) -> None:
    for day in (0, 2):
        place.keep(day, made_steps("ddp", seed=day))
    assert "day00-llama-sft: done" in place.said("show", "llama-sft@2026-11-18")[1]
    assert "day00-llama-sft: done" in place.said("show", "llama-sft@2026-11-19")[1]
    assert "day02-llama-sft: done" in place.said("show", "llama-sft@2026-11-20")[1]
    code, _, err = place.said("show", "llama-sft@2026-11-17")
    assert (code, "the first watched run of llama-sft began on 2026-11-18" in err) == (2, True)
    code, _, err = place.said("show", "llama-sft@yesterday")
    assert (code, '"yesterday" is not a day; write NAME@YEAR-MONTH-DAY' in err) == (2, True)
    assert 'run "llama@2026-11-20" is unknown' in place.said("show", "llama@2026-11-20")[2]


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ("show llama-sft", "found by optimizer"),
        ("diagnose llama-sft", "llama-sft on 2"),
        ("compare llama-sft other", "llama-sft"),
        ("analyse summary llama-sft", "`observatory watch --attach llama-sft`"),
    ],
)
def test_a_folder_that_shares_a_job_s_name_does_not_hide_the_job(
    words: str, printed: str, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate(("llama-sft", "other")):
        keep_watched(_run_folder(place, number, name), place.store)
    (tmp_path / "llama-sft").mkdir()
    monkeypatch.chdir(tmp_path)
    _, out, err = place.said(*words.split())
    assert printed in out + err


def test_a_program_s_file_does_not_hide_the_job_that_is_named_after_it_but_a_trace_does(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_watched(_run_folder(place, 0, "train"), place.store)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train").write_bytes(b"\x7fELF")
    assert "`observatory watch --attach train` traces its steps" in place.said("analyse", "stragglers", "train")[2]
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 1, "dur": 1, "pid": 1, "tid": 1}
    (tmp_path / "train").write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
    assert "--attach train" not in place.said("analyse", "summary", "train")[2]


def test_an_active_job_is_shown_where_a_folder_shares_its_name(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "llama-sft").mkdir()
    monkeypatch.chdir(tmp_path)
    with _active(place, "llama-sft", made_steps("ddp")):
        code, out, _ = place.said("show", "llama-sft")
    assert code == 0
    assert "active" in out


def _run_folder(place: Place, number: int, name: str) -> Path:
    return write_run(
        place.runs / f"20261118-11060{number}-{name}-00000{number}",
        made_steps("ddp", seed=number),
        name=name,
        start_unix_s=FIRST_S + number,
    )


def test_a_name_with_signs_of_patterns_is_only_itself(place: Place) -> None:
    for day, name in enumerate(("a%b", "a_b", "aXb")):
        place.keep(day, made_steps("ddp"), name=name)
    with History(place.store) as history:
        found = [history.watched(name) for name in ("a%b", "a_b", "a%")]
    assert [None if each is None else each.run for each in found] == ["day00-a%b", "day01-a_b", None]


def test_json_and_csv_have_the_figures_and_the_ranks(place: Place) -> None:
    place.keep(0, made_steps("ddp", fault=Fault(rank=1, phase="data")))
    (document,) = json.loads(place.said("show", "llama-sft", "--format", "json")[1])
    assert document["watched"]["late"]["rank"] == 1
    assert [rank["rank"] for rank in document["watched"]["ranks"]] == [0, 1]
    rows = list(csv.DictReader(io.StringIO(place.said("show", "llama-sft", "--format", "csv")[1])))
    metrics = {row["metric"] for row in rows}
    assert {
        "observatory_run_step_seconds",
        "observatory_run_rank_phase_seconds",
        "observatory_run_late_ratio",
    } <= metrics


def test_diagnose_says_who_is_late_and_what_is_absent(place: Place) -> None:
    place.keep(0, made_steps("ddp", fault=Fault(rank=1, phase="optimizer")), exit_code=3)
    code, out, _ = place.said("diagnose", "llama-sft")
    assert code == 0
    assert "failed: the command ended with code 3" in out
    assert "who is late: rank 1 in optimizer, by " in out
    assert "no cost model covers a user's own program" in out
    document = json.loads(place.said("diagnose", "llama-sft", "--format", "json")[1])
    assert (document["late"]["rank"], document["late"]["phase"]) == (1, "optimizer")
    (row,) = csv.DictReader(io.StringIO(place.said("diagnose", "llama-sft", "--format", "csv")[1]))
    assert row["phase"] == "optimizer"


def test_a_rank_late_in_its_own_loader_or_log_is_named_before_backward(place: Place) -> None:
    place.keep(0, made_steps("ddp", fault=Fault(rank=1, phase="forward")), steps={"data_ns": [0] * 40})
    _, out, _ = place.said("show", "llama-sft")
    assert "who is late: rank 1 before backward, by " in out
    assert re.search(r"^1 +node1 +\S+ ms +- +\S+ ms ", out, re.MULTILINE)
    (document,) = json.loads(place.said("show", "llama-sft", "--format", "json")[1])
    assert [rank["data_s"] for rank in document["watched"]["ranks"]] == [None, None]


def test_two_runs_of_a_name_are_compared_by_their_days(place: Place) -> None:
    place.keep(0, made_steps("ddp", steps=120, seed=1))
    place.keep(2, made_steps("ddp", steps=140, seed=2, fault=Fault(rank=1, phase="data")))
    code, out, _ = place.said("compare", "llama-sft@2026-11-18", "llama-sft")
    assert code == 0
    assert re.search(r"median step .* worse", out)
    assert "its intervals show the noise within the run" in out
    assert "one run on each side: intervals are over its stretches" in out
    assert "--trials" not in out
    assert "steps 108" not in out  # How long a program runs is no setting.


def test_the_gate_names_the_night_on_which_a_watched_job_became_slower(place: Place) -> None:
    for day in range(-14, 0):
        place.keep(day, made_steps("ddp", steps=120, seed=day + 20, fault=None))
    assert place.said("check", "--suite", "watch-llama-sft")[0] == 0
    late = Fault(rank=1, phase="data", late_ms=20)
    for day in range(3):  # The gate suspects a first and second night.
        place.keep(day, made_steps("ddp", steps=120, seed=40 + day, fault=late))
    code, out, _ = place.said("check")
    assert code == 5
    assert "llama-sft: step: the level has changed by +" in out
    assert "since 2026-11-18" in out


def test_the_gate_abstains_from_a_step_of_uneven_work_and_takes_the_rate_by_tokens(place: Place) -> None:
    made = made_steps("ddp", steps=120)
    made.step[:, ::2] *= 2
    place.keep(-2, made)
    document = json.loads(place.said("check", "--format", "json")[1])[0]
    assert [each["kind"] for each in document["missing"]] == ["uneven"]
    assert "is not judged: half of the steps differ" in document["missing"][0]["reason"]
    assert {verdict["metric"] for verdict in document["verdicts"]} == {"observatory_run_peak_memory_bytes"}
    place.keep(-1, made, name="by-tokens", steps={"tokens": [256, 128] * 60})
    document = json.loads(place.said("check", "--suite", "watch-by-tokens", "--format", "json")[1])[0]
    metrics = {verdict["metric"] for verdict in document["verdicts"]}
    assert metrics == {"observatory_run_device_tokens_per_second", "observatory_run_peak_memory_bytes"}


def test_a_failed_job_is_missing_to_the_gate(place: Place) -> None:
    place.keep(-1, made_steps("ddp"), exit_code=1)
    code, out, _ = place.said("check")
    assert code == 3
    assert "the command ended with code 1" in out


def test_a_run_whose_runner_died_is_taken_in(place: Place) -> None:
    watch = {"end_unix_s": None, "store": place.store}
    lost = write_run(place.runs / "lost", made_steps("ddp"), exit_code=None, watch=watch)
    run_dir.write_json(lost / "machine.json", make_machine())  # The runner writes it before the command begins.
    assert "name=llama-sft" in place.said("show")[1]
    assert "interrupted" in place.said("show", "llama-sft")[1]
    with History(place.store) as history:
        assert [record.suite for record in history.suite_runs(5)] == ["watch-llama-sft"]


def test_a_run_whose_watch_died_is_active_while_its_ranks_write(place: Place) -> None:
    watch = {"end_unix_s": None, "store": place.store}
    lost = write_run(place.runs / "20261121-120000-llama-sft-abc123", made_steps("ddp"), exit_code=None, watch=watch)
    run_dir.write_json(lost / "machine.json", make_machine())
    locks = (
        "import fcntl, sys; file = open(sys.argv[1], 'a'); fcntl.lockf(file, fcntl.LOCK_EX);"
        "print('locked', flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", locks, str(lost / "watch_rank1.jsonl")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as rank:
        assert rank.stdout is not None
        assert rank.stdout.readline() == b"locked\n"
        assert f"{lost.name}: active" in place.said("show", "llama-sft")[1]
        assert lost.name not in place.said("show")[1]
        with pytest.raises(Misuse, match="the watch of job llama-sft has died"):
            running_job("llama-sft", place.runs)
        rank.communicate()
    assert lost.name in place.said("show")[1]


@contextmanager
def _active(place: Place, name: str, made: MadeSteps | None) -> Iterator[Path]:
    """A watched run whose command runs; without steps no rank has reported yet."""
    folder = place.runs / f"20261121-120000-{name}-abc123"
    write_run(folder, made or made_steps("ddp"), name=name, exit_code=None, watch={"end_unix_s": None})
    for path in folder.glob("watch_rank*.jsonl"):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))  # Without an end line.
        if made is None:
            path.unlink()
    run_dir.write_json(folder / "machine.json", make_machine())
    lock = lock_folder(folder)
    assert lock is not None
    try:
        yield folder
    finally:
        os.close(lock)


def test_an_active_run_is_the_newest_of_its_name_and_shows_what_is_known_so_far(place: Place) -> None:
    place.keep(0, made_steps("ddp", seed=1))
    made = made_steps("ddp", fault=Fault(rank=1, phase="data"))
    with _active(place, "llama-sft", made) as folder:
        for word in ("llama-sft", folder.name, "20261121", str(folder)):
            code, out, _ = place.said("show", word)
            assert (code, f"{folder.name}: active, 36 measured steps of 40" in out) == (0, True), word
            assert "who is late: rank 1 in data" in out
            assert "without an end line" not in out
        code, out, _ = place.said("diagnose", "llama-sft")
        assert (code, out.splitlines()[0].endswith(", active")) == (0, True)
        assert "next: `observatory watch --attach llama-sft` traces the same steps" in out
        (document,) = json.loads(place.said("show", "llama-sft", "--format", "json")[1])
        assert (document["outcome"], document["watched"]["is_active"]) == ("active", True)
        rows = list(csv.DictReader(io.StringIO(place.said("show", "llama-sft", "--format", "csv")[1])))
        assert {row["outcome"] for row in rows} == {"active"}
        assert "day00-llama-sft: done" in place.said("show", "day00")[1]
        assert not (folder / "summary.json").exists()
    assert "day00-llama-sft: done" in place.said("show", "llama-sft@2026-11-18")[1]


def test_an_active_run_of_which_no_rank_has_reported_says_so(place: Place) -> None:
    with _active(place, "llama-sft", None):
        code, _, err = place.said("show", "llama-sft")
        assert (code, "is active, and no process has reported yet; look again" in err) == (2, True)


def test_a_word_that_begins_several_active_runs_is_refused(place: Place) -> None:
    with _active(place, "first", made_steps("ddp")), _active(place, "other", made_steps("ddp")):
        code, _, err = place.said("show", "2026112")
        assert (code, 'run "2026112" may be any of 20261121-120000-first-abc123, 20261121-' in err) == (2, True)


def test_a_run_whose_history_cannot_be_written_stays_in_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "runs" / "run", made_steps("ddp"))
    (tmp_path / "no folder").write_text("")
    summary = keep_watched(folder, f"sqlite:///{tmp_path / 'no folder' / 'h.sqlite'}")
    assert run_dir.load(folder) == summary
    assert "is only in its folder" in capsys.readouterr().err


def test_what_runs_by_name_refuses_the_kind(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "watched", "--dry-run"]) == 2
    assert "observatory watch --name NAME -- COMMAND" in capsys.readouterr().err
    assert run(["list"]) == 0
    assert "watched" not in capsys.readouterr().out
    code, _, err = place.said("show", "--strategy", "watched")
    assert (code, "no watched run is in the history yet" in err) == (0, True)


def test_a_watched_run_is_pruned_as_any_other_and_the_history_keeps_it(place: Place) -> None:
    today = int((time.time() - FIRST_S) / DAY_S)
    old, young = place.keep(today - 9, made_steps("ddp")), place.keep(today, made_steps("ddp"))
    code, _, err = place.said("prune", "--older-than", "5d")
    assert code == 0, err
    assert [path.name for path in place.runs.iterdir() if path.is_dir()] == [young]
    assert "name=llama-sft" in place.said("show")[1]
    assert f"{old}: done" in place.said("show", old)[1]


def test_the_exporter_knows_the_newest_run_by_its_name(place: Place) -> None:
    place.keep(0, made_steps("ddp", seed=1), watch={"tags": {"data": "c4"}})
    place.keep(1, made_steps("ddp", fault=Fault(rank=1, phase="data")), watch={"tags": {"data": "c4"}})
    newest = NewestResults(on_notice=lambda line: pytest.fail(line))
    with History(place.store, writable=False) as history:
        newest.read(history)
    samples = list(newest.samples())
    (info,) = [sample for sample, _ in samples if sample.metric == RESULT_INFO.name]
    assert info.labels["name"] == "llama-sft on 2, cpu, torch 2.13.0, data=c4"
    assert (info.labels["run"], info.labels["precision"]) == ("day01-llama-sft", "unknown")
    late = [sample.labels for sample, _ in samples if sample.metric == "observatory_run_late_median_ratio"]
    assert late == [{"rank": "1", "phase": "data"}]
    phases = [sample for sample, _ in samples if sample.metric == "observatory_run_rank_phase_median_seconds"]
    assert len(phases) == 8
    assert any(sample.metric == "observatory_run_step_quantile_p99_median_seconds" for sample, _ in samples)
