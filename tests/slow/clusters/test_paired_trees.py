"""A night on real ranks whose commit is slower: pairs of trees name the code, and a walk names the commit."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.metrics.results import RUN_STEP_SECONDS
from tests.bench.made.planted_trees import PlantedTrees, git, plant
from tests.bench.made.real_nights import RealNights

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SLEEP_S = 0.2
"""Far more than a step takes on a busy machine."""


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> PlantedTrees:
    """A good commit, one that is as good, and one whose steps sleep."""
    return plant(tmp_path_factory.mktemp("trees") / "repository", 3, {2: SLEEP_S})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, trees: PlantedTrees) -> Iterator[RealNights]:
    """Twenty nights of the good commit, measured from its own tree; the present tree is the slow one."""
    with tempfile.TemporaryDirectory(prefix="pairs-") as temporary:  # A short path, for the sockets of ranks.
        variables = {"PYTHONPATH": str(trees.folder), "TMPDIR": temporary}
        place = RealNights(tmp_path_factory.mktemp("night"), variables)
        git(trees.folder, "checkout", "--quiet", trees.commits[0])
        place.make_before(faster=1.0)
        git(trees.folder, "checkout", "--quiet", trees.commits[2])
        yield place
        assert list(Path(temporary).glob("observatory-tree-*")) == []


@pytest.fixture(scope="module")
def tonight(place: RealNights) -> subprocess.CompletedProcess[str]:
    """The night of the slow commit."""
    return place.run_suite()


def test_the_night_names_the_code_and_confirms_it(
    place: RealNights, trees: PlantedTrees, tonight: subprocess.CompletedProcess[str]
) -> None:
    assert tonight.returncode == 0, tonight.stderr
    good, _, slow = trees.commits
    assert f"ddp: 8 pairs of commits {good[:7]} and {slow[:7]} show whether the code is the cause" in tonight.stderr
    checked = place.call("check", "--suite", "tiny", "--format", "json")
    assert checked.returncode == 5, checked.stderr
    (document,) = json.loads(checked.stdout)
    verdict = next(each for each in document["verdicts"] if each["metric"] == RUN_STEP_SECONDS.name)
    assert verdict["outcome"] == "confirmed", tonight.stderr
    found = verdict["attribution"]
    assert found["outcome"] in ("code", "both")
    assert (found["good_commit"], found["commit"], found["pairs"]) == (good, slow, 8)
    assert found["code"]["low"] > 1.0
    shown = place.call("check", "--suite", "tiny")
    words = " ".join(shown.stdout.split())
    assert f"in 8 pairs of {good[:7]} and {slow[:7]}" in words


@pytest.mark.usefixtures("tonight")
def test_the_walk_names_the_commit_that_sleeps(place: RealNights, trees: PlantedTrees) -> None:
    walked = place.call("suite", "bisect", "ddp", "--pairs", "6", "--runs", str(place.folder / "runs"))
    assert walked.returncode == 0, walked.stderr
    slow = trees.commits[2]
    assert "2 commits from" in walked.stderr
    assert walked.stdout.startswith("ddp, "), walked.stdout
    assert f"commit {git(trees.folder, 'rev-parse', '--short', slow)} commit 2: +" in " ".join(walked.stdout.split())


@pytest.mark.usefixtures("tonight")
def test_a_commit_that_was_pushed_away_is_refused_in_one_line(place: RealNights, trees: PlantedTrees) -> None:
    words = ("--good", "f" * 40, "--runs", str(place.folder / "runs"))
    walked = place.call("suite", "bisect", "ddp", *words)
    assert walked.returncode == 2
    (line,) = walked.stderr.splitlines()
    assert f"commit ffffffffffff is gone: {trees.folder} lacks it: it was force-pushed away" in line
