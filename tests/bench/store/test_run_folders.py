"""Runs that go on are found look after look, for the price of those that go on."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from bench.store.active_runs import AGAIN_S, SETTLED_S, FollowedFolders, Stage, stage_of
from bench.store.run_dir import begin, save, summarise
from tests.bench.made.examples import make_machine, small_case


class FakeClock:
    """Stands until the test moves it."""

    def __init__(self) -> None:
        self.now_s = 7.0

    def __call__(self) -> int:
        return round(self.now_s * 1e9)


class FakeStages:
    """Folders whose stages the test tells, running ones unless told. asked: how often each was asked for, by name."""

    def __init__(self, **stages: Stage) -> None:
        self.stages = stages
        self.asked = Counter[str]()

    def __call__(self, folder: Path) -> Stage:
        self.asked[folder.name] += 1
        return self.stages.get(folder.name, "running")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def _make(runs: Path, *names: str) -> None:
    for name in names:
        (runs / name).mkdir()


def _make_unseen(runs: Path, name: str) -> None:
    """A folder by which the time of change of its parent does not change."""
    told = runs.stat()
    _make(runs, name)
    os.utime(runs, ns=(told.st_atime_ns, told.st_mtime_ns))


def _settled(runs: Path, clock: FakeClock, stages: FakeStages) -> FollowedFolders:
    """Folders whose list counts."""
    folders = FollowedFolders(runs, stage=stages, clock_ns=clock)
    folders.running()
    clock.now_s += SETTLED_S
    folders.running()
    stages.asked.clear()
    return folders


def test_a_run_that_has_ended_is_looked_at_no_more(tmp_path: Path, clock: FakeClock) -> None:
    _make(tmp_path, "ended", "later", "running")
    (tmp_path / "a_file").touch()
    stages = FakeStages(ended="ended", later="not begun")
    folders = FollowedFolders(tmp_path, stage=stages, clock_ns=clock)
    for _ in range(3):
        assert folders.running() == {"running": tmp_path / "running"}
        clock.now_s += AGAIN_S
    assert stages.asked == {"ended": 1, "later": 3, "running": 3}
    stages.stages |= {"later": "running", "running": "ended"}
    assert [[*folders.running()] for _ in range(2)] == [["later"]] * 2
    assert stages.asked == {"ended": 1, "later": 5, "running": 4}


def test_a_run_that_is_left_out_is_looked_at_no_more(tmp_path: Path, clock: FakeClock) -> None:
    _make(tmp_path, "a", "b")
    stages = FakeStages()
    folders = _settled(tmp_path, clock, stages)
    folders.leave_out("a")
    clock.now_s += AGAIN_S
    assert [*folders.running()] == ["b"]
    assert stages.asked == {"b": 1}


def test_a_new_run_is_found_by_the_time_of_change(tmp_path: Path, clock: FakeClock) -> None:
    _make(tmp_path, "b")
    folders = _settled(tmp_path, clock, FakeStages())
    _make(tmp_path, "a")
    os.utime(tmp_path, ns=(0, 1))
    assert [*folders.running()] == ["a", "b"]


def test_without_a_change_the_folder_is_not_listed_anew(tmp_path: Path, clock: FakeClock) -> None:
    _make(tmp_path, "a")
    folders = _settled(tmp_path, clock, FakeStages())
    _make_unseen(tmp_path, "b")
    clock.now_s += AGAIN_S - 0.001
    assert [*folders.running()] == ["a"]


def test_a_change_that_no_time_tells_is_found_all_the_same(tmp_path: Path, clock: FakeClock) -> None:
    _make(tmp_path, "a")
    folders = _settled(tmp_path, clock, FakeStages())
    _make_unseen(tmp_path, "b")
    clock.now_s += AGAIN_S
    assert [*folders.running()] == ["a", "b"]


@pytest.mark.parametrize("pause_s", [0.0, 1.0, SETTLED_S - 0.001, SETTLED_S + 1.0])
def test_a_second_change_in_the_same_tick_is_found_at_the_next_look(
    tmp_path: Path, clock: FakeClock, pause_s: float
) -> None:
    _make(tmp_path, "a")
    folders = FollowedFolders(tmp_path, stage=FakeStages(), clock_ns=clock)
    folders.running()
    _make_unseen(tmp_path, "b")
    clock.now_s += pause_s
    assert [*folders.running()] == ["a", "b"]


def test_until_a_folder_has_settled_each_look_lists_it(tmp_path: Path, clock: FakeClock) -> None:
    _make(tmp_path, "a")
    folders = FollowedFolders(tmp_path, stage=FakeStages(), clock_ns=clock)
    for name in ("b", "c", "d"):
        folders.running()
        _make_unseen(tmp_path, name)
        clock.now_s += 1.0
    assert [*folders.running()] == ["a", "b", "c", "d"]


def test_a_run_that_was_deleted_is_gone(tmp_path: Path, clock: FakeClock) -> None:
    _make(tmp_path, "a", "b")
    folders = _settled(tmp_path, clock, FakeStages())
    (tmp_path / "a").rmdir()
    assert [*folders.running()] == ["b"]


def test_a_folder_of_runs_may_come_later_and_go(tmp_path: Path, clock: FakeClock) -> None:
    runs = tmp_path / "runs"
    folders = FollowedFolders(runs, stage=FakeStages(), clock_ns=clock)
    assert folders.running() == {}
    _make(tmp_path, "runs")
    _make(runs, "a")
    assert [*folders.running()] == ["a"]
    (runs / "a").rmdir()
    runs.rmdir()
    assert folders.running() == {}


def test_what_is_no_folder_of_runs_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    with pytest.raises(NotADirectoryError):
        FollowedFolders(tmp_path / "runs").running()


def test_a_run_has_begun_with_its_case_and_ends_with_its_lock_or_its_summary(tmp_path: Path) -> None:
    (tmp_path / "later").mkdir()
    first, second = (begin(small_case(), make_machine(), tmp_path) for _ in range(2))
    assert [stage_of(folder) for folder in (tmp_path / "later", first.folder)] == ["not begun", "running"]
    first.close()
    save(summarise(second.folder, "done", None))
    assert [stage_of(run.folder) for run in (first, second)] == ["ended", "ended"]
    second.close()
