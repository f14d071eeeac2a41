"""The watch of a process: which events end a step, what each phase gets, and what is written."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from collectors.watch import observatory_watch
from collectors.watch.observatory_watch import (
    ALL_UP_TO,
    BYTES_PER_S,
    FREE_BYTES,
    RUN,
    Watch,
    is_kept,
    step,
    stride,
)

MS = 1_000_000
S = 1_000_000_000


class FakeClock:
    """A monotonic clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now_ns = S

    def __call__(self) -> int:
        return self.now_ns

    def pass_ms(self, elapsed_ms: float) -> None:
        self.now_ns += int(elapsed_ms * MS)


class Job:
    """A watch with a fake clock, and its file."""

    def __init__(self, folder: Path, torch: Any = None) -> None:
        self.clock = FakeClock()
        loaded = {"torch": torch or FAKE_TORCH}
        self.watch = Watch({"folder": str(folder)}, self.clock, loaded.get)
        self.file = folder / "watch_rank0.jsonl"

    def data(self, elapsed_ms: float) -> None:
        self.watch.enter_data()
        self.clock.pass_ms(elapsed_ms)
        self.watch.leave_data()

    def backward(self, elapsed_ms: float) -> None:
        self.watch.enter_backward()
        self.clock.pass_ms(elapsed_ms)
        self.watch.leave_backward()

    def optimizer(self, elapsed_ms: float, which: int = 7) -> None:
        self.watch.enter_optimizer(which)
        self.clock.pass_ms(elapsed_ms)
        self.watch.leave_optimizer(which)

    def lines(self, kind: str = "steps") -> list[dict[str, Any]]:
        self.watch.end()
        lines = [json.loads(line) for line in self.file.read_text().splitlines()]
        return [line for line in lines if line["kind"] == kind]

    def steps(self) -> dict[str, list[Any]]:
        """All steps, by column; each line's rule once a step."""
        columns: dict[str, list[Any]] = {"rule": []}
        for line in self.lines():
            columns["rule"] += [line["rule"]] * len(line["step_ns"])
            for name, column in line.items():
                if isinstance(column, list):
                    columns.setdefault(name, []).extend(column)
        return columns


FAKE_TORCH = SimpleNamespace(__version__="2.13.0+cpu", cuda=SimpleNamespace(is_initialized=lambda: False))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def _plain_step(job: Job) -> None:
    job.data(2)
    job.clock.pass_ms(10)
    job.backward(20)
    job.optimizer(5)


def test_a_step_goes_from_one_optimizer_step_to_the_next_and_its_phases_are_told_apart(job: Job) -> None:
    for _ in range(3):
        _plain_step(job)
        job.clock.pass_ms(1)  # Logging, before the next batch.
    steps = job.steps()
    assert steps["step_ns"] == [None, 38 * MS, 38 * MS]
    assert (steps["data_ns"][1], steps["forward_ns"][1]) == (2 * MS, 10 * MS)
    assert (steps["backward_ns"][1], steps["optimizer_ns"][1]) == (20 * MS, 5 * MS)
    assert set(steps["rule"]) == {"optimizer"}


def test_accumulated_microbatches_are_one_step(job: Job) -> None:
    for _ in range(2):
        for _ in range(4):
            job.data(1)
            job.clock.pass_ms(10)
            job.backward(20)
        job.optimizer(4)
    steps = job.steps()
    assert steps["step_ns"] == [None, 128 * MS]
    assert (steps["data_ns"][1], steps["forward_ns"][1], steps["backward_ns"][1]) == (4 * MS, 40 * MS, 80 * MS)


def test_an_optimizer_within_another_ends_no_step_of_its_own(job: Job) -> None:
    for _ in range(3):
        job.watch.enter_optimizer(1)
        job.optimizer(5, which=2)
        job.clock.pass_ms(1)
        job.watch.leave_optimizer(1)
    assert job.steps()["optimizer_ns"] == [6 * MS] * 3


def test_a_closure_s_forward_and_backward_are_not_the_optimizer_s(job: Job) -> None:
    for _ in range(2):
        job.data(2)
        job.watch.enter_optimizer(1)
        job.clock.pass_ms(10)
        job.backward(20)
        job.clock.pass_ms(3)
        job.watch.leave_optimizer(1)
    steps = job.steps()
    assert (steps["forward_ns"][1], steps["backward_ns"][1], steps["optimizer_ns"][1]) == (10 * MS, 20 * MS, 3 * MS)


