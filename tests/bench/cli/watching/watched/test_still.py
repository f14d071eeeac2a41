"""Ranks whose steps stop: when that is noticed, what they write of where they stand, and that the job goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench.analysis.flight_records.report import verdict
from bench.report.run.watched import still_lines
from bench.results.watched.run import read_run
from bench.results.watched.still import StillRank, behind, still_words
from bench.session.watched.progress import JobProgress
from bench.session.watched.session import environment, write_hook
from bench.store import run_dir
from collectors.flight_records.divergence import blame, compare
from collectors.flight_records.dumps import read_dump
from collectors.watch.observatory_watch_still import (
    LONGEST_FACTOR,
    LOOK_S,
    MOST_LONGEST_S,
    P99_FACTOR,
    STALL_S,
    Past,
    Witness,
    redacted,
    stacks,
)
from tests.bench.cli.watching.watched.test_steps import Job
from tests.bench.results.watched.made_ranks import begin_line, write_lines

HANG = Path(__file__).with_name("programs") / "hang.py"
S = 10**9
STEP, RANKS = 20, 2


# Real ranks.


def _hang(phase: str, folder: Path, *, is_redacted: bool = False) -> dict[str, Any]:
    """Let two ranks run until both have written where they stand, then go on; return code, output and their files."""
    go_on = folder / "go on"
    hook = write_hook(folder, beat_s=0.02, look_s=0.5, stall_s=0.5, redact=is_redacted)
    shared = environment(os.environ, hook) | {"WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HANG), phase, str(STEP), str(go_on)]
    ranks = [
        subprocess.Popen(command, env=shared | {"RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for rank in range(RANKS)
    ]
    progress, line = JobProgress(folder), None
    try:
        wanted = [folder / f"watch_rank{rank}.flight.pickle" for rank in range(RANKS)]
        while not all(path.exists() for path in wanted) and all(rank.poll() is None for rank in ranks):
            time.sleep(0.02)
        progress.read()
        line = progress.line()
    finally:
        go_on.write_text("")
        said = [rank.communicate() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [3, 3], said
    return {
        "line": line,
        "out": [out for out, _ in said],
        "lines": [
            [json.loads(text) for text in (folder / f"watch_rank{rank}.jsonl").read_text().splitlines()]
            for rank in range(RANKS)
        ],
    }


@pytest.mark.parametrize(
    ("phase", "words"), [("data", "in data"), pytest.param("forward", "before backward", marks=pytest.mark.slow)]
)
def test_a_rank_that_hangs_is_named_with_its_line_and_the_job_goes_on(phase: str, words: str, tmp_path: Path) -> None:
    hung = _hang(phase, tmp_path)
    assert [out.startswith(b"loss ") for out in hung["out"]] == [True, False]
    assert hung["line"].startswith(f"step {STEP}   no step for ")
    assert f": rank 1 {words} at hang.py:" in hung["line"]
    assert hung["line"].endswith(" in wait; 1 other rank ahead")
    text = (tmp_path / "watch_rank1.stacks.txt").read_text()
    assert f'File "{HANG}", line' in text
    assert "(trains), most recent call first:" in text
    records = [read_dump((tmp_path / f"watch_rank{rank}.flight.pickle").read_bytes(), rank) for rank in range(RANKS)]
    blamed = blame(compare(records), records)
    assert verdict(blamed).startswith("rank 1 has not entered call ")
    assert blamed.first is not None
    assert str(blamed.first.entered[0].where).startswith(f"{HANG}:")  # Not a wrapper of ours.
    for lines in hung["lines"]:
        still = [line for line in lines if line["kind"] == "still"]
        assert {line["steps"] for line in still} == {STEP}
        assert lines[-1] == {"kind": "end", "unix_s": lines[-1]["unix_s"], "steps": 30}


@pytest.mark.slow
def test_a_rank_that_hangs_inside_backward_looks_as_those_that_wait_but_its_line_and_its_record_do_not(
    tmp_path: Path,
) -> None:
    hung = _hang("backward", tmp_path)
    assert "rank 0 in backward at hang.py:" in hung["line"]
    assert "rank 1 in backward at hang.py:" in hung["line"]
    assert hung["line"].endswith(" in wait")
    records = [read_dump((tmp_path / f"watch_rank{rank}.flight.pickle").read_bytes(), rank) for rank in range(RANKS)]
    assert blame(compare(records), records).ranks == (1,)


@pytest.mark.slow
def test_redacted_stacks_and_records_have_no_folders(tmp_path: Path) -> None:
    hung = _hang("data", tmp_path, is_redacted=True)
    assert hung["lines"][1][0]["script"] == "hang.py"
    for path in (*tmp_path.glob("*.txt"), *tmp_path.glob("*.pickle"), *tmp_path.glob("*.jsonl")):
        assert str(HANG.parent).encode() not in path.read_bytes(), path
        assert str(Path(os.__file__).parent).encode() not in path.read_bytes(), path
    assert 'File "hang.py", line' in (tmp_path / "watch_rank1.stacks.txt").read_text()


COUNT_AT_FORKS = """
import os

