"""The range of commits in the line of a cause, counted in a real repository, or with the reason why not."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from bench.gate.cause.changes import Reading
from bench.gate.cause.commits import tree_words
from bench.gate.nightly import judge_nights
from bench.gate.verdicts import Verdict
from bench.store.history import History
from collectors.metrics.results import RUN_STEP_SECONDS
from tests.bench.made.examples import make_machine
from tests.bench.made.fake_nights import STEP_S, FakeNights


def _git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=ada", "-c", "user.email=ada@example.org")
    command = ["git", "-C", str(folder), *who, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    _git(folder, "init", "-q", "-b", "main")
    for number in range(5):
        _git(folder, "commit", "-q", "--allow-empty", "-m", f"change {number}")
    return folder


def _words(repository: Path, before: str, now: str, *, is_dirty: bool = False) -> str | None:
    machine = replace(make_machine(), is_dirty=is_dirty)
    good = Reading(run="good", started_ns=1, machine=make_machine(), commit=before)
    bad = Reading(run="bad", started_ns=2, machine=machine, commit=now)
    return tree_words(good, bad, repository)


def test_commits_between_two_runs_are_counted(repository: Path) -> None:
    first, last = _git(repository, "rev-parse", "main~3"), _git(repository, "rev-parse", "main")
    ends = f"{first[:12]}..{last[:12]}"
    assert _words(repository, first, last) == f"commit {ends} (3 commits)"
    assert _words(repository, first, last, is_dirty=True) == f"commit {ends} (3 commits) with uncommitted changes"
    assert _words(repository, last, first) == f"commit {last[:12]}..{first[:12]} (3 commits back)"
    assert _words(repository, last, last) is None
    assert _words(repository, last, last, is_dirty=True) == "the same commit with uncommitted changes"


def test_a_commit_that_a_forced_push_removed_is_named(repository: Path) -> None:
    first, last = _git(repository, "rev-parse", "main~3"), _git(repository, "rev-parse", "main")
    gone = "the {} is gone from the repository"
    assert _words(repository, "d" * 40, last) == f"commit {'d' * 12}..{last[:12]} ({gone.format('first')})"
    assert _words(repository, first, "d" * 40) == f"commit {first[:12]}..{'d' * 12} ({gone.format('last')})"


def test_without_the_repository_the_range_stands_without_a_count(tmp_path: Path) -> None:
    assert _words(tmp_path, "a" * 40, "b" * 40) == f"commit {'a' * 12}..{'b' * 12} (not counted: no repository here)"


def _steps(history: History) -> list[Verdict]:
    return [each for each in judge_nights(history, "nightly") if each.key.metric == RUN_STEP_SECONDS.name]


def test_with_a_commit_every_night_the_range_is_in_the_line(history: History) -> None:
    nights = FakeNights(history)
    for number in range(24):
        level = STEP_S * (1.08 if number >= 18 else 1.0)
        nights.add(number, {"ddp": level}, commit=f"{number:02x}" * 20)
    last = _steps(history)[-1]
    assert last.outcome == "confirmed"
    assert last.cause is not None
    good, bad = (re.findall(r"run00(\d\d)-", run or "")[0] for run in (last.good_run, last.bad_run))
    assert f"; commit {int(good):02x}" in last.cause
    assert f"..{int(bad):02x}" in last.cause
    assert "none of them rare" in last.cause


def test_a_night_that_was_under_suspicion_is_not_the_last_good_run(history: History) -> None:
    nights = FakeNights(history)
    levels = [1.0] * 29 + [1.05] + [1.10] * 6  # Night 29 is unlikely, and was not measured again.
    for number, level in enumerate(levels):
        nights.add(number, {"ddp": STEP_S * level})
    verdicts = _steps(history)
    assert verdicts[29].outcome == "suspicion"
    last = verdicts[-1]
    assert (last.outcome, last.good_run) == ("confirmed", "run0028-ddp")