def test_of_two_optimizers_the_first_ends_the_step(job: Job) -> None:
    for _ in range(4):
        job.backward(20)
        job.optimizer(5, which=1)
        job.backward(30)
        job.optimizer(6, which=2)
    steps = job.steps()
    assert steps["step_ns"] == [None, 61 * MS, 61 * MS, 61 * MS]
    assert steps["optimizer_ns"][1:] == [11 * MS] * 3
    assert steps["backward_ns"][1:] == [50 * MS] * 3


def test_another_optimizer_takes_over_where_the_first_is_gone(job: Job) -> None:
    for which in [1] * 3 + [2] * 12:
        job.clock.pass_ms(10)
        job.optimizer(5, which)
    assert job.steps()["step_ns"] == [None, 15 * MS, 15 * MS, None, 15 * MS, 15 * MS]


def test_a_step_that_the_gradscaler_skips_is_a_step(job: Job) -> None:
    for is_skipped in (False, True, False):
        job.backward(20)
        job.watch.enter_optimizer(-7)
        if not is_skipped:
            job.optimizer(5, which=7)
        job.watch.leave_optimizer(-7)
    steps = job.steps()
    assert steps["step_ns"] == [None, 20 * MS, 25 * MS]
    assert steps["skipped"] == [False, True, False]


def test_each_step_has_its_calls_of_backward(job: Job) -> None:
    for calls in (1, 4, 0):
        for _ in range(calls):
            job.backward(5)
        job.optimizer(1)
    steps = job.steps()
    assert steps["backward_calls"] == [1, 4, 0]
    assert steps["backward_ns"] == [5 * MS, 20 * MS, None]


def test_an_optimizer_whose_step_raised_ends_the_next_one(job: Job) -> None:
    job.watch.enter_optimizer(1)  # Raises: no end follows.
    for _ in range(2):
        job.clock.pass_ms(10)
        job.optimizer(5, which=1)
    assert job.steps()["step_ns"] == [None, 15 * MS]


