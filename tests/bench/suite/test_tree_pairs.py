"""After the reruns, a suite run measures the last good tree and the present one in turn, if the gate wants to know."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from bench.engines.wire.trees import RankTree
from bench.gate.nightly import judge_nights, suspected_cases
from bench.gate.verdicts import Verdict
from bench.machine.machine import Machine
from bench.store.history import History
from bench.suite.run import SuiteEnd, SuiteRunner
from bench.suite.tree_pairs import TreePairs
from collectors.metrics.results import RUN_STEP_SECONDS
from tests.bench.made.examples import make_machine, small_case
from tests.bench.made.fake_engine import FakeEngine
from tests.bench.made.fake_nights import DAY_NS, FakeNights
from tests.bench.made.fake_suites import Breaks, FakeNight, plan_of, planned
from tests.bench.made.planted_trees import PlantedTrees, plant

pytestmark = pytest.mark.slow

STEP_S, SLOW_S = 0.1, 0.106
NIGHTS = 30
PAIRS = 8
NOISE = (1.0, 1.004, 0.998, 1.002, 0.996, 1.001, 0.999, 1.003)
"""Of eight trials."""


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> PlantedTrees:
    """Two commits, and a third that cannot be imported."""
    return plant(tmp_path_factory.mktemp("trees") / "repository", 3, {}, broken=frozenset({2}))


class PairedNight(FakeNight):
    """Thirty nights of a good commit, and tonight's of another one, whose ranks are slower.

    tree_steps_s: seconds of a step of each commit tonight. opened: the trees that engines were opened for.
    """

    def prepare(
        self,
        repository: Path,
        good: str,
        present: str,
        tree_steps_s: Mapping[str, float],
        breaks: Breaks | None = None,
        *,
        is_dirty: bool = False,
        is_judged: bool = True,
    ) -> None:
        """Fill the history, and let the suite run measure pairs. is_judged: the nights before were judged."""
        self.runs.mkdir(exist_ok=True)
        self.machine = _machine(present, is_dirty=is_dirty)
        self.opened: list[RankTree] = []
        with History(self.url) as history:
            nights = FakeNights(history, suite="smoke", first_ns=time.time_ns() - NIGHTS * DAY_NS)
            for number in range(NIGHTS):
                steps_s = nights.trials(STEP_S)
                nights.add_run(number, "ddp", steps_s, case=small_case("ddp", 2, trials=3), machine=_machine(good))
                nights.add_record(number, done=1)
            if is_judged:
                judge_nights(history, "smoke")

        def open_tree(tree: RankTree) -> FakeEngine:
            self.opened.append(tree)
            assert tree.commit is not None
            assert tree.folder.is_dir()
            trials = [[[tree_steps_s[tree.commit] * noise] * 3] * 2 for noise in NOISE]
            return FakeEngine(make_machine(), {"ddp": trials}, breaks, runs=self.runs)

        def pairs(runner: SuiteRunner, left_s: float | None) -> bool:
            return TreePairs(
                suite="smoke",
                suite_run=runner.ledger.folder.name,
                cases={each.suite_case.name: each for each in runner.plan.cases},
                session=runner.session,
                order_of=runner.order_again,
                watch=runner.save_now_and_then,
                repository=repository,
            ).run(left_s)

        self.open_tree, self.pairs = open_tree, pairs
        self.suspects = suspected_cases

    def open_engine(self) -> FakeEngine:
        """An engine of tonight's tree."""
        trials = [[[SLOW_S * noise] * 3] * 2 for noise in NOISE]
        self.engines.append(FakeEngine(self.machine, {"ddp": trials}, runs=self.runs))
        return self.engines[-1]

    def tonight(self, **choice: float) -> tuple[SuiteEnd, Verdict]:
        """Run the suite; return how it ended, and the verdict on its step."""
        end = self.run(plan_of(planned("ddp", estimate_s=6.0)), **choice)
        with History(self.url) as history:
            verdicts = judge_nights(history, "smoke")
        return end, next(verdict for verdict in verdicts if verdict.key.metric == RUN_STEP_SECONDS.name)


def _machine(commit: str, *, is_dirty: bool = False) -> Machine:
    return replace(make_machine(), commit=commit, is_dirty=is_dirty)


