"""Runs that go on at the same time in one folder have different slots, and give them back."""

import os
import threading
from pathlib import Path

from bench.results.watched.run import WatchFile
from bench.store.active_runs import lock_folder, running_folders
from bench.store.run_dir import Run, begin, case_file, save, summarise, write_json
from tests.bench.made.examples import make_machine, small_case


def _begin(folder: Path) -> Run:
    return begin(small_case(), make_machine(), folder)


def test_each_of_several_runs_has_the_lowest_slot_that_is_free(tmp_path: Path) -> None:
    first, second, third = (_begin(tmp_path) for _ in range(3))
    assert [run.slot for run in (first, second, third)] == [0, 1, 2]
    second.close()
    fourth = _begin(tmp_path)
    fifth = _begin(tmp_path)
    assert [run.slot for run in (fourth, fifth)] == [1, 3]
    for run in (first, third, fourth, fifth):
        run.close()
    assert _begin(tmp_path).slot == 0


def test_a_slot_is_written_into_the_runs_folder(tmp_path: Path) -> None:
    runs = [_begin(tmp_path) for _ in range(2)]
    assert [case_file(run.folder).slot for run in runs] == [0, 1]


def test_runs_that_begin_at_once_do_not_share_a_slot(tmp_path: Path) -> None:
    together = threading.Barrier(8)
    runs: list[Run] = []

    def start() -> None:
        together.wait(60)
        runs.append(_begin(tmp_path))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(run.slot for run in runs) == list(range(8))


def test_a_watched_run_has_its_slot_before_a_rank_reports(tmp_path: Path) -> None:
    watched = tmp_path / "20261120-120000-job-abc123"
    watched.mkdir(0o700)
    write_json(watched / "watch.json", WatchFile(version=1, name="job", run_id=watched.name, start_unix_s=1.0))
    lock = lock_folder(watched)
    assert lock is not None
    assert _begin(tmp_path).slot == 1
    os.close(lock)
    assert _begin(tmp_path).slot == 0


def test_a_broken_folder_takes_no_slot(tmp_path: Path) -> None:
    run = _begin(tmp_path)
    (run.folder / "case.json").write_text("{")
    assert _begin(tmp_path).slot == 0


def test_running_are_the_folders_that_somebody_works_on(tmp_path: Path) -> None:
    ended, running = _begin(tmp_path), _begin(tmp_path)
    ended.close()
    (tmp_path / "a file").write_text("")
    (tmp_path / "no run").mkdir()
    assert list(running_folders(tmp_path)) == [running.folder]
    assert list(running_folders(tmp_path / "nowhere")) == []


def test_a_run_with_a_summary_is_over_even_while_somebody_looks_into_its_folder(tmp_path: Path) -> None:
    run = _begin(tmp_path)
    save(summarise(run.folder, "done", None))
    assert list(running_folders(tmp_path)) == []