def test_marks_count_alone_as_soon_as_there_are_some(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.optimizer(5)
    monkeypatch.setattr(observatory_watch, "current", job.watch)
    for _ in range(3):
        with step(tokens=512):
            job.clock.pass_ms(10)
            job.optimizer(5)
            job.optimizer(5)
    steps = job.steps()
    assert steps["rule"] == ["optimizer", "mark", "mark", "mark"]
    assert steps["step_ns"] == [None, None, 20 * MS, 20 * MS]
    assert steps["tokens"] == [512, 512, 512]


def test_a_mark_whose_body_raises_is_no_step(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observatory_watch, "current", job.watch)
    with pytest.raises(ValueError, match="bad batch"), step():
        raise ValueError("bad batch")
    with step():
        job.clock.pass_ms(3)
    assert len(job.steps()["step_ns"]) == 1


def test_a_mark_does_nothing_where_nobody_watches() -> None:
    assert observatory_watch.current is None
    with step(tokens=3):
        pass


def test_deepspeed_s_engine_counts_before_its_optimizers(job: Job) -> None:
    for _ in range(3):
        job.watch.enter_engine_step()
        for which in (1, 2, 3):  # ZeRO-3 steps once for each sub-group.
            job.optimizer(2, which)
        job.watch.leave_engine_step()
    steps = job.steps()
    assert steps["rule"] == ["deepspeed"] * 3
    assert steps["step_ns"] == [None, 6 * MS, 6 * MS]
    assert steps["optimizer_ns"] == [6 * MS] * 3


def test_backward_within_backward_counts_once(job: Job) -> None:
    job.watch.enter_backward()
    job.backward(10)
    job.clock.pass_ms(5)
    job.watch.leave_backward()
    job.optimizer(1)
    assert job.steps()["backward_ns"] == [15 * MS]


def test_lines_are_written_about_once_a_second_and_at_the_end(job: Job) -> None:
    for _ in range(100):
        _plain_step(job)
    lines = job.lines()
    assert [line["first"] for line in lines] == [0, 29, 57, 85]  # 37 ms a step; the first begins the file.
    assert job.lines("end")[0]["steps"] == 100


def test_each_line_is_one_write(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    write = os.write

    def noting(fd: int, data: bytes) -> int:
        written.append(data)
        return write(fd, data)

    monkeypatch.setattr(os, "write", noting)
    for _ in range(100):
        _plain_step(job)
    job.watch.end()
    assert b"".join(written) == job.file.read_bytes()
    assert all(data.count(b"\n") == 1 and data.endswith(b"\n") for data in written)


def test_a_day_of_quick_steps_leaves_two_megabytes(job: Job) -> None:
    day_s = 86400
    for _ in range(day_s // 20):
        for _ in range(20):
            _plain_step(job)
        job.clock.pass_ms(20_000 - 20 * 37)
    assert job.file.stat().st_size <= FREE_BYTES + BYTES_PER_S * day_s <= 2_000_000
    lines = job.lines()
    counted = sum(len(line["step_ns"]) + line.get("left_out", 0) for line in lines)
    assert lines[-1]["first"] + len(lines[-1]["step_ns"]) == counted
    assert job.lines("end")[0]["steps"] == day_s


def test_ranks_keep_the_same_steps_spread_over_all_of_a_job(tmp_path: Path) -> None:
    """A rank that writes at other moments, and more a step, keeps the same numbers."""
    kept = []
    for rank, step_ms in enumerate((40, 43)):
        (tmp_path / str(rank)).mkdir()
        job = Job(tmp_path / str(rank))
        for number in range(100_000):
            job.clock.pass_ms(step_ms)
            if number % 3 == rank:
                job.backward(1)
            job.optimizer(1)
        kept.append([line["first"] + place for line in job.lines() for place in range(len(line["step_ns"]))])
    assert kept[0] == kept[1]
    assert kept[0] == [number for number in range(100_000) if is_kept(number)]
    even = [number for number in kept[0] if number // RUN % stride(99_999) == 0]
    assert len(even) >= ALL_UP_TO // 2
    assert {later - earlier for earlier, later in pairwise(even)} == {1, RUN * stride(99_999) - RUN + 1}


def test_tokens_are_numbers_of_a_possible_size(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observatory_watch, "current", job.watch)
    monkeypatch.setattr(job.watch, "module_of", {"torch": FAKE_TORCH}.get)
    for tokens in (1, 1.5, np.int64(7), np.float32(0.5), float("nan"), float("inf"), -1, "many"):
        with step(tokens=tokens):  # type: ignore[arg-type]
            job.clock.pass_ms(5)
    assert job.steps()["tokens"] == [1, 1.5, 7, 0.5, None, None, None, None]


def test_declared_tokens_that_are_no_count_are_noted_once(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observatory_watch, "current", job.watch)
    monkeypatch.setattr(job.watch, "module_of", {"torch": FAKE_TORCH}.get)
    for _ in range(3):
        with step(tokens=torch.tensor(5)):  # type: ignore[arg-type]
            job.clock.pass_ms(5)
    assert "tokens" not in job.steps()
    assert [line["text"] for line in job.lines("note")] == [
        "tokens of type Tensor are ignored: `step(tokens=...)` takes a number from 0 on, and no tensor"
    ]


def test_while_a_graph_is_captured_nothing_is_asked_of_the_device(tmp_path: Path) -> None:
    asked: list[str] = []
    is_capturing = [False]

    def query() -> bool:
        asked.append("query")
        return True

    event = SimpleNamespace(record=lambda: None, query=query, elapsed_time=lambda _: 1.0)
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        is_current_stream_capturing=lambda: is_capturing[0],
        Event=lambda enable_timing: event,
        current_device=lambda: 0,
        get_device_properties=lambda _: SimpleNamespace(name="made", uuid=None),
        memory_stats=lambda: {
            "allocated_bytes.all.peak": 1,
            "reserved_bytes.all.current": 2,
            "reserved_bytes.all.peak": 3,
        },
    )
    job = Job(tmp_path, SimpleNamespace(__version__="2.13.0", cuda=cuda))
    for _ in range(3):
        _plain_step(job)
    asked.clear()
    is_capturing[0] = True
    job.clock.pass_ms(2_000)
    _plain_step(job)
    assert asked == []
    is_capturing[0] = False
    _plain_step(job)
    assert asked
    assert job.lines("end")[0]["steps"] == 4


def test_an_error_of_the_script_s_own_is_raised_and_one_of_ours_is_not(job: Job, tmp_path: Path) -> None:
    scope: dict[str, Any] = {}
    code = compile("def preempted():\n    raise TimeoutError('preempted')", str(tmp_path / "train.py"), "exec")
    exec(code, scope)  # As a signal handler of the script's, called while our code runs.
    with pytest.raises(TimeoutError, match="preempted"):
        job.watch.guarded(scope["preempted"])
    other = Watch({"folder": str(tmp_path)})
    other.guarded(other.leave_data, "too many arguments")
    assert other.is_over


def test_numbers_of_steps_jump_where_steps_are_left_out(job: Job) -> None:
    for _ in range(40_000):
        job.clock.pass_ms(5)
        job.optimizer(1)
    lines = job.lines()
    at = 0
    for line in lines:
        assert line["first"] == at + line.get("left_out", 0)
        at = line["first"] + len(line["step_ns"])
    assert any(line.get("left_out") for line in lines)


def test_a_watch_that_takes_too_long_writes_less_and_then_times_no_phases(tmp_path: Path) -> None:
    job = Job(tmp_path)
    read = job.watch.clock_ns

    def slow_ns() -> int:  # Each look at the clock takes 1 ms, so that our own code takes 10 % of a step.
        job.clock.pass_ms(1)
        return read()

    job.watch.clock_ns = slow_ns
    for _ in range(1000):
        _plain_step(job)
    notes = [line["text"] for line in job.lines("note")]
    assert ["every 10 s" in note for note in notes] == [True, False]
    assert "phases are no longer timed" in notes[1]
    assert not job.watch.times_phase_here()
    assert job.lines()[-1]["backward_ns"] is None


def test_a_watch_that_is_quick_enough_does_not_thin_out(job: Job) -> None:
    for _ in range(1000):
        _plain_step(job)
    assert job.lines("note") == []


def test_a_failure_of_ours_ends_the_watch_with_one_line(job: Job) -> None:
    _plain_step(job)
    job.watch.guarded({}.__getitem__, "something of ours")
    assert job.watch.is_over
    assert ["something of ours" in line["text"] for line in job.lines("note")] == [True]
    assert job.lines("end")[0]["steps"] == 1


def test_a_failure_before_the_first_step_leaves_a_line_in_the_run_s_folder(job: Job, tmp_path: Path) -> None:
    job.watch.guarded({}.__getitem__, "something of ours")
    assert "something of ours" in (tmp_path / "watch_failures.txt").read_text()
    assert not job.file.exists()


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    job = Job(tmp_path / "gone")
    job.watch.guarded(job.watch.enter_optimizer, 1)
    job.watch.guarded(job.watch.leave_optimizer, 1)
    assert job.watch.is_over


def test_an_interrupt_is_the_script_s_and_passes_through(job: Job) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.watch.guarded(interrupt)
    assert not job.watch.is_over


def test_a_process_that_trains_without_steps_says_so_at_its_end(job: Job) -> None:
    job.backward(10)
    assert "no steps seen" in job.lines("note")[0]["text"]
    assert job.lines("end")[0]["steps"] == 0


def test_an_older_torch_is_named_and_not_watched(job: Job) -> None:
    job.watch.too_old = "torch 2.4.0 is older than 2.11: not watched"
    job.optimizer(1)
    assert job.watch.is_over
    assert job.lines("note")[0]["text"] == "torch 2.4.0 is older than 2.11: not watched"
    assert job.lines() == []


def test_a_file_system_without_locks_costs_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lock(fd: int, flags: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", lock)
    job = Job(tmp_path)
    for _ in range(3):
        job.optimizer(1)
    assert len(job.steps()["step_ns"]) == 3
    assert job.lines("note") == []
    assert not (tmp_path / "watch_failures.txt").exists()


def test_a_second_process_of_the_same_rank_is_not_mixed_in(job: Job, tmp_path: Path) -> None:
    _plain_step(job)
    job.watch.guarded(job.watch._flush)
    before = job.file.stat().st_size  # To open the file here would give up its lock.
    other = f"""
import sys, types
from collectors.watch.observatory_watch import Watch
torch = types.SimpleNamespace(__version__="2.13.0", cuda=types.SimpleNamespace(is_initialized=lambda: False))
watch = Watch({{"folder": {str(tmp_path)!r}}}, module_of={{"torch": torch}}.get)
watch.enter_optimizer(1); watch.leave_optimizer(1)
print(watch.is_over)
"""
    done = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
    assert job.file.stat().st_size == before
