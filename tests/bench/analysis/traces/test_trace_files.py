"""What somebody names is found: files, folders and runs; what is not there is said in one line."""

from __future__ import annotations

import gzip
import os
from dataclasses import replace
from pathlib import Path

import pytest

from bench.analysis.traces.inputs import find_files
from bench.errors import InfrastructureFailed, Misuse
from bench.results.timelines import save_timeline, window_path
from bench.store import run_dir
from bench.store.history import History
from bench.store.run_dir import begin
from collectors.rank.memory_snapshot import added_up
from collectors.traces.analyzers.merge import merge
from collectors.traces.perfetto import encode
from tests.bench.made.examples import make_case, make_machine, make_summary
from tests.bench.made.small_traces import small_timeline
from tests.bench.results.watched.made_ranks import made_steps, write_run


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run of two ranks that has ended."""
    run = begin(make_case("ddp", trace_steps=3), make_machine(), tmp_path / "runs")
    run.close()
    return run.folder


def _touched(folder: Path, *names: str) -> list[Path]:
    paths = [folder / name for name in names]
    for path in paths:
        path.touch()
    return paths


def _drawn(path: Path) -> Path:
    if ".memory." in path.name:
        added_up([(0, "parameters", 8)]).save(path)
        return path
    content = encode([]) if path.name.startswith("stages") else merge([small_timeline(0), small_timeline(1)]).content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def test_files_are_taken_in_the_order_in_which_they_are_named(tmp_path: Path) -> None:
    one, other = _touched(tmp_path, "b.json", "a.json.gz")
    assert find_files([str(one), str(other)], tmp_path, None).paths == (one, other)


def test_a_file_that_is_named_twice_is_one_file(tmp_path: Path) -> None:
    (one,) = _touched(tmp_path, "a.json")
    assert find_files([str(one), str(one)], tmp_path, None).paths == (one,)


def test_a_folder_means_the_traces_in_it(tmp_path: Path) -> None:
    traces = _touched(tmp_path, "a.json", "b.pt.trace.json.gz", "c.timeline.npz")
    _touched(tmp_path, "notes.txt", "weights.npz")
    (tmp_path / "d.json").mkdir()
    assert find_files([str(tmp_path)], tmp_path, None).paths == tuple(traces)


def test_a_folder_without_a_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r"holds no trace; a trace's name ends in \.timeline\.npz, \.json or \.json\.gz"):
        find_files([str(tmp_path)], tmp_path, None)


@pytest.mark.parametrize("name", ["merged.json", "merged.json.gz", "stages.perfetto.json", "rank0.memory.json.gz"])
def test_a_drawing_of_ours_is_skipped_in_a_folder_and_said(name: str, tmp_path: Path) -> None:
    (trace,) = _touched(tmp_path, "rank1.json")
    drawing = _drawn(tmp_path / name)
    found = find_files([str(tmp_path)], tmp_path, None)
    assert found.paths == (trace,)
    assert found.notices == (f"{drawing}: skipped: it is a drawing by this program, not a trace",)


def test_a_drawing_of_ours_is_refused_where_a_trace_is_named(tmp_path: Path) -> None:
    drawing = _drawn(tmp_path / "merged.json.gz")
    with pytest.raises(Misuse, match=rf"{drawing} is a drawing by this program, not a trace"):
        find_files([str(drawing)], tmp_path, None)


def test_a_folder_of_drawings_alone_holds_no_trace(tmp_path: Path) -> None:
    _drawn(tmp_path / "merged.json")
    with pytest.raises(Misuse, match="holds no trace"):
        find_files([str(tmp_path)], tmp_path, None)


@pytest.mark.skipif(os.getuid() == 0, reason="root may look into every folder")
def test_what_one_may_not_look_into_is_refused(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    _touched(closed, "rank0.json")
    closed.chmod(0)
    for path in (closed, closed / "rank0.json"):
        with pytest.raises(Misuse, match=rf"^{path} cannot be read: Permission denied$"):
            find_files([str(path)], tmp_path, None)


def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    name = "a" * 300
    with pytest.raises(Misuse, match=rf"^{name} cannot be read: File name too long$"):
        find_files([name], tmp_path, None)


def test_a_runs_folder_means_the_windows_of_its_ranks_in_their_order(run_folder: Path) -> None:
    names = [f"rank{rank}.timeline.npz" for rank in (10, 9, 0)]
    _touched(run_folder, *names, "rank0.memory.json.gz", "stages.perfetto.json")
    found = find_files([str(run_folder)], run_folder.parent, None)
    assert [path.name for path in found.paths] == names[::-1]
    assert found.ranks == 2


def test_windows_of_two_trials_of_a_run_are_never_taken_together(run_folder: Path) -> None:
    for rank in (0, 1):
        save_timeline(small_timeline(rank), run_folder, 1)
    save_timeline(small_timeline(0), run_folder, 2)
    found = find_files([str(run_folder)], run_folder.parent, None)
    assert found.paths == (window_path(run_folder, 2, 0),)
    assert found.ranks == 2


def test_a_run_is_found_by_its_name_among_the_folders_of_runs(run_folder: Path) -> None:
    paths = _touched(run_folder, "rank0.timeline.npz")
    assert find_files([run_folder.name], run_folder.parent, None).paths == tuple(paths)


def test_a_run_is_found_by_the_beginning_of_its_name_in_the_history(run_folder: Path, tmp_path: Path) -> None:
    paths = _touched(run_folder, "rank0.timeline.npz")
    store = f"sqlite:///{tmp_path / 'history.sqlite'}"
    with History(store) as history:
        history.add(make_summary("run-abc", folder=str(run_folder)), make_machine())
    assert find_files(["run-a"], tmp_path / "elsewhere", store).paths == tuple(paths)


def test_a_run_whose_folder_is_gone_is_refused(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'history.sqlite'}"
    with History(store) as history:
        history.add(make_summary("run-abc", folder=str(tmp_path / "gone")), make_machine())
    with pytest.raises(Misuse, match=r"gone no longer exists, so the traces of run run-abc are gone; .*--runs"):
        find_files(["run-abc"], tmp_path, store)


def test_a_run_that_was_moved_is_found_by_the_beginning_of_its_name(run_folder: Path, tmp_path: Path) -> None:
    paths = _touched(run_folder, "rank0.timeline.npz")
    store = f"sqlite:///{tmp_path / 'history.sqlite'}"
    with History(store) as history:
        history.add(make_summary(run_folder.name, folder=str(tmp_path / "gone")), make_machine())
    assert find_files([run_folder.name[:-2]], run_folder.parent, store).paths == tuple(paths)


def test_an_unknown_run_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'history.sqlite'}"
    with History(store) as history:
        history.add(make_summary("run-abc"), make_machine())
    with pytest.raises(Misuse, match=r'"nothing" is neither a file nor a folder.* run-abc'):
        find_files(["nothing"], tmp_path, store)


def test_without_a_history_no_run_can_be_looked_up(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'no.sqlite'}"
    with pytest.raises(
        Misuse, match=r'"nothing" is neither a file nor a folder, and run "nothing" is unknown; the history has'
    ):
        find_files(["nothing"], tmp_path, store)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "no.sqlite").write_text("no database")
    with pytest.raises(
        InfrastructureFailed, match=r'"nothing" is neither a file nor a folder, and no run can be looked up'
    ):
        find_files(["nothing"], tmp_path, store)


@pytest.mark.parametrize("name", ["rank0.json", "rank0.json.gz", "rank0.timeline.npz", "folder/rank0"])
def test_a_missing_file_is_not_taken_for_a_run(name: str, tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=rf"{name} does not exist"):
        find_files([name], tmp_path, None)


def test_a_run_without_timelines_says_how_to_get_them(run_folder: Path) -> None:
    with pytest.raises(Misuse, match=r"holds no rank<k>\.timeline\.npz.*`observatory run ddp --trace-steps 3`"):
        find_files([str(run_folder)], run_folder.parent, None)


def test_a_watched_run_without_timelines_says_how_to_get_them(tmp_path: Path) -> None:
    run = write_run(tmp_path / "20261120-llama", made_steps("ddp"))
    run_dir.settle_watched(run)
    with pytest.raises(Misuse, match=r"holds no rank<k>.*; while it runs, `observatory watch --attach llama-sft`"):
        find_files([str(run)], tmp_path, None)


def test_a_run_that_still_runs_is_refused(tmp_path: Path) -> None:
    run = begin(replace(make_case("ddp"), trace_steps=3), make_machine(), tmp_path)
    try:
        with pytest.raises(Misuse, match="is still active; try again when the run is done"):
            find_files([run.id], tmp_path, None)
    finally:
        run.close()
