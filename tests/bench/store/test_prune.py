"""Old runs go by age and size; what a baseline needs stays, and who dies meanwhile leaves no half of a run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.case import Case, Purpose, SuiteMember
from bench.results.efficiency import scaling_efficiency
from bench.results.estimate import estimate
from bench.session.recover import recover_runs
from bench.store.active_runs import FollowedFolders, lock_folder
from bench.store.history import History
from bench.store.prune import LEDGER, SUITES, Limits, PrunePlan, carry_out, plan
from bench.store.run_dir import CaseFile, save
from bench.store.suite_record import SuiteRecord
from collectors.metrics.probes import RUN_MATMUL_FLOPS
from tests.bench.made.examples import make_case, make_machine, make_probe, make_summary

DAY_NS = 86_400 * 1_000_000_000
NOW_NS = 1000 * DAY_NS
SIZE = 1_000_000
"""Bytes of a run's log, beside which its other files are small."""
NEWER = make_case("single", ranks=1, batch=4)


class Place:
    """A folder of runs, and its history."""

    def __init__(self, folder: Path, history: History) -> None:
        self.runs, self.history = folder, history

    def add(self, name: str, *, days_old: float, case: Case | None = None, known: bool = True, **changes: Any) -> Path:
        """Make a run that ended so long ago, of a series of its own unless its case says otherwise."""
        folder = self.runs / name
        folder.mkdir(parents=True)
        case = case or make_case(options={**make_case().options, "learning_rate": 1.0 + len(list(self.runs.iterdir()))})
        ended_ns = NOW_NS - round(days_old * DAY_NS)
        usual: dict[str, Any] = {"outcome": "failed", "scaling": (), "folder": str(folder), "ended_ns": ended_ns}
        summary = make_summary(name, started_ns=ended_ns - 10, case=case, **{**usual, **changes})
        file = CaseFile(run=name, case=case, started_ns=summary.started_ns, purpose=summary.purpose)
        (folder / "case.json").write_bytes(msgspec.json.encode(file))
        (folder / "machine.json").write_bytes(msgspec.json.encode(make_machine()))
        (folder / "rank0.jsonl").write_bytes(bytes(SIZE))
        if known:
            save(summary)
            self.history.add(summary, make_machine())
        return folder

    def add_suite(self, name: str, *, days_old: float, suite: str = "nightly", **changes: Any) -> Path:
        """Make a suite run that ended so long ago, with a ledger."""
        folder = self.runs / SUITES / name
        folder.mkdir(parents=True)
        (folder / LEDGER).write_text("{}\n")
        at_ns = NOW_NS - round(days_old * DAY_NS)
        usual = {"ended_ns": at_ns, "outcome": "done"}
        self.history.save_suite(
            SuiteRecord(
                id=name,
                suite=suite,
                started_ns=at_ns - 10,
                progress_ns=at_ns,
                total=1,
                folder=str(folder),
                **{**usual, **changes},
            )
        )
        return folder

    def plan(self, older_than_days: float | None = None, keep_bytes: int | None = None, *keep: str) -> PrunePlan:
        older_than_s = None if older_than_days is None else older_than_days * 86_400
        limits = Limits(older_than_s=older_than_s, keep_bytes=keep_bytes, keep=frozenset(keep))
        return plan(self.runs, self.history, limits, now_ns=NOW_NS)

    def names(self) -> set[str]:
        """All entries of the folder of runs, hidden ones too."""
        return {path.name for path in self.runs.iterdir()}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    (tmp_path / "runs").mkdir()
    with History(f"sqlite:///{tmp_path / 'history.sqlite'}") as history:
        yield Place(tmp_path / "runs", history)


def _gone(found: PrunePlan) -> list[str]:
    return [folder.path.name for folder in found.deleted]


def _why_kept(found: PrunePlan) -> dict[str, str]:
    return {folder.path.name: folder.reason for folder in found.kept}


def _of_suite(suite_run: str) -> Purpose:
    return Purpose(member=SuiteMember(suite="nightly", id=suite_run, case="ddp"))


def _against(baseline: str) -> Any:
    found = scaling_efficiency(
        make_case(), (90.0, 92.0), make_case("single", 1, 4), (50.0, 51.0), baseline_run=baseline
    )
    return (found,)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """As while a process works on it."""
    lock = lock_folder(path)
    assert lock is not None
    yield
    os.close(lock)