def count():
    with open(os.environ["COUNTS"], "a") as file:
        file.write(f"{len(os.listdir('/proc/self/task'))} ")

os.register_at_fork(before=count)  # It was there before ours, so Python calls it after ours.
"""


def test_no_thread_of_ours_is_there_while_a_process_forks_and_it_looks_again_afterwards(tmp_path: Path) -> None:
    counts, former = tmp_path / "counts", tmp_path / "former"
    former.mkdir()
    (former / "sitecustomize.py").write_text(COUNT_AT_FORKS)
    unwatched = os.environ | {"PYTHONPATH": str(former), "COUNTS": str(counts), "OMP_NUM_THREADS": "1"}
    threads_after = []
    for variables in (unwatched, environment(unwatched, write_hook(tmp_path))):
        command = [sys.executable, str(HANG.with_name("forks.py"))]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
        threads_after.append(int(done.stdout))
        assert done.stderr == ""
    assert (tmp_path / "watch_rank0.jsonl").exists()
    at_forks = counts.read_text().split()
    assert len(at_forks) == 2 * 4
    assert at_forks[:4] == at_forks[4:]
    assert threads_after[1] == threads_after[0] + 1


def test_no_thread_of_ours_is_left_when_the_interpreter_ends(stopped: Stopped) -> None:
    while stopped.witness._thread is None:  # It has not begun.
        time.sleep(0.001)
    task = Path(f"/proc/self/task/{stopped.witness._thread}")
    assert task.exists()
    stopped.watch.end()
    assert not stopped.witness._is_alive
    assert not task.exists()


def test_a_rank_whose_thread_could_not_start_ends_as_usual(stopped: Stopped) -> None:
    stopped.witness.stop()
    stopped.watch._witness = None
    stopped.watch.end()
    assert json.loads(stopped.file.read_text().splitlines()[-1])["kind"] == "end"
    assert not (stopped.file.parent / "watch_failures.txt").exists()


def test_threads_that_fork_at_once_leave_one_thread_of_ours(stopped: Stopped) -> None:
    stopped.witness.before_fork()
    stopped.witness.before_fork()
    stopped.witness.after_fork()
    stopped.witness.go_on()
    assert not stopped.witness._is_alive
    stopped.witness.after_fork()
    stopped.witness.go_on()
    assert stopped.witness._is_alive
    stopped.witness.before_fork()
    assert not stopped.witness._is_alive


# When a job counts as stalled, by a clock of ours.


def test_the_limit_is_the_largest_of_the_floor_the_p99_and_the_longest_pause() -> None:
    past = Past()
    past.take([None, *[S // 10] * 400])
    assert past.limit_ns() == STALL_S * S
    past.take([60 * S])  # One step of a hundred: not in the p99, a checkpoint perhaps.
    assert past.p99_ns == S // 10
    assert past.limit_ns() == STALL_S * S
    past.take([400 * S])
    assert past.limit_ns() == LONGEST_FACTOR * 400 * S
    past.take([10_000 * S])
    assert past.limit_ns() == MOST_LONGEST_S * S
    past.take([200 * S] * 200)
    assert past.limit_ns() == P99_FACTOR * past.p99_ns >= P99_FACTOR * 200 * S


class Stopped(Job):
    """A rank whose steps took 1 s, and whose witness looks when it is told to."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.watch.settings["beat_s"] = 1e6  # The thread that the watch starts sleeps; the test looks itself.
        for _ in range(20):
            self.data(100)
            self.clock.pass_ms(300)
            self.backward(400)
            self.optimizer(200)
        assert self.watch._witness is not None
        self.witness: Witness = self.watch._witness

    def look_each_s(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.pass_ms(1000)
            self.witness.look()

    def stills(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines() if '"still"' in line]


@pytest.fixture
def stopped(tmp_path: Path) -> Stopped:
    return Stopped(tmp_path)


def test_it_says_where_it_stands_after_a_minute_at_its_limit_and_then_ever_more_rarely(stopped: Stopped) -> None:
    stopped.look_each_s(int(LOOK_S) - 1)
    assert stopped.stills() == []
    stopped.look_each_s(1300)
    assert [line["still_ns"] // S for line in stopped.stills()] == [60, 300, 600, 1200]
    assert {line["limit_ns"] for line in stopped.stills()} == {int(STALL_S * S)}


def test_an_evaluation_that_loads_batches_is_no_stall_and_says_that_it_goes_on(stopped: Stopped) -> None:
    for _ in range(60):
        stopped.data(500)
        stopped.look_each_s(20)
    assert stopped.stills() == []
    lines = [json.loads(line) for line in stopped.file.read_text().splitlines()]
    assert len([line for line in lines if line["kind"] == "active"]) == 9  # One each two minutes, of twenty.


def test_a_checkpoint_between_steps_is_no_stall_and_twice_its_time_is_allowed_afterwards(stopped: Stopped) -> None:
    stopped.look_each_s(280)  # The first one: below the floor.
    assert [line["still_ns"] < line["limit_ns"] for line in stopped.stills()] == [True]
    for _ in range(20):
        stopped.data(100)
        stopped.backward(800)
        stopped.optimizer(100)
    stopped.look_each_s(540)
    assert len(stopped.stills()) == 1  # Not even its stacks are written again.
    stopped.look_each_s(40)
    assert [line["still_ns"] >= line["limit_ns"] for line in stopped.stills()] == [False, True]


def test_a_phase_in_progress_is_named(stopped: Stopped) -> None:
    stopped.watch.enter_data()
    stopped.look_each_s(60)
    stopped.watch.leave_data()
    stopped.watch.enter_backward()
    stopped.look_each_s(60)
    stopped.watch.leave_backward()
    stopped.look_each_s(60)
    stopped.data(1)  # A batch is no stall, and the next minute counts from it.
    stopped.watch.enter_optimizer(7)
    stopped.look_each_s(60)
    said = [(line["phase"], line["backward_calls"]) for line in stopped.stills()]
    assert said == [("data", 0), ("backward", 1), ("after backward", 1), ("optimizer", 1)]


def test_a_failure_of_the_witness_is_one_note_and_the_watch_goes_on(stopped: Stopped) -> None:
    stopped.watch.settings |= {"folder": "/nowhere", "beat_s": 0}
    stopped.clock.pass_ms(1e6)
    Witness(stopped.watch, 0, stopped.witness._fd).run()  # Not the watch's own, which sleeps.
    notes = [line["text"] for line in stopped.lines("note")]
    assert len(notes) == 1
    assert notes[0].startswith("stall detection stopped: FileNotFoundError")
    assert sum(len(line["step_ns"]) for line in stopped.lines()) == 20


# Who is behind.


def _rank(rank: int, phase: str, calls: int = 0, steps: int = 40) -> StillRank:
    return StillRank(rank=rank, still_s=300, limit_s=300, steps=steps, phase=phase, backward_calls=calls)


@pytest.mark.parametrize(
    ("ranks", "named"),
    [
        ([_rank(0, "backward", 1), _rank(1, "data")], 1),
        ([_rank(0, "backward", 1), _rank(1, "before backward")], 1),
        ([_rank(0, "before backward"), _rank(1, "optimizer", 1, steps=39)], 1),
        ([_rank(0, "backward", 2), _rank(1, "data", 1)], 1),  # A second microbatch.
        ([_rank(0, "after backward", 1), _rank(1, "backward", 1)], 1),
        ([_rank(0, "backward", 1), _rank(1, "backward", 1)], None),
        ([_rank(0, "data"), _rank(1, "data"), _rank(2, "backward", 1)], None),
        ([_rank(1, "data")], None),
    ],
)
def test_the_rank_that_is_behind_is_named(ranks: list[StillRank], named: int | None) -> None:
    found = behind(ranks, world_size=max(2, len(ranks)))
    assert (None if found is None else found.rank) == named


def test_ranks_that_say_nothing_are_counted_and_nobody_is_named() -> None:
    ranks = {rank: _rank(rank, "backward", 1) for rank in range(5)}
    assert still_words(ranks, world_size=8) == (
        "rank 0 in backward, rank 1 in backward, rank 2 in backward, 2 more ranks, no report from 3 ranks"
    )


# What is kept.


def test_a_run_that_was_ended_while_it_stood_still_says_where(tmp_path: Path) -> None:
    still = {
        "kind": "still",
        "unix_s": 1.0,
        "still_ns": 90 * S,
        "limit_ns": 300 * S,
        "steps": 0,
        "where": "a.py:3 in f",
    }
    for rank, phase in ((0, "backward"), (1, "data")):
        write_lines(
            tmp_path / f"watch_rank{rank}.jsonl",
            [begin_line(rank), _steps(0), still | {"phase": phase, "backward_calls": int(phase == "backward")}],
        )
    run_dir.write_json(tmp_path / "watch.json", {"version": 1, "name": "job", "run_id": "r", "start_unix_s": 1.0})
    assert [rank.has_gone_on for rank in read_run(tmp_path).details.still] == [False, False]
    said = list(still_lines("r", read_run(tmp_path).details))
    assert said[:2] == [
        "no step for 90 s after step 0, and none after that",
        "  rank 1 in data at a.py:3 in f; 1 other rank ahead",
    ]
    write_lines(
        tmp_path / "watch_rank0.jsonl",
        [begin_line(0), _steps(0), still, {"kind": "active", "monotonic_ns": 1}, _steps(1)],
    )
    write_lines(tmp_path / "watch_rank1.jsonl", [begin_line(1), still])  # It hung before it had written a step.
    # Rank 0 paused for less than its limit, and steps came.
    assert [rank.rank for rank in read_run(tmp_path).details.still] == [1]
    write_lines(tmp_path / "watch_rank1.jsonl", [begin_line(1), still | {"still_ns": 301 * S}, _steps(0)])
    assert [(rank.rank, rank.has_gone_on) for rank in read_run(tmp_path).details.still] == [(1, True)]


def _steps(first: int) -> dict[str, Any]:
    return {"kind": "steps", "rule": "mark", "first": first, "end_ns": [S * (first + 1)], "step_ns": [S]}


# Paths.


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/home/me/secret/train.py", "train.py"),
        ("/home/me/venv/lib/python3.11/site-packages/torch/nn/x.py", "torch/nn/x.py"),
        ("<frozen runpy>", "<frozen runpy>"),
        ("C:\\work\\train.py", "train.py"),
    ],
)
def test_a_redacted_path_is_a_package_s_or_a_name(path: str, text: str) -> None:
    assert redacted(path) == text


def test_stacks_are_bounded_and_begin_with_the_thread_that_trains() -> None:
    frames = {number: sys._getframe() for number in range(100)}
    text = stacks(frames, 7)
    assert text.startswith("\nthread 0x7 (trains), most recent call first:")
    assert text.count("most recent call first") == 64
