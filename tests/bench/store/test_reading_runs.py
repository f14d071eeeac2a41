"""A run's folder is read again: as its summary says, or from its logs if nobody wrote a summary."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from bench.errors import InfrastructureFailed, Misuse
from bench.rank.messages import FailureCause
from bench.store.active_runs import FollowedFolders, ended_folders, has_case, name_of, running_folders
from bench.store.run_dir import begin, case_file, change_trials, found_again, load, other_machines, save, write_json
from bench.store.summary import Summary
from tests.bench.made.examples import make_machine, small_case
from tests.bench.made.fake_engine import FakeEngine
from tests.bench.made.fake_runs import CAUSE, DDP, DDP_STEPS_S, ddp_summary, measure_fake
from workloads.options import Check

DIED = FailureCause(kind="interrupted", rank=None, step=None, text="the runner died before the run's end")


@pytest.fixture
def whole(tmp_path: Path) -> Summary:
    """A run of three complete trials, without a summary yet."""
    return ddp_summary(tmp_path / "runs")


@pytest.fixture
def broken(tmp_path: Path) -> Summary:
    """A run whose second trial broke, without a summary yet."""
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S}, {("ddp", 1): CAUSE})
    (summary,) = measure_fake(tmp_path / "runs", engine, DDP).summaries
    return summary


def test_without_a_summary_a_run_is_done_if_all_its_trials_are_complete(whole: Summary) -> None:
    again = load(Path(whole.folder))
    assert (again.outcome, again.cause, again.trials_done) == ("done", None, 3)
    assert (again.estimates, again.folder) == (whole.estimates, whole.folder)


def test_without_a_summary_an_incomplete_run_is_interrupted_for_its_runner_died(broken: Summary) -> None:
    again = load(Path(broken.folder))
    assert (again.outcome, again.cause, again.trials_done) == ("interrupted", DIED, 1)


def test_without_a_summary_a_convergence_check_has_no_verdict(whole: Summary) -> None:
    folder = Path(whole.folder)
    file = case_file(folder)
    check = Check(epoch_steps=1, data_ranks=1, has_batch_norm=False)
    case = replace(file.case, options={**file.case.options, **check.options()})
    write_json(folder / "case.json", msgspec.structs.replace(file, case=case))
    again = load(folder)
    assert (again.outcome, again.cause, again.trials_done) == ("interrupted", DIED, 3)


def test_an_active_run_is_not_read(tmp_path: Path) -> None:
    run = begin(small_case(), make_machine(), tmp_path)
    with pytest.raises(Misuse, match=rf"{run.folder} is still active: .*{os.getpid()}.* is working on it; look again"):
        load(run.folder)
    run.close()


def test_a_summary_is_of_the_folder_that_it_is_read_from(whole: Summary, monkeypatch: pytest.MonkeyPatch) -> None:
    save(whole)
    moved = Path(whole.folder).rename(Path(whole.folder).parents[1] / whole.run)
    monkeypatch.chdir(moved.parent)
    assert load(Path(whole.run)) == replace(whole, folder=str(moved))


def test_the_summary_of_another_run_and_one_behind_a_link_are_refused(whole: Summary) -> None:
    path = Path(whole.folder) / "summary.json"
    save(replace(whole, run="another"))
    with pytest.raises(Misuse, match=f"{path} is of run another, but case.json next to it of {whole.run}"):
        load(path.parent)
    path.write_text("{}")
    with pytest.raises(Misuse, match=f"{path}: is not a summary"):
        load(path.parent)
    path.rename(path.with_name("elsewhere.json"))
    path.symlink_to("elsewhere.json")
    with pytest.raises(OSError, match="it is a link"):
        load(path.parent)


def test_a_run_is_found_again_only_where_its_own_folder_has_moved(whole: Summary, tmp_path: Path) -> None:
    runs, folder = tmp_path / "runs", Path(whole.folder)
    gone = str(tmp_path / "gone" / whole.run)
    assert found_again(whole.run, gone, runs) == folder
    assert found_again(whole.run, f"{folder}/case.json/below", runs) == folder  # No folder at all.
    assert found_again(whole.run, whole.folder, tmp_path) is None  # It has not moved.
    assert found_again("another", gone, runs) is None
    (runs / "empty").mkdir()
    assert found_again("empty", gone, runs) is None
    folder.rename(runs / "renamed")
    assert found_again("renamed", gone, runs) is None  # Another run's folder.
    (runs / whole.run).symlink_to("renamed")
    assert found_again(whole.run, gone, runs) is None  # Anybody could make a link.


def test_ended_runs_are_those_that_nobody_works_on(whole: Summary, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    active = begin(small_case(), make_machine(), runs)
    (runs / "linked").symlink_to(whole.run)
    (runs / "linked-too").symlink_to(active.id)
    (runs / ".pruned-old").mkdir()
    (runs / ".pruned-old" / "case.json").write_text("{}")
    assert list(ended_folders(runs)) == [Path(whole.folder)]
    assert list(running_folders(runs)) == [active.folder]
    for of_all_users in (False, True):
        followed = FollowedFolders(runs, of_all_users=of_all_users)
        assert followed.running() == followed.running() == {active.id: active.folder}
    assert (name_of(active.folder), name_of(runs / "linked")) == ("ddp", None)
    active.close()
    assert list(ended_folders(runs)) == sorted([Path(whole.folder), active.folder])


def test_a_watched_run_has_a_case_only_with_a_machine_and_the_report_of_a_rank(tmp_path: Path) -> None:
    for name in ("watch.json", "machine.json", "watch_rank0.jsonl"):
        assert not has_case(tmp_path)
        (tmp_path / name).write_text("{}")
    assert has_case(tmp_path)
    (tmp_path / "watch.json").unlink()
    assert not has_case(tmp_path)


def test_the_other_machines_of_a_run_are_read_by_number_and_a_broken_one_is_left_out(whole: Summary) -> None:
    folder = Path(whole.folder)
    for number in (10, 2):
        write_json(folder / f"machine{number}.json", replace(make_machine(), hostname=f"node{number}"))
    (folder / "machine3.json").write_text("{")
    (folder / "machine-old.json").write_text("{}")
    assert [(number, machine.hostname) for number, machine in other_machines(folder).items()] == [
        (2, "node2"),
        (10, "node10"),
    ]


def test_a_changed_number_of_trials_is_all_that_changes(whole: Summary) -> None:
    folder = Path(whole.folder)
    before = case_file(folder)
    assert change_trials(folder, 7) == replace(before.case, trials=7)
    assert case_file(folder) == msgspec.structs.replace(before, case=replace(before.case, trials=7))


def test_a_named_run_goes_into_a_folder_that_exists_and_that_nobody_works_on(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    run = begin(small_case(), make_machine(), tmp_path, name="mine", store="postgresql://me:secret@host/runs")
    assert (run.id, run.folder) == ("mine", tmp_path / "mine")
    assert "secret" not in (run.folder / "case.json").read_text()
    with pytest.raises(Misuse, match=rf"is working on {run.folder}; name another folder"):
        begin(small_case(), make_machine(), tmp_path, name="mine")
    run.close()
    (tmp_path / "file").touch()
    with pytest.raises(InfrastructureFailed, match="cannot be written: Not a directory; choose another place"):
        begin(small_case(), make_machine(), tmp_path / "file")
