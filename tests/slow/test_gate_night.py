"""A nightly suite on real ranks whose case got slower: measured again the same night, judged, and told to CI."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace

import pytest

from bench.store.history import History
from collectors.metrics.results import RUN_STEP_SECONDS
from tests.bench.made.real_nights import RealNights

pytestmark = pytest.mark.slow

FASTER = 4.0
"""How many times faster the nights before were: far more than a busy machine is slower than an idle one."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> RealNights:
    """After twenty nights that were faster, on an older kernel."""
    place = RealNights(tmp_path_factory.mktemp("gate"))
    place.make_before(faster=FASTER, as_it_was=lambda machine: replace(machine, kernel="2.6.32"))
    return place


@pytest.fixture(scope="module")
def tonight(place: RealNights) -> subprocess.CompletedProcess[str]:
    """The night with the regression."""
    return place.run_suite()


def test_the_night_itself_measures_the_case_again_and_says_what_the_gate_finds(
    place: RealNights, tonight: subprocess.CompletedProcess[str]
) -> None:
    assert tonight.returncode == 0, tonight.stderr  # The suite ran well: what it measured is judged by `check`.
    assert "ddp: the gate suspects a change; 3 more trials are measured" in tonight.stderr
    assert "2 regression" in tonight.stderr
    assert "`observatory check --suite tiny` shows more" in tonight.stderr
    with History(place.url, writable=False) as history:
        reruns = [one for one in history.runs(9) if one.purpose.member is not None and one.purpose.member.is_rerun]
    assert [one.trials_done for one in reruns] == [3]


@pytest.mark.usefixtures("tonight")
def test_check_ends_with_the_code_of_a_regression(place: RealNights) -> None:
    checked = place.call("check", "--suite", "tiny", "--format", "json")
    assert checked.returncode == 5, checked.stderr
    (document,) = json.loads(checked.stdout)
    steps = {one["metric"]: one for one in document["verdicts"]}[RUN_STEP_SECONDS.name]
    assert (steps["outcome"], steps["reruns"], len(steps["trial_values"])) == ("regression", 3, 3)
    assert steps["change_ratio"] > FASTER / 2


@pytest.mark.usefixtures("tonight")
def test_check_names_the_likely_cause_with_what_changed_and_the_traces(place: RealNights) -> None:
    runs = ("--runs", str(place.folder / "runs"))
    checked = place.call("check", "--suite", "tiny", "--format", "json", *runs)
    (document,) = json.loads(checked.stdout)
    (cause,) = document["causes"]
    assert cause["good_run"].endswith("-1")
    assert [one["field"] for one in cause["changes"]] == ["kernel"]
    environment, _, likely = cause["line"].partition("; ")
    assert environment.startswith("environment: both nights ran commit ")
    assert likely.startswith("likely kernel 2.6.32 -> ")
    assert cause["time"]["step"]["change_s"] > 0
    assert cause["traces"] is not None  # Both runs have windows: those of the earlier one are of the first measurement.
    text = " ".join(place.call("check", "--suite", "tiny", *runs).stdout.split())
    assert f"cause of ddp (mean step, step), {cause['bad_run']} against {cause['good_run']}: environment:" in text
    assert f"next: observatory compare {cause['good_run']} {cause['bad_run']}" in text


@pytest.mark.usefixtures("tonight")
def test_the_rerun_is_in_the_suites_folder_and_not_in_its_table(place: RealNights) -> None:
    shown = place.call("suite", "show", "tiny", "--limit", "1", "--runs", str(place.folder / "runs"))
    assert shown.returncode == 0, shown.stderr
    assert "1 done" in shown.stdout