def test_what_ended_before_goes_and_what_ended_after_stays(place: Place) -> None:
    place.add("old", days_old=31)
    place.add("young", days_old=29)
    found = place.plan(30)
    assert _gone(found) == ["old"]
    assert _why_kept(found) == {"young": "it is younger than --older-than"}


def test_the_oldest_go_until_no_more_than_the_size_is_left(place: Place) -> None:
    for days in (1, 3, 2, 4):
        place.add(f"of-day-{days}", days_old=days)
    found = place.plan(None, 2 * SIZE + SIZE // 2)
    assert _gone(found) == ["of-day-4", "of-day-3"]
    assert _why_kept(found)["of-day-1"] == "--keep-bytes has room for it"
    assert place.plan(None, 10 * SIZE).deleted == ()


def test_after_age_the_oldest_of_the_others_go_by_size(place: Place) -> None:
    for days in (1, 3, 40):
        place.add(f"of-day-{days}", days_old=days)
    assert _gone(place.plan(30, SIZE + SIZE // 2)) == ["of-day-40", "of-day-3"]


def test_the_newest_of_a_series_that_ended_well_stays(place: Place) -> None:
    for name, days, outcome in (("first", 50, "done"), ("good", 45, "done"), ("failed", 40, "failed")):
        place.add(name, days_old=days, case=NEWER, outcome=outcome)
    found = place.plan(30)
    assert set(_gone(found)) == {"first", "failed"}
    assert _why_kept(found) == {"good": "it is the newest good run of its series"}


def test_a_baseline_stays_as_long_as_a_run_that_was_read_against_it(place: Place) -> None:
    place.add("baseline", days_old=50)
    place.add("run", days_old=5, scaling=_against("baseline"))
    found = place.plan(30)
    assert found.deleted == ()
    assert _why_kept(found)["baseline"] == "it is the baseline of run, which stays"


def test_a_baseline_goes_with_the_last_run_that_was_read_against_it(place: Place) -> None:
    place.add("baseline", days_old=50)
    place.add("run", days_old=40, scaling=_against("baseline"))
    assert set(_gone(place.plan(30))) == {"baseline", "run"}
    assert set(_gone(place.plan(None, 0))) == {"baseline", "run"}
    assert _gone(place.plan(None, SIZE + SIZE // 2)) == ["run"]


def test_a_baseline_of_a_baseline_that_stays_does_so_too(place: Place) -> None:
    place.add("first", days_old=60)
    place.add("second", days_old=50, scaling=_against("first"))
    place.add("third", days_old=5, scaling=_against("second"))
    assert place.plan(30).deleted == ()


def test_a_run_that_was_pruned_before_needs_no_baseline(place: Place) -> None:
    place.add("baseline", days_old=50)
    shutil.rmtree(place.add("run", days_old=5, scaling=_against("baseline")))
    assert _gone(place.plan(30)) == ["baseline"]


def test_a_baseline_of_a_run_at_another_place_stays(place: Place) -> None:
    place.add("baseline", days_old=50)
    place.history.add(make_summary("run", folder="/elsewhere/run", scaling=_against("baseline")), make_machine())
    assert place.plan(30).deleted == ()


def test_the_fastest_product_of_a_machine_stays_though_newer_ones_are_slower(place: Place) -> None:
    for name, days, flops in (("slow", 60, 1e9), ("fast", 50, 3e9), ("slower", 40, 2e9)):
        place.add(
            name,
            days_old=days,
            case=make_probe("matmul"),
            outcome="done",
            estimates=(estimate(RUN_MATMUL_FLOPS, (flops, flops), m="8", n="8", k="8"),),
        )
    found = place.plan(30)
    assert _gone(found) == ["slow"]
    assert _why_kept(found)["fast"] == "it gives a ceiling to runs on this hardware"


def test_what_a_person_names_stays(place: Place) -> None:
    place.add("old", days_old=50)
    assert _why_kept(place.plan(30, None, "old")) == {"old": "--keep names it"}


def test_a_run_that_goes_on_stays(place: Place) -> None:
    with _locked(place.add("old", days_old=50)):
        assert _why_kept(place.plan(30)) == {"old": "it is active"}


def test_a_run_that_the_history_lacks_stays(place: Place) -> None:
    place.add("unknown", days_old=50, known=False)
    found = place.plan(0, 0)
    assert found.deleted == ()
    assert _why_kept(found)["unknown"].startswith("its results are not in this history; `observatory show --rebuild`")


def test_a_folder_that_cannot_be_read_stays(place: Place) -> None:
    (place.add("broken", days_old=50) / "case.json").write_text("{")
    assert "its kind is unknown" in _why_kept(place.plan(0))["broken"]


@pytest.mark.parametrize("is_active", [False, True])
def test_a_watched_command_that_reported_nothing_goes_by_its_age(is_active: bool, place: Place) -> None:
    for name, days_old in (("old", 20), ("young", 1)):
        folder = place.runs / name
        (folder / "hook").mkdir(parents=True)
        (folder / "watch.json").write_text("{}")
        os.utime(folder, ns=(NOW_NS - days_old * DAY_NS,) * 2)
    lock = lock_folder(place.runs / "old") if is_active else None
    made = plan(place.runs, place.history, Limits(older_than_s=10 * 86_400), now_ns=NOW_NS)
    assert [folder.path.name for folder in made.deleted] == ([] if is_active else ["old"])
    carry_out(made)
    assert {path.name for path in place.runs.iterdir()} == ({"old", "young"} if is_active else {"young"})
    if lock is not None:
        os.close(lock)


def test_what_is_no_run_is_not_looked_at(place: Place) -> None:
    (place.runs / "notes").mkdir()
    (place.runs / "notes" / "today.txt").write_text("keep me")
    found = place.plan(0, 0)
    carry_out(found)
    assert found.folders == ()
    assert place.names() == {"notes"}


# Suite runs


def test_a_suite_run_goes_with_the_last_of_its_runs(place: Place) -> None:
    place.add_suite("suite-a", days_old=40)
    place.add("one", days_old=40, purpose=_of_suite("suite-a"))
    place.add("two", days_old=39, purpose=_of_suite("suite-a"))
    assert _gone(place.plan(30)) == ["one", "two", "suite-a"]
    found = place.plan(39.5)
    assert _gone(found) == ["one"]
    assert _why_kept(found)["suite-a"] == "1 of its runs stays"


@pytest.mark.parametrize("outcome", ["running", "interrupted"])
def test_a_suite_run_that_can_be_resumed_stays_with_its_runs(outcome: str, place: Place) -> None:
    place.add_suite("suite-a", days_old=40, outcome=outcome)
    place.add("one", days_old=40, purpose=_of_suite("suite-a"))
    found = place.plan(30, 0)
    assert found.deleted == ()
    assert _why_kept(found) == {"one": "its suite run suite-a can be resumed", "suite-a": "it can be resumed"}


def test_a_suite_run_that_was_given_up_for_a_new_one_goes(place: Place) -> None:
    place.add_suite("suite-a", days_old=40, outcome="interrupted")
    place.add("one", days_old=40, purpose=_of_suite("suite-a"))
    place.add_suite("suite-b", days_old=1)
    assert _gone(place.plan(30)) == ["one", "suite-a"]


def test_a_suite_run_whose_ledger_is_written_stays(place: Place) -> None:
    with _locked(place.add_suite("suite-a", days_old=40) / LEDGER):
        assert _why_kept(place.plan(30)) == {"suite-a": "it is active"}


def test_a_suite_run_that_the_history_lacks_stays(place: Place) -> None:
    foreign = place.runs / SUITES / "foreign"
    foreign.mkdir(parents=True)
    (foreign / LEDGER).write_text("{}\n")
    assert _gone(place.plan(older_than_days=0)) == []
    assert _why_kept(place.plan(older_than_days=0)) == {"foreign": "it is not in this history"}


def test_a_suite_run_without_an_end_is_as_old_as_its_last_progress(place: Place) -> None:
    place.add_suite("given-up", days_old=30, outcome="running", ended_ns=None)
    place.add_suite("newest", days_old=5)
    assert _gone(place.plan(older_than_days=20)) == ["given-up"]
    assert _gone(place.plan(older_than_days=40)) == []


def test_the_records_of_suites_stay_so_that_counts_never_fall(place: Place) -> None:
    place.add_suite("suite-a", days_old=40)
    place.add("one", days_old=40, purpose=_of_suite("suite-a"))
    carry_out(place.plan(30), forget=place.history.forget)
    assert place.names() == {SUITES}
    assert [record.id for record in place.history.suite_runs(9)] == ["suite-a"]


# Deleting


def test_folders_go_and_results_stay(place: Place) -> None:
    place.add("old", days_old=50)
    place.add("young", days_old=5)
    gone, problems = carry_out(place.plan(30))
    assert ([folder.path.name for folder in gone], problems) == (["old"], ())
    assert place.names() == {"young"}
    assert place.history.known() == {"old", "young"}
    assert recover_runs(place.runs, place.history, None).notices() == ()


def test_results_go_too_where_that_is_wanted(place: Place) -> None:
    place.add("old", days_old=50)
    place.add("young", days_old=5)
    carry_out(place.plan(30), forget=place.history.forget)
    assert place.history.known() == {"young"}


def _die_half_way(folder: Path) -> None:
    """Delete some of the folder, as who is killed meanwhile does."""
    (folder / "machine.json").unlink()
    raise KeyboardInterrupt


def test_who_dies_meanwhile_leaves_nothing_that_is_taken_for_a_run(place: Place) -> None:
    place.add("old", days_old=50)
    with pytest.raises(KeyboardInterrupt):
        carry_out(place.plan(30), forget=place.history.forget, remove=_die_half_way)
    assert place.names() == {".pruned-old"}
    recovered = recover_runs(place.runs, place.history, None, of_every_store=True)
    assert (recovered.runs, recovered.problems) == ((), ())
    assert FollowedFolders(place.runs).running() == {}


def test_the_next_prune_deletes_what_was_left_half_deleted(place: Place) -> None:
    place.add("old", days_old=50)
    with pytest.raises(KeyboardInterrupt):
        carry_out(place.plan(30), remove=_die_half_way)
    found = place.plan(30)
    assert (found.folders, [path.name for path in found.leftovers]) == ((), [".pruned-old"])
    carry_out(found)
    assert place.names() == set()


def test_a_run_that_has_begun_to_go_on_since_stays(place: Place) -> None:
    folder = place.add("old", days_old=50)
    found = place.plan(30)
    with _locked(folder):
        gone, problems = carry_out(found)
    assert gone == ()
    assert problems == (f"{folder} stays: a process is working on it",)
    assert place.names() == {"old"}


def test_a_folder_that_cannot_be_deleted_keeps_no_other(place: Place) -> None:
    def refuse_first(folder: Path) -> None:
        if folder.name == ".pruned-first":
            raise PermissionError(13, "Permission denied", str(folder / "rank0.jsonl"))
        shutil.rmtree(folder)

    place.add("first", days_old=60)
    place.add("second", days_old=50)
    _, (problem,) = carry_out(place.plan(30), remove=refuse_first)
    assert "first could not be deleted whole" in problem
    assert problem.endswith("Permission denied; the next prune tries again")
    assert place.names() == {".pruned-first"}


def test_two_prunes_at_once_delete_each_run_once(place: Place) -> None:
    place.add("old", days_old=50)
    found = place.plan(30)
    assert [folder.path.name for folder in carry_out(found)[0]] == ["old"]
    assert carry_out(found) == ((), ())


def test_without_a_history_nothing_goes(place: Place) -> None:
    place.add("old", days_old=50)
    limits = Limits(older_than_s=0, keep_bytes=0)
    assert plan(place.runs, None, limits, now_ns=NOW_NS).deleted == ()


@pytest.mark.parametrize("is_locked", [True, False])
def test_a_run_that_is_busy_or_gone_by_now_keeps_no_other(is_locked: bool, place: Place) -> None:
    first, second = (place.add(name, days_old=days) for name, days in (("first", 9), ("second", 8)))
    pruning = place.plan(older_than_days=1)
    assert _gone(pruning) == ["first", "second"]
    if is_locked:
        with _locked(first):
            gone, problems = carry_out(pruning)
    else:
        shutil.rmtree(first)
        gone, problems = carry_out(pruning)
    assert [folder.path for folder in gone] == [second]
    assert list(problems) == ([f"{first} stays: a process is working on it"] if is_locked else [])
    assert not second.exists()


def test_what_was_left_half_deleted_and_cannot_be_deleted_is_named(place: Place) -> None:
    place.add("old", days_old=9)
    with pytest.raises(KeyboardInterrupt):
        carry_out(place.plan(older_than_days=1), remove=_die_half_way)

    def refuse(path: Path) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    (leftover,) = place.plan(older_than_days=1).leftovers
    _, problems = carry_out(place.plan(older_than_days=1), remove=refuse)
    (problem,) = problems
    assert problem.startswith(f"{leftover} could not be deleted: ")
    assert problem.endswith("; the next prune tries again")
