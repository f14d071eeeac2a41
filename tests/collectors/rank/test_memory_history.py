"""The history of memory blocks is on for one step, and off whatever becomes of it."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path

import pytest
import torch

from collectors.rank.memory_snapshot import CannotSave, CudaRecorder, save_history


class FakeRecorder:
    """Notes what is asked of it. problem: what saving fails with."""

    def __init__(self, problem: OSError | None = None) -> None:
        self.asked: list[str] = []
        self._problem = problem

    def start(self) -> None:
        self.asked.append("start")

    def save(self, path: Path) -> None:
        self.asked.append(f"save {path.name}")
        if self._problem is not None:
            raise self._problem

    def stop(self) -> None:
        self.asked.append("stop")


def test_the_history_is_that_of_the_step_and_no_longer(tmp_path: Path) -> None:
    recorder = FakeRecorder()
    save_history(lambda: recorder.asked.append("step"), tmp_path / "rank0.memory.pickle", recorder)
    assert recorder.asked == ["start", "step", "save rank0.memory.pickle", "stop"]


def test_a_step_that_fails_is_saved_by_nobody_and_its_error_is_told(tmp_path: Path) -> None:
    recorder = FakeRecorder()

    def step() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        save_history(step, tmp_path / "x", recorder)
    assert recorder.asked == ["start", "stop"]


def test_a_full_disk_is_said_in_a_line_and_the_history_is_off(tmp_path: Path) -> None:
    recorder = FakeRecorder(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    with pytest.raises(CannotSave, match="x cannot be written: No space left on device"):
        save_history(lambda: None, tmp_path / "x", recorder)
    assert recorder.asked[-1] == "stop"


def test_an_error_of_the_step_itself_is_not_taken_for_one_of_the_file(tmp_path: Path) -> None:
    def step() -> None:
        raise OSError(errno.EPIPE, "the loader is gone")

    with pytest.raises(OSError, match="the loader is gone"):
        save_history(step, tmp_path / "x", FakeRecorder())


@pytest.mark.gpu
def test_the_history_on_cuda_holds_the_blocks_of_the_step_with_their_lines(tmp_path: Path) -> None:
    def step() -> None:
        torch.empty(2**24, dtype=torch.uint8, device="cuda")

    save_history(step, tmp_path / "history", CudaRecorder())
    with (tmp_path / "history").open("rb") as file:
        saved = pickle.load(file)
    (given,) = [event for event in saved["device_traces"][0] if event["action"] == "alloc" and event["size"] == 2**24]
    assert any(frame["filename"] == __file__ and frame["name"] == "step" for frame in given["frames"])