def test_a_slower_commit_is_told_as_code_and_confirmed_tonight(tmp_path: Path, trees: PlantedTrees) -> None:
    good, present, _ = trees.commits
    night = PairedNight(tmp_path)
    night.prepare(trees.folder, good, present, {good: STEP_S, present: SLOW_S})
    end, verdict = night.tonight()
    assert (end.outcome, end.is_interrupted) == ("done", False)
    assert [tree.commit for tree in night.opened] == [good, present]
    assert not any(tree.folder.exists() for tree in night.opened)
    assert verdict.outcome == "confirmed"
    assert verdict.attribution is not None
    assert (verdict.attribution.outcome, verdict.attribution.pairs) == ("code", PAIRS)
    assert verdict.attribution.code is not None
    assert verdict.attribution.code.ratio == pytest.approx(1.06, rel=0.01)
    assert any("8 pairs of commits" in line for line in night.display.lines)
    notes = [summary.purpose.note for summary in night.stored() if summary.purpose.member is None]
    assert len(notes) == 2
    assert all(note is not None and note.startswith("pair of trees for ddp of") for note in notes)


def test_nights_that_nobody_has_judged_yet_are_judged_before_tonight(tmp_path: Path, trees: PlantedTrees) -> None:
    good, present, _ = trees.commits
    night = PairedNight(tmp_path)
    night.prepare(trees.folder, good, present, {good: STEP_S, present: SLOW_S}, is_judged=False)
    _, verdict = night.tonight()
    assert (verdict.outcome, verdict.suite_run[:2]) == ("confirmed", "20")
    assert verdict.attribution is not None


def test_two_equal_trees_move_the_change_to_the_environment(tmp_path: Path, trees: PlantedTrees) -> None:
    good, present, _ = trees.commits
    night = PairedNight(tmp_path)
    night.prepare(trees.folder, good, present, {good: SLOW_S, present: SLOW_S})
    _, verdict = night.tonight()
    assert verdict.attribution is not None
    assert verdict.attribution.outcome == "environment"
    assert verdict.attribution.environment is not None
    assert math.log(verdict.attribution.environment.ratio) == pytest.approx(math.log(1.06), abs=0.02)


def test_a_budget_that_is_too_small_leaves_the_pairs_out_and_says_so(tmp_path: Path, trees: PlantedTrees) -> None:
    good, present, _ = trees.commits
    night = PairedNight(tmp_path)
    night.prepare(trees.folder, good, present, {})
    end, verdict = night.tonight(budget_s=80.0)
    assert end.outcome == "done"
    assert night.opened == []
    assert (
        "ddp: code or environment is not measured: pairs of trees take about 92 s, and the budget leaves 80 s"
        in night.display.lines
    )
    assert verdict.attribution is None


@pytest.mark.parametrize(
    ("which", "says"),
    [
        ("gone", "code or environment: unknown, commit ffffffffffff is gone: "),
        ("broken", "cannot be run: ModuleNotFoundError: No module named 'no_such_module'"),
        ("dirty", "ran from a tree with uncommitted changes"),
        ("no repository", "is not a git repository; name the folder of a clone of this program"),
    ],
)
def test_what_prevents_pairs_is_said_and_the_page_stays(
    which: str, says: str, tmp_path: Path, trees: PlantedTrees
) -> None:
    good, present, broken = trees.commits
    night = PairedNight(tmp_path)
    before = "f" * 40 if which == "gone" else good
    repository = tmp_path if which == "no repository" else trees.folder
    tonight = broken if which == "broken" else present
    night.prepare(repository, before, tonight, {}, is_dirty=which == "dirty")
    end, verdict = night.tonight()
    assert end.outcome == "done"
    assert night.opened == []
    assert any(says in line for line in night.display.lines), night.display.lines
    assert verdict.outcome in ("suspicion", "regression", "confirmed")


def test_ctrl_c_in_the_middle_leaves_nothing_behind(tmp_path: Path, trees: PlantedTrees) -> None:
    good, present, _ = trees.commits
    night = PairedNight(tmp_path)
    night.prepare(trees.folder, good, present, {good: STEP_S, present: SLOW_S}, {("ddp", 3): KeyboardInterrupt()})
    end, verdict = night.tonight()
    assert end.is_interrupted
    assert len(night.opened) == 2
    assert not any(tree.folder.exists() for tree in night.opened)
    assert verdict.attribution is None
