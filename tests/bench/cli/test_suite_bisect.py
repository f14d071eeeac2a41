"""`observatory suite bisect` where there is nothing to walk: each is refused in one line, and nothing is measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bench.cli.main import run
from bench.errors import FINE, MISUSE
from bench.gate.nightly import judge_nights
from bench.store.history import History
from tests.bench.made.examples import make_machine
from tests.bench.made.fake_nights import DAY_NS, STEP_S, FakeNights
from tests.bench.made.planted_trees import PlantedTrees, git, plant

NIGHTS = 30
SLOW_NIGHTS = 6


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> PlantedTrees:
    """Two commits that change what is run, and a third that does not."""
    made = plant(tmp_path_factory.mktemp("trees") / "repository", 2, {})
    (made.folder / "notes").write_text("nothing that is run\n")
    git(made.folder, "add", "--all")
    git(made.folder, "commit", "--quiet", "--message=notes")
    return replace(made, commits=(*made.commits, git(made.folder, "rev-parse", "HEAD")))


@pytest.fixture
def slow(tmp_path: Path) -> Callable[..., list[str]]:
    """Makes a history in which `ddp` is slower since a commit, and returns the options that name it."""

    def make(good: str, bad: str, *, is_dirty: bool = False) -> list[str]:
        url = f"sqlite:///{tmp_path / 'history.sqlite'}"
        with History(url) as history:
            nights = FakeNights(history, first_ns=time.time_ns() - (NIGHTS + SLOW_NIGHTS) * DAY_NS)
            for number in range(NIGHTS + SLOW_NIGHTS):
                is_slow = number >= NIGHTS
                machine = replace(
                    make_machine(), commit=bad if is_slow else good, is_dirty=is_dirty if is_slow else False
                )
                nights.add(number, {"ddp": STEP_S * (1.08 if is_slow else 1.0), "fsdp": STEP_S}, machine=machine)
            judge_nights(history, "nightly")
        return ["--store", url, "--runs", str(tmp_path / "runs")]

    return make


def _refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run(["suite", "bisect", *words]) == MISUSE
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_bad_input_is_refused_in_one_line(
    slow: Callable[..., list[str]], trees: PlantedTrees, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad, _ = trees.commits
    options = [*slow(good, bad), "--repository", str(trees.folder)]
    assert 'case "dpp" is in no suite of this history; it has ddp, fsdp' in _refusal(["dpp", *options], capsys)
    assert 'case "fsdp": no figure of it is worse' in _refusal(["fsdp", *options], capsys)
    assert "is worse; `observatory check` shows what is" in _refusal(
        ["ddp", "--metric", "peak memory", *options], capsys
    )
    assert 'suite "other" has no run in this history' in _refusal(["ddp", "--suite", "other", *options], capsys)
    assert "commit ffffffffffff is gone" in _refusal(["ddp", "--good", "f" * 40, *options], capsys)
    assert f"commit {bad[:7]} is not an ancestor of {good[:7]}" in _refusal(
        ["ddp", "--good", bad, "--bad", good, *options], capsys
    )
    elsewhere = [*options[:-1], str(tmp_path)]
    assert "is not a git repository; name the folder of a clone" in _refusal(["ddp", *elsewhere], capsys)
    assert not (tmp_path / "runs").exists()


def test_a_tree_that_is_in_no_commit_is_refused(
    slow: Callable[..., list[str]], trees: PlantedTrees, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad, _ = trees.commits
    options = [*slow(good, bad, is_dirty=True), "--repository", str(trees.folder)]
    assert "ran from a tree with changes that are in no commit; name a commit with --bad" in _refusal(
        ["ddp", *options], capsys
    )


def test_commits_that_change_nothing_that_is_run_are_no_cause(
    slow: Callable[..., list[str]], trees: PlantedTrees, capsys: pytest.CaptureFixture[str]
) -> None:
    _, same, notes = trees.commits
    assert run(["suite", "bisect", "ddp", *slow(same, notes), "--repository", str(trees.folder)]) == FINE
    assert "the environment and no commit: none changes the code that runs" in capsys.readouterr().out
