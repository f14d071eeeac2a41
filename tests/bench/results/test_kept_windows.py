"""Every trial's windows are kept, and the newest lies beside the ranks' logs."""

from __future__ import annotations

from pathlib import Path

from bench.results.timelines import newest_windows, save_timeline, window_path
from collectors.traces.timeline import Timeline, load
from tests.support.timelines import Span, timeline_of


def _window(name: str, rank: int = 3) -> Timeline:
    span = Span(name=name, kind="compute", start_ns=1, end_ns=2, stream=0)
    return timeline_of([span], rank=rank, is_device=False)


def _names(path: Path) -> tuple[str, ...]:
    return load(path).names


def test_each_trials_window_stays_and_the_newest_is_beside_the_logs(tmp_path: Path) -> None:
    save_timeline(_window("first"), tmp_path, 0)
    save_timeline(_window("second"), tmp_path, 1)
    assert _names(window_path(tmp_path, 0, 3)) == ("first",)
    assert _names(window_path(tmp_path, 1, 3)) == ("second",)
    assert _names(tmp_path / "rank3.timeline.npz") == ("second",)


def test_of_several_windows_of_a_trial_the_last_stays(tmp_path: Path) -> None:
    save_timeline(_window("first"), tmp_path, 0)
    save_timeline(_window("second"), tmp_path, 0)
    assert _names(window_path(tmp_path, 0, 3)) == _names(tmp_path / "rank3.timeline.npz") == ("second",)


def test_the_newest_windows_are_of_one_trial_though_a_rank_of_it_kept_none(tmp_path: Path) -> None:
    for trial, rank in ((9, 0), (9, 3), (10, 0)):
        save_timeline(_window("any", rank), tmp_path, trial)
    (tmp_path / "trial11").mkdir()
    assert newest_windows(tmp_path) == [window_path(tmp_path, 10, 0)]


def test_runs_of_before_trials_had_folders_have_their_windows_beside_the_logs(tmp_path: Path) -> None:
    old = tmp_path / "rank0.timeline.npz"
    old.touch()
    assert newest_windows(tmp_path) == [old]
