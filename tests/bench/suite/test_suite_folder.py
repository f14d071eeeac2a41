"""Folders of suite runs: which one goes on, and which ones are refused."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from bench.errors import InfrastructureFailed, Misuse
from bench.suite.file import Suite, read_suite
from bench.suite.folder import SUITE, begin, find_suite_run, resume, suite_of, suite_run_folders
from bench.suite.ledger import LEDGER, CaseEnded, Ended, fold, read_ledger
from bench.suite.results import read_result
from tests.collectors.files_and_sockets.simulated_disk import SimulatedDisk

SMOKE = """
schema_version = 1
[defaults]
trials = 3
[case.ddp]
ranks = [1, 2]
[case.single]
"""


def suite(folder: Path, text: str = SMOKE, *, name: str = "smoke") -> Suite:
    path = folder / f"{name}.toml"
    path.write_text(text)
    return read_suite(path, ())


def begun(folder: Path, of: Suite, outcome: str | None = None) -> str:
    """A suite run that ended so; returns its id."""
    with begin(of, folder / "runs") as ledger:
        if outcome is not None:
            ledger.write(Ended(outcome=outcome, time_ns=9))  # type: ignore[arg-type]
        return ledger.folder.name


def test_a_suite_run_that_has_begun_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smoke = suite(tmp_path)
    disk = SimulatedDisk(monkeypatch)
    with begin(smoke, tmp_path / "runs") as ledger:
        for path in (ledger.path, ledger.folder / SUITE):
            assert disk.may_hold(path) == {path.read_bytes()}
        assert disk.has_name(ledger.folder)
        assert disk.has_name(ledger.folder.parent)


def test_a_suite_run_is_begun_with_its_suite_beside_its_ledger(tmp_path: Path) -> None:
    smoke = suite(tmp_path)
    with begin(smoke, tmp_path / "runs", ["extra"]) as ledger:
        assert ledger.folder.parent == tmp_path / "runs" / "suites"
        assert suite_of(ledger.folder.name) == "smoke"
        assert sorted(path.name for path in ledger.folder.iterdir()) == [LEDGER, "suite.json"]
        found = ledger.state.begun
    assert found is not None
    assert (found.suite, found.digest, found.tags) == ("smoke", smoke.digest, ("extra",))


def test_the_newest_suite_run_that_has_not_ended_well_goes_on(tmp_path: Path) -> None:
    smoke = suite(tmp_path)
    ids = [begun(tmp_path, smoke, outcome) for outcome in ("failed", "interrupted", "done")]
    begun(tmp_path, suite(tmp_path, name="other"))
    # Names of one second are in any order: the folders are renamed into that in which they were begun.
    for number, name in enumerate(ids):
        folder = tmp_path / "runs" / "suites" / name
        folder.rename(folder.with_name(f"20261123-00000{number}-smoke-abc123"))
    with resume(smoke, tmp_path / "runs", None) as ledger:
        assert ledger.folder.name == "20261123-000001-smoke-abc123"
        assert ledger.is_resumed


def test_a_suite_run_is_found_by_the_beginning_of_its_id(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r'suite run "x" is unknown; the newest in .* are: none'):
        find_suite_run(tmp_path / "runs", "x")
    name = begun(tmp_path, suite(tmp_path))
    assert find_suite_run(tmp_path / "runs", name[:-2]).name == name
    with pytest.raises(Misuse, match=rf'suite run "x" is unknown; the newest in .* are: {name}'):
        find_suite_run(tmp_path / "runs", "x")
    begun(tmp_path, suite(tmp_path))
    with pytest.raises(Misuse, match=r'suite run "2" may be any of .*; give more of its name'):
        find_suite_run(tmp_path / "runs", "2")


def test_a_folder_without_a_ledger_is_no_suite_run(tmp_path: Path) -> None:
    assert list(suite_run_folders(tmp_path)) == []
    (tmp_path / "suites" / "20261123-010203-smoke-abc123").mkdir(parents=True)
    assert list(suite_run_folders(tmp_path)) == []


def test_a_suite_run_that_ended_well_goes_on_where_a_budget_left_a_case_out(tmp_path: Path) -> None:
    smoke = suite(tmp_path)
    with begin(smoke, tmp_path / "runs") as ledger:
        for name, outcome in (("ddp[ranks=1]", "done"), ("ddp[ranks=2]", "left_out"), ("single", "done")):
            ledger.write(CaseEnded(case=name, run=None, outcome=outcome, time_ns=8))  # type: ignore[arg-type]
        ledger.write(Ended(outcome="done", time_ns=9))
    with resume(smoke, tmp_path / "runs", None) as ledger:
        assert ledger.is_resumed


def test_what_nobody_asked_for_leaves_nothing_to_resume(tmp_path: Path) -> None:
    smoke = suite(tmp_path, SMOKE.replace("[case.single]", '[case.single]\ntags = ["extra"]'))
    with begin(smoke, tmp_path / "runs") as ledger:
        for name, outcome in (("ddp[ranks=1]", "done"), ("ddp[ranks=2]", "done"), ("single", "left_out")):
            ledger.write(CaseEnded(case=name, run=None, outcome=outcome, time_ns=8))  # type: ignore[arg-type]
        ledger.write(Ended(outcome="done", time_ns=9))
    with pytest.raises(Misuse, match="left to resume"):
        resume(smoke, tmp_path / "runs", None)


def test_nothing_to_resume_is_said(tmp_path: Path) -> None:
    smoke = suite(tmp_path)
    begun(tmp_path, smoke, "done")
    with pytest.raises(Misuse, match=r"no run of suite smoke in .* is left to resume"):
        resume(smoke, tmp_path / "runs", None)


def test_the_run_of_another_suite_is_refused_with_its_name(tmp_path: Path) -> None:
    name = begun(tmp_path, suite(tmp_path))
    with pytest.raises(Misuse, match=f"suite run {name} is of suite smoke, not of other"):
        resume(suite(tmp_path, name="other"), tmp_path / "runs", name)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (SMOKE.replace("trials = 3", "trials = 5"), r'trials of case "ddp\[ranks=1\]" was 3, and is 5 \(and 2 more\)'),
        (SMOKE.replace("[case.single]", ""), 'case "single" is no longer in it;'),
        (SMOKE + "[case.fsdp]\nranks = 2", 'case "fsdp" is new in it;'),
        (
            SMOKE.replace("[case.single]", "[case.fsdp]\nranks = 2"),
            r'case "single" is no longer in it \(and 1 more\);',
        ),
        (
            "schema_version = 1\n[defaults]\ntrials = 3\n[case.single]\n[case.ddp]\nranks = [1, 2]\n",
            "its levers or the order of its cases",
        ),
    ],
)
def test_a_suite_with_other_cases_is_refused_with_what_differs(tmp_path: Path, text: str, says: str) -> None:
    name = begun(tmp_path, suite(tmp_path))
    with pytest.raises(Misuse, match=says):
        resume(suite(tmp_path, text), tmp_path / "runs", name)
    folder = tmp_path / "runs" / "suites" / name
    assert len(read_ledger(folder / LEDGER).records) == 1


def test_a_difference_that_its_file_does_not_tell_is_refused_all_the_same(tmp_path: Path) -> None:
    smoke = suite(tmp_path)
    name = begun(tmp_path, smoke)
    (tmp_path / "runs" / "suites" / name / "suite.json").write_text("{")
    with pytest.raises(Misuse, match=r"suite\.json cannot show how"):
        resume(replace(smoke, digest="other"), tmp_path / "runs", name)
    (tmp_path / "runs" / "suites" / name / "suite.json").rename(tmp_path / "suite.json")
    (tmp_path / "runs" / "suites" / name / "suite.json").symlink_to(tmp_path / "suite.json")
    with pytest.raises(Misuse, match=r"suite\.json cannot show how .*it is a link"):
        resume(replace(smoke, digest="other"), tmp_path / "runs", name)


def test_an_empty_ledger_is_refused(tmp_path: Path) -> None:
    smoke = suite(tmp_path)
    name = begun(tmp_path, smoke)
    (tmp_path / "runs" / "suites" / name / LEDGER).write_bytes(b"")
    with pytest.raises(Misuse, match="its ledger is empty"):
        resume(smoke, tmp_path / "runs", name)


def test_one_that_died_before_its_first_record_hides_none_that_can_go_on(tmp_path: Path) -> None:
    smoke = suite(tmp_path)
    older, newer = (begun(tmp_path, smoke, outcome) for outcome in ("interrupted", None))
    place = tmp_path / "runs" / "suites"
    (place / older).rename(place / "20261123-000001-smoke-abc123")
    (place / newer / LEDGER).write_bytes(b"")
    (place / newer).rename(place / "20261123-000002-smoke-abc123")
    with resume(smoke, tmp_path / "runs", None) as ledger:
        assert ledger.folder.name == "20261123-000001-smoke-abc123"
    with pytest.raises(Misuse, match="20261123-000002-smoke-abc123 holds no suite run: its ledger is empty"):
        read_result(place / "20261123-000002-smoke-abc123")


def test_a_suite_run_that_is_being_run_is_refused(tmp_path: Path) -> None:
    smoke = suite(tmp_path)
    with (
        begin(smoke, tmp_path / "runs") as ledger,
        pytest.raises(Misuse, match=f"suite run {ledger.folder.name} is being run by process"),
    ):
        resume(smoke, tmp_path / "runs", ledger.folder.name)
    assert fold(read_ledger(ledger.path).records).begun is not None


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(InfrastructureFailed, match="Not a directory; choose another place with --runs"):
        begin(suite(tmp_path), tmp_path / "runs")


def test_the_stored_suite_has_its_version_first(tmp_path: Path) -> None:
    with begin(suite(tmp_path), tmp_path / "runs") as ledger:
        document = json.loads((ledger.folder / SUITE).read_text())
    assert next(iter(document.items())) == ("schema_version", 1)
    assert [case["name"] for case in document["cases"]] == ["ddp[ranks=1]", "ddp[ranks=2]", "single"]


def test_a_folder_of_suite_runs_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "suites").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InfrastructureFailed, match="suites is a link, but must be a folder; choose another place"):
        begin(suite(tmp_path), tmp_path / "runs")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize(("mode", "expected"), [(0o1770, 0o1770), (0o770, 0o750), (0o1750, 0o750)])
def test_who_may_add_runs_to_a_shared_folder_may_add_suite_runs(tmp_path: Path, mode: int, expected: int) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs").chmod(mode)
    with begin(suite(tmp_path), tmp_path / "runs"):
        found = (tmp_path / "runs" / "suites").stat().st_mode
    assert stat.S_IMODE(found) == expected


def test_a_file_in_place_of_the_folder_has_no_suite_runs(tmp_path: Path) -> None:
    (tmp_path / "suites").touch()
    assert list(suite_run_folders(tmp_path)) == []
    assert list(suite_run_folders(tmp_path / "nowhere")) == []
