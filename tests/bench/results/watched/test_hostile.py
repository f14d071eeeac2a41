"""Rank files of any content have an answer in words: what was left out, and why."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from bench.errors import Misuse
from bench.results.watched import rank_files
from bench.results.watched.compact import compact
from bench.results.watched.job import read_job
from bench.results.watched.run import read_run, read_watch_file
from bench.store import run_dir
from tests.bench.results.watched.made_ranks import START_NS, begin_line, made_steps, steps_line, write_lines, write_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", made_steps("ddp"))


def _steps(**changes: Any) -> dict[str, Any]:
    return steps_line(made_steps("ddp", steps=10), 1, 0, 10) | changes


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "no process reported"),
        (json.dumps(_steps()) + "\n", "it does not begin with a process's begin line"),
        (json.dumps(begin_line(1, version=2)) + "\n", "wrote version 2, and this program reads 1"),
        (json.dumps(begin_line(0)) + "\n", "says that it is rank 0 of 2"),
        (json.dumps(begin_line(1, world_size=10**12)) + "\n", "says that it is rank 1 of 1000000000000"),
        ("epoch 1, loss 3.4\n", "line 1 is not a line of a watched rank"),
        ("\x00\xff\n", "line 1 is not a line of a watched rank"),
        ("[" * 100_000 + "\n", "line 1 is not a line of a watched rank"),
        (json.dumps(begin_line(1)) + "\n" + json.dumps(_steps())[:90], "line 2 is cut off"),
    ],
)
def test_a_file_that_is_none_is_left_out_in_words(folder: Path, content: str, words: str) -> None:
    (folder / "watch_rank1.jsonl").write_text(content, encoding="latin-1")
    run = read_run(folder)
    assert any(words in note for note in run.notes), run.notes
    assert run.details.missing_ranks == (1,)
    assert run.is_measured


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"step_ns": [-5] * 10}, "a value of step is negative or too large"),
        ({"data_ns": [2**62] * 10}, "a value of data is negative or too large"),
        ({"own_ns": [1]}, "1 values of own for 10 steps"),
        ({"end_ns": [START_NS - number for number in range(10)]}, "the clock went backwards"),
        ({"step_ns": [0] * 10}, "a step took no time"),
        ({"first": -1}, "its first number is -1"),
        ({"end_ns": []}, "the batch is empty"),
    ],
)
def test_steps_that_cannot_be_are_left_out_in_words(folder: Path, changes: dict[str, Any], words: str) -> None:
    good = steps_line(made_steps("ddp"), 1, 20, 40)
    write_lines(folder / "watch_rank1.jsonl", [begin_line(1), _steps(**changes), good])
    run = read_run(folder)
    assert any(words in note for note in run.notes), run.notes
    assert run.details.steps == 20  # Those that follow are good.


def test_a_line_without_end_is_left_out_and_the_next_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_files, "LONGEST_LINE", 4000)
    path = folder / "watch_rank1.jsonl"
    note = json.dumps({"kind": "note", "text": "hi"})
    path.write_text("\n".join([json.dumps(begin_line(1)), "x" * 9000, note, ""]))
    file = rank_files.scan(1, path)
    assert any("longer than" in problem for problem in file.problems)
    assert file.attempts[0].notes == ["hi"]


def test_a_link_and_a_folder_are_no_files_of_ranks(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text((folder / "watch_rank1.jsonl").read_text())
    (folder / "watch_rank1.jsonl").unlink()
    (folder / "watch_rank1.jsonl").symlink_to(tmp_path / "elsewhere")
    (folder / "watch_rank2.jsonl").mkdir()
    assert read_job(folder).ranks == (0,)


def test_many_bad_lines_make_few_notes(folder: Path) -> None:
    (folder / "watch_rank1.jsonl").write_text("text\n" * 10_000)
    run = read_run(folder)
    assert len(run.notes) < 20
    assert any("more lines like these" in note for note in run.notes)


def test_one_step_and_none_have_no_figure(tmp_path: Path) -> None:
    one = read_run(write_run(tmp_path / "one", made_steps("ddp", steps=1)))
    none = write_run(tmp_path / "none", made_steps("ddp"))
    for rank in range(2):
        write_lines(none / f"watch_rank{rank}.jsonl", [begin_line(rank)])
    assert not one.is_measured
    assert any("all steps are warm-up" in note for note in one.notes)
    assert "the first step is warm-up, and in no figure" in one.notes
    assert any("no steps seen" in note for note in read_run(none).notes)


def test_a_run_that_nobody_joined_says_so(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", made_steps("ddp"))
    for path in folder.glob("watch_rank*"):
        path.unlink()
    assert any("no process reported" in note for note in read_run(folder).notes)
    with pytest.raises(Misuse, match="no process of watched run llama-sft has reported yet"):
        run_dir.case_file(folder)


@pytest.mark.parametrize("content", ["", "{}", "[1]", "\x00", '{"version": 1, "name": 7}'])
def test_a_watch_file_that_is_none_is_refused(folder: Path, content: str) -> None:
    (folder / "watch.json").write_text(content)
    with pytest.raises(Misuse, match=r"watch\.json cannot be read"):
        read_watch_file(folder)


def test_a_newer_watch_file_is_refused(folder: Path) -> None:
    path = folder / "watch.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(Misuse, match="version 2 is newer than 1"):
        run_dir.load(folder)


def test_memory_does_not_grow_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the steps may be held, so that ten times as many take no ten times as much."""
    monkeypatch.setattr("bench.results.watched.job.MOST_CELLS", 2_000)
    peaks = []
    for number in (2_000, 20_000):
        folder = tmp_path / str(number)
        folder.mkdir()
        lines = [begin_line(0, 1)]
        for first in range(0, number, 500):
            steps_ns = [10_000_000] * 500
            ends = [START_NS + 10_000_000 * (first + place) for place in range(500)]
            lines.append({"kind": "steps", "rule": "mark", "first": first, "end_ns": ends, "step_ns": steps_ns})
        write_lines(folder / "watch_rank0.jsonl", lines)
        tracemalloc.start()
        job = read_job(folder)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(job.step_s) <= 2_000
    assert peaks[1] < 2 * peaks[0]


def test_what_stays_of_large_files_is_small_and_twice_is_like_once(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", made_steps("ddp", steps=3_000))
    before = {path.name: path.stat().st_size for path in folder.glob("watch_rank*")}
    assert all(size > 200_000 for size in before.values())
    summary = run_dir.load(folder)
    assert len(compact(folder)) == 2
    after = {path.name: path.read_bytes() for path in folder.glob("watch_rank*")}
    assert all(len(content) < 20_000 for content in after.values())
    assert compact(folder) == ()
    assert {path.name: path.read_bytes() for path in folder.glob("watch_rank*")} == after
    kinds = [json.loads(line)["kind"] for line in after["watch_rank0.jsonl"].splitlines()]
    assert (kinds[0], set(kinds[1:-1]), kinds[-1]) == ("begin", {"quantiles"}, "end")
    assert sum(json.loads(line)["steps"] for line in after["watch_rank0.jsonl"].splitlines()[1:-1]) == 3_000
    assert run_dir.case_file(folder).case.key() == summary.case.key()
    assert any("kept as quantiles only" in note for note in read_run(folder).notes)


def test_small_files_stay_as_they_are(folder: Path) -> None:
    before = (folder / "watch_rank0.jsonl").read_bytes()
    assert compact(folder) == ()
    assert (folder / "watch_rank0.jsonl").read_bytes() == before
