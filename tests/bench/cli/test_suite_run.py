"""`observatory suite run` and `suite show`, on one suite of tiny cases that is run once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.cli import main
from bench.cli.suite.run import exit_code, places_given
from bench.cli.suite.run import run as suite_run
from bench.errors import CASE_FAILED, FINE, INFRASTRUCTURE, MISUSE
from bench.rank.messages import FailureCause
from bench.suite.file import read_suite
from bench.suite.folder import begin, suite_run_folders
from bench.suite.ledger import LEDGER, Begun, CaseEnded, Ended, TrialEnded, read_ledger
from bench.suite.plan import PlannedCase
from bench.suite.results import read_result
from tests.bench.made.fake_runs import CAUSE
from tests.bench.made.fake_suites import LOST_AGENT, TINY_SHAPE, FakeNight, plan_of, planned

TINY = (
    """
schema_version = 1
[defaults]
device = "cpu"
trials = 2
steps = 3
warm_up = 1
trace_steps = 0
"""
    + TINY_SHAPE
    + """block = "all"
[case.single]
ranks = 1
batch = 2
[case.ddp]
ranks = 2
baseline = "single"
scaling = "weak"
[case.drill]
strategy = "ddp"
ranks = 2
batch = 4
trials = 1
tags = ["drill"]
inject = "raise@1:2"
expect = { outcome = "failed", cause = "error", rank = 1 }
"""
)
LONGER = TINY.replace("trials = 2", "trials = 4").partition("[case.drill]")[0]
"""A suite that can be ended in its middle."""


def start(home: Path, *words: str) -> subprocess.Popen[str]:
    """Start the command with a home of its own."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "bench", *words],
        env={**os.environ, "XDG_DATA_HOME": str(home), "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(home: Path, *words: str) -> tuple[int, str, str]:
    """Run the command; return its exit code, output and messages."""
    process = start(home, *words)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def runs_of(home: Path) -> Path:
    return home / "parallel-observatory" / "runs"


def suite_file(home: Path, text: str) -> str:
    path = home / "tiny.toml"
    path.write_text(text)
    return str(path)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's home."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def told(home: Path) -> tuple[int, str, str]:
    """What the suite said."""
    return run(home, "suite", "run", suite_file(home, TINY), "--port=0")


@pytest.fixture
def _at_home(home: Path, told: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(home))


@pytest.mark.slow
def test_a_suite_runs_over_several_nodes(tmp_path: Path) -> None:
    """Its agents have folders of their own; what ranks wrote is in that of the runner."""
    code, out, messages = run(
        tmp_path, "suite", "run", suite_file(tmp_path, TINY), "--port=0", "--nodes=2", "--format=json"
    )
    assert code == FINE, messages
    cases = {case["case"]: case for case in json.loads(out)["cases"]}
    assert {name: case["outcome"] for name, case in cases.items()} == {"single": "done", "ddp": "done", "drill": "done"}
    assert {name: case["summary"]["case"]["nodes"] for name, case in cases.items()} == {
        "single": 1,
        "ddp": 2,
        "drill": 2,
    }
    assert cases["ddp"]["summary"]["scaling"][0]["is_beside"]
    assert cases["drill"]["summary"]["cause"]["rank"] == 1
    logs = {path.name for path in Path(cases["ddp"]["summary"]["folder"]).glob("*.jsonl")}
    assert logs == {"rank0.jsonl", "rank1.jsonl", "node0.jsonl", "node1.jsonl"}


@pytest.mark.usefixtures("_at_home")
def test_a_dry_run_tells_what_would_run_and_writes_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(home.rglob("*"))
    command = ["suite", "run", str(home / "tiny.toml"), "--dry-run"]
    assert main.run([*command, "--only=drill", "--nodes=2"]) == FINE
    out = capsys.readouterr().out
    assert "left out: single, ddp: without the tag drill" in out
    assert out.endswith("nothing was started, and nothing written\n")
    (folder,) = suite_run_folders(runs_of(home))
    assert main.run([*command, f"--resume={folder.name}"]) == FINE
    assert "left out: single, ddp, drill: it is done already" in capsys.readouterr().out
    assert main.run([*command, "--resume"]) == MISUSE
    assert "no run of suite tiny" in capsys.readouterr().err
    assert sorted(home.rglob("*")) == before


def test_each_case_is_said_when_it_begins_and_when_it_ends(told: tuple[int, str, str]) -> None:
    code, _, messages = told
    assert code == FINE, messages
    lines = [line.partition(";")[0].partition(" after")[0] for line in messages.splitlines()]
    assert [line for line in lines if line.startswith(("single", "ddp", "drill"))] == [
        "single begins: 2 trials on 1 rank",
        "ddp begins: 2 trials on 2 ranks",
        "drill begins: 1 trial on 2 ranks",
        "single: done",
        "ddp: done",
        "drill: failed as expected",
    ]


def test_the_summary_has_each_case_with_its_efficiency_and_counts_them(told: tuple[int, str, str]) -> None:
    lines = [" ".join(line.split()) for line in told[1].splitlines()]
    assert lines[0] == "case outcome step throughput efficiency run"
    assert lines[1].startswith("single done ")
    assert "% " in lines[2]
    assert " weak " in lines[2]
    assert lines[3].startswith("drill failed as expected - - - ")
    assert "done: 3 done (1 failed as expected), in " in lines[-1]


def test_the_ledger_has_each_trial_and_each_end(home: Path, told: object) -> None:
    (folder,) = suite_run_folders(runs_of(home))
    records = read_ledger(folder / LEDGER).records
    trials = [(one.case, one.trial, one.outcome) for one in records if isinstance(one, TrialEnded)]
    assert trials == [
        ("single", 0, "done"),
        ("ddp", 0, "done"),
        ("drill", 0, "failed"),
        ("single", 1, "done"),
        ("ddp", 1, "done"),
    ]
    assert {one.case: one.outcome for one in records if isinstance(one, CaseEnded)} == {
        "single": "done",
        "ddp": "done",
        "drill": "done",
    }
    assert isinstance(records[-1], Ended)


@pytest.mark.usefixtures("_at_home")
def test_a_suite_run_that_lacks_nothing_is_resumed_without_a_rank(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder,) = suite_run_folders(runs_of(home))
    handler = signal.getsignal(signal.SIGTERM)
    before = sorted(path.name for path in runs_of(home).iterdir())
    assert main.run(["suite", "run", str(home / "tiny.toml"), "--resume", folder.name, "--port=0"]) == FINE
    signal.signal(signal.SIGTERM, handler)
    assert f"nothing is missing in {folder.name}" in capsys.readouterr().err
    assert sorted(path.name for path in runs_of(home).iterdir()) == before


@pytest.mark.usefixtures("_at_home")
def test_show_lists_suite_runs_and_shows_one_by_the_beginning_of_its_id(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder,) = suite_run_folders(runs_of(home))
    for words in ([], ["tiny"]):
        assert main.run(["suite", "show", *words, "--format=json"]) == FINE
        (listed,) = json.loads(capsys.readouterr().out)
        assert (listed["suite_run"], listed["outcome"], listed["done"]) == (folder.name, "done", 3)
    assert main.run(["suite", "show", folder.name[:10], "--format=json"]) == FINE
    shown = json.loads(capsys.readouterr().out)
    assert [case["case"] for case in shown["cases"]] == ["single", "ddp", "drill"]


@pytest.mark.usefixtures("_at_home")
def test_show_of_another_folder_of_runs_tells_what_the_history_knows(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder,) = suite_run_folders(runs_of(home))
    assert main.run(["suite", "show", folder.name, "--runs", str(tmp_path), "--format=json"]) == FINE
    shown = json.loads(capsys.readouterr().out)
    assert {case["case"]: case["outcome"] for case in shown["cases"]} == {
        "single": "done",
        "ddp": "done",
        "drill": "failed",
    }


@pytest.mark.usefixtures("_at_home")
def test_a_case_whose_folder_was_pruned_is_shown_by_the_history(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder,) = suite_run_folders(runs_of(home))
    shutil.copytree(folder, tmp_path / "suites" / folder.name)
    assert main.run(["suite", "show", folder.name, "--runs", str(tmp_path), "--format=json"]) == FINE
    shown = json.loads(capsys.readouterr().out)
    assert [(case["outcome"], case["summary"]["outcome"]) for case in shown["cases"]] == [
        ("done", "done"),
        ("done", "done"),
        ("done", "failed"),
    ]


@pytest.mark.usefixtures("_at_home")
def test_runs_are_filtered_by_their_suite(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["show", "--suite", "tiny", "--format=json"]) == FINE
    found = json.loads(capsys.readouterr().out)
    assert {run["purpose"]["member"]["case"] for run in found} == {"single", "ddp", "drill"}
    assert main.run(["show", "--suite", "other"]) == FINE
    assert "no run of suite other is in the history yet" in capsys.readouterr().err


# Exit codes


def _coded(night: FakeNight, *cases: PlannedCase) -> int:
    end = night.run(plan_of(*cases))
    return exit_code(end, read_result(next(suite_run_folders(night.runs))), is_store_gone=False)


def test_a_failed_case_is_3_one_of_the_infrastructure_4_and_an_interruption_130(tmp_path: Path) -> None:
    def coded(broken: FailureCause | BaseException) -> int:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        return _coded(FakeNight(folder, breaks=[{("ddp", 0): broken}]), planned("ddp", retries=0), planned("fsdp"))

    assert [coded(CAUSE), coded(LOST_AGENT), coded(KeyboardInterrupt())] == [3, 4, 130]


def test_results_that_the_store_lacks_are_4(tmp_path: Path) -> None:
    night = FakeNight(tmp_path)
    end = night.run(plan_of(planned("ddp")))
    assert exit_code(end, read_result(next(suite_run_folders(night.runs))), is_store_gone=True) == 4


@pytest.mark.parametrize(
    ("breaks", "code"),
    [
        ([], FINE),
        ([LOST_AGENT], FINE),
        ([LOST_AGENT, LOST_AGENT], INFRASTRUCTURE),
        ([CAUSE], CASE_FAILED),
    ],
    ids=["measured again", "at the second attempt", "no agent comes", "the rerun fails"],
)
def test_a_night_whose_suspicions_were_not_measured_again_does_not_end_with_0(
    tmp_path: Path, breaks: list[FailureCause | BaseException], code: int
) -> None:
    night = FakeNight(
        tmp_path,
        breaks=[{}, *({("ddp", 0): broken} for broken in breaks)],
        suspects=lambda history, suite, suite_run: {"ddp": False},
    )
    assert _coded(night, planned("ddp"), planned("fsdp")) == code


def test_a_rerun_that_the_budget_leaves_out_is_no_failure(tmp_path: Path) -> None:
    night = FakeNight(tmp_path, trial_s=10.0, suspects=lambda history, suite, suite_run: {"ddp": False})
    end = night.run(plan_of(planned("ddp", estimate_s=30.0)), budget_s=40.0)
    assert exit_code(end, read_result(next(suite_run_folders(night.runs))), is_store_gone=False) == FINE


def test_a_night_that_is_not_judged_does_not_end_with_0(tmp_path: Path) -> None:
    night = FakeNight(tmp_path)
    end = night.run(plan_of(planned("ddp")))
    result = read_result(next(suite_run_folders(night.runs)))
    assert exit_code(end, result, is_store_gone=False, is_judged=False) == INFRASTRUCTURE


def test_cases_that_cannot_run_here_are_3_and_those_left_out_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    path = tmp_path / "large.toml"
    path.write_text('schema_version = 1\n[case.ddp]\nranks = 8\ndevice = "cpu"\nbatch = 8\nneeds = { gpus = 8 }\n')
    handler = signal.getsignal(signal.SIGTERM)
    code = main.run(["suite", "run", str(path), "--port=0"])
    signal.signal(signal.SIGTERM, handler)
    said = capsys.readouterr()
    assert code == CASE_FAILED
    assert "ddp is skipped: it needs 8 GPUs, and 0 can be used here" in said.err
    assert "failed: 1 skipped, in " in said.out


# What is refused before anything is written


def _refused(home: Path, *words: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(path.name for path in (runs_of(home) / "suites").iterdir())
    assert main.run(["suite", "run", *words, "--port=0"]) == MISUSE
    assert says in capsys.readouterr().err
    assert sorted(path.name for path in (runs_of(home) / "suites").iterdir()) == before


@pytest.mark.usefixtures("_at_home")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--set", "defaults.trials=3", "--resume", "20"], 'trials of case "single" was 2, and is 3 (and 1 more)'),
        (["--resume"], "no run of suite tiny in"),
        (["--repeat-failed"], "no run of suite tiny in"),
        (["--resume", "nothing"], 'suite run "nothing" is unknown; the newest in'),
        (["--only", "drills"], "drill"),
        (["--quiet", "--verbose"], "--quiet and --verbose exclude each other"),
        (["--budget", "0"], "'0' is too short; it must be above 0 and at most a year"),
    ],
)
def test_what_cannot_be_is_refused(
    home: Path, words: Sequence[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _refused(home, str(home / "tiny.toml"), *words, says=says, capsys=capsys)


@pytest.mark.usefixtures("_at_home")
def test_the_suite_run_of_another_suite_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder,) = suite_run_folders(runs_of(home))
    other = home / "other.toml"
    other.write_text(TINY)
    says = f"suite run {folder.name} is of suite tiny, not of other"
    _refused(home, str(other), "--resume", folder.name, says=says, capsys=capsys)


def test_a_suite_run_of_a_newer_version_or_one_that_is_being_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    path = suite_file(tmp_path, TINY)
    with begin(read_suite(Path(path)), runs_of(tmp_path)) as ledger:
        says = f"suite run {ledger.folder.name} is being run by process"
        _refused(tmp_path, path, "--resume", says=says, capsys=capsys)
        begun = ledger.state.begun
    assert isinstance(begun, Begun)
    ledger.path.write_bytes(ledger.path.read_bytes().replace(b'"schema_version":3', b'"schema_version":9'))
    _refused(tmp_path, path, "--resume", says="schema version 9 is newer than 3", capsys=capsys)


def test_what_is_run_to_go_on_names_the_places_that_were_given_and_no_password() -> None:
    places = ["--runs", "/nights", "--store", "postgresql://me:secret@host/runs"]
    context = suite_run.make_context("run", ["tiny", *places])
    with context:
        found = places_given(Path("/nights"), places[-1])
    assert found == [*places[:-1], "postgresql://(redacted)@host/runs"]
    with suite_run.make_context("run", ["tiny"]):
        assert places_given(Path("/home/me"), None) == []


# Deaths, and going on


def _wait_for_trials(process: subprocess.Popen[str], home: Path, count: int) -> Path:
    """Wait until so many trials of the suite have ended; return the folder of the suite run."""
    until_s = time.monotonic() + 90
    while time.monotonic() < until_s:
        assert process.poll() is None, process.communicate()
        for folder in suite_run_folders(runs_of(home)):
            if sum(isinstance(one, TrialEnded) for one in read_ledger(folder / LEDGER).records) >= count:
                return folder
        time.sleep(0.05)
    raise AssertionError("the suite stands still")


def _trials(folder: Path) -> list[tuple[str, str, int]]:
    records = read_ledger(folder / LEDGER).records
    return [(one.case, one.run, one.trial) for one in records if isinstance(one, TrialEnded) and one.outcome == "done"]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 130)])
def test_a_suite_that_is_ended_in_its_middle_goes_on_and_no_trial_runs_again(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    path = suite_file(tmp_path, LONGER)
    process = start(tmp_path, "suite", "run", path, "--port=0")
    folder = _wait_for_trials(process, tmp_path, 3)
    process.send_signal(number)
    out, messages = process.communicate(timeout=60)
    assert process.returncode == code, messages
    if number != signal.SIGKILL:
        assert f"--resume {folder.name}` runs the 2 missing cases" in messages
        assert f"{folder.name}: interrupted: 2 interrupted, in " in out
    before = _trials(folder)
    code, out, messages = run(tmp_path, "suite", "run", path, "--resume", "--port=0")
    assert code == FINE, messages
    after = _trials(folder)
    assert after[: len(before)] == before
    assert len(set(after)) == len(after)
    # SIGKILL may come between a rank's last word and the ledger's: then the trial is complete, and not run again.
    assert 7 <= len(after) <= 8
    assert len({run for _, run, _ in after}) == 2
    assert "done: 2 done, in " in out
