"""Races on a simulated engine: the winner that was made to win, what is dropped, kept, resumed, and fits a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.analysis.race.looks import LOOKS, MOST_ROUNDS
from bench.analysis.race.race import RaceCase, RaceEnd, race, race_suite
from bench.analysis.race.report import COLUMNS, MOST_LINES, race_document, race_page, sentence
from bench.errors import Misuse
from bench.rank.messages import FailureCause
from bench.report.table import Table
from bench.session.case_args import CaseArgs
from bench.store.history import History
from bench.store.suite_record import CaseOutcome
from bench.suite.plan import PlannedCase, SuitePlan
from bench.suite.results import read_result
from tests.bench.made.examples import SMALL, small_case
from tests.bench.made.fake_engine import FakeEngine
from tests.bench.made.fake_suites import Breaks, FakeNight

NO_MEMORY = FailureCause(kind="killed", rank=1, step=0, text="rank 1 was killed by SIGKILL in step 0: out of memory")
RANKS = {"single": 1, "ddp": 2, "fsdp": 2, "zero1": 2}
BYTES = {"single": 0.0, "ddp": 2.0, "fsdp": 3.0, "zero1": 2.0}
"""What each strategy sends in a step, in sizes of the model, as on a link that others do not use."""


@dataclass
class Ranks:
    """Seconds of the steps of ranks that compute, sleep, and share a link. noise: of a trial, on logarithms."""

    seed: int
    compute_s: float = 0.1
    link_s: float = 0.01  # To send one size of the model.
    noise: float = 0.03
    factors: Mapping[str, float] = field(default_factory=dict)
    sleeps_s: Mapping[tuple[str, int], float] = field(default_factory=dict)

    def trial(self, strategy: str, trial: int) -> list[list[float]]:
        """Return the measured steps of each rank in one trial."""
        random = np.random.default_rng([self.seed, trial, sorted(RANKS).index(strategy)])
        base_s = self.compute_s * (2 if strategy == "single" else 1) + BYTES[strategy] * self.link_s
        base_s *= self.factors.get(strategy, 1.0) * float(np.exp(self.noise * random.normal()))
        return [[base_s + self.sleeps_s.get((strategy, rank), 0.0)] * 3 for rank in range(RANKS[strategy])]


class Trials:
    """The trials of a strategy, of which there is no end."""

    def __init__(self, ranks: Ranks, strategy: str) -> None:
        self._ranks, self._strategy = ranks, strategy

    def __getitem__(self, trial: int) -> list[list[float]]:
        """The trial."""
        return self._ranks.trial(self._strategy, trial)


@dataclass
class RaceNight(FakeNight):
    """A night whose engines have simulated ranks."""

    ranks: Ranks = field(default_factory=lambda: Ranks(1))

    def open_engine(self) -> FakeEngine:
        """The next engine."""
        self.runs.mkdir(exist_ok=True)
        breaks: Breaks = self.breaks.pop(0) if self.breaks else {}
        steps: Any = {strategy: Trials(self.ranks, strategy) for strategy in RANKS}
        self.engines.append(FakeEngine(self.machine, steps, breaks, runs=self.runs))
        return self.engines[-1]

    def race(self, *names: str, **options: Any) -> RaceEnd:
        """Race strategies."""
        cases = [RaceCase(name=name, args=CaseArgs(strategy=name), is_plain=name == "single") for name in names]
        refusals = options.pop("refusals", {})
        estimates_s = options.pop("estimates_s", {})
        suite = race_suite(cases, "choose", 60.0)
        plan = SuitePlan(
            suite=suite,
            cases=tuple(
                PlannedCase(
                    suite_case=case,
                    case=small_case(case.name, RANKS[case.name], trials=MOST_ROUNDS, model=SMALL),
                    refusal=refusals.get(case.name),
                    estimate_s=estimates_s.get(case.name),
                )
                for case in suite.cases
            ),
        )
        clock_s = lambda: len(self.orders) * self.trial_s  # noqa: E731
        with self.session() as session:
            return race(cases, plan, session, display=self.display, clock_s=clock_s, **options)


@pytest.fixture
def night(tmp_path: Path) -> RaceNight:
    """A folder, a store and engines."""
    return RaceNight(tmp_path)


def outcomes(end: RaceEnd) -> dict[str, CaseOutcome | None]:
    """How the cases ended, as the suite run's own ledger says."""
    assert end.result.folder is not None
    return {case.name: case.outcome for case in read_result(end.result.folder).cases}


# Winners that were made to win


def sleeping(seed: int) -> tuple[Ranks, str, Breaks]:
    """Rank 1 of ddp sleeps for as long as a third of a step, so that fsdp is faster."""
    return Ranks(seed, sleeps_s={("ddp", 1): 0.04, ("zero1", 0): 0.06}), "fsdp", {}


def capped(seed: int) -> tuple[Ranks, str, Breaks]:
    """Over a link of a tenth of the rate, one rank that sends nothing computes faster than two."""
    return Ranks(seed, link_s=0.1), "single", {}


def limited(seed: int) -> tuple[Ranks, str, Breaks]:
    """ddp and zero1 would be faster than fsdp, and have not enough memory."""
    return Ranks(seed), "fsdp", {("ddp", 0): NO_MEMORY, ("zero1", 2): NO_MEMORY}


@pytest.mark.parametrize("made", [sleeping, capped, limited])
@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 40), marks=pytest.mark.slow)])
def test_the_winner_that_was_made_to_win_is_named(
    tmp_path: Path, made: Callable[[int], tuple[Ranks, str, Breaks]], seeds: range
) -> None:
    for seed in seeds:
        ranks, expected, breaks = made(seed)
        night = RaceNight(tmp_path / str(seed), breaks=[breaks], ranks=ranks)
        night.folder.mkdir()
        end = night.race("single", "ddp", "fsdp", "zero1")
        assert end.referee.standing.winner == expected, seed
        assert sentence(end).startswith(f"{expected} pays: "), seed


# What is dropped, and what goes on


def test_a_dropped_case_is_measured_no_more_and_the_ledger_says_why(night: RaceNight) -> None:
    night.ranks = Ranks(1, factors={"fsdp": 3.0, "ddp": 1.12})
    end = night.race("ddp", "fsdp", "zero1")
    assert outcomes(end) == {"ddp": "dropped", "fsdp": "dropped", "zero1": "done"}
    assert night.orders.count(("fsdp", LOOKS[0] - 1)) == 1
    assert ("fsdp", LOOKS[0]) not in night.orders
    reason = end.end.state.case("fsdp").reason
    assert reason is not None
    assert reason.startswith("zero1 is 3.")
    assert end.end.outcome == "done"


@pytest.mark.parametrize(
    ("round_", "reason"), [(1, "no case has reached the first look"), (LOOKS[0] + 1, "no case is left")]
)
def test_a_race_whose_cases_all_fail_has_no_winner(night: RaceNight, round_: int, reason: str) -> None:
    night.breaks = [{("ddp", round_): NO_MEMORY, ("zero1", round_): NO_MEMORY}]
    end = night.race("ddp", "zero1")
    assert outcomes(end) == {"ddp": "failed", "zero1": "failed"}
    assert sentence(end) == f"no winner: {reason}"


def test_every_other_round_takes_the_cases_in_reverse(night: RaceNight) -> None:
    night.race("ddp", "zero1", budget_s=None)
    assert night.orders[:4] == [("ddp", 0), ("zero1", 0), ("zero1", 1), ("ddp", 1)]


def test_a_run_that_ended_early_has_as_many_trials_as_it_measured(night: RaceNight) -> None:
    night.ranks = Ranks(1, factors={"fsdp": 3.0})
    end = night.race("fsdp", "zero1")
    assert {run.case.strategy: (run.outcome, run.case.trials, run.trials_done) for run in night.stored()} == {
        "fsdp": ("done", LOOKS[0], LOOKS[0]),
        "zero1": ("done", LOOKS[0], LOOKS[0]),
    }
    first, second = night.stored()
    assert first.in_turn_with == (second.run,)
    with History(night.url) as history:
        (record,) = history.suite_runs(9)
    assert (record.suite, record.cases, record.id) == ("choose", {"dropped": 1, "done": 1}, end.result.id)


def test_equals_run_to_the_last_round_without_a_winner(night: RaceNight) -> None:
    night.ranks = Ranks(4, noise=0.1)
    end = night.race("ddp", "zero1")
    assert end.referee.standing.winner is None
    assert len(night.orders) == 2 * MOST_ROUNDS
    assert sentence(end).startswith("no winner between ")


def test_quiet_equals_are_called_the_same_early(night: RaceNight) -> None:
    night.ranks = Ranks(1, noise=0.002)
    end = night.race("ddp", "zero1")
    assert len(night.orders) < 2 * MOST_ROUNDS
    assert "they differ by less than 2 %" in sentence(end)
    assert outcomes(end) == {"ddp": "done", "zero1": "done"}


def test_a_case_that_cannot_run_or_fails_leaves_with_its_reason(night: RaceNight) -> None:
    night.breaks = [{("zero1", 1): NO_MEMORY}]
    night.ranks = Ranks(1, factors={"fsdp": 1.5})
    end = night.race("single", "ddp", "fsdp", "zero1", refusals={"single": "it needs 8 GPUs"})
    assert outcomes(end) == {"single": "skipped", "ddp": "done", "fsdp": "dropped", "zero1": "failed"}
    assert end.end.state.case("zero1").reason == NO_MEMORY.text
    assert end.referee.standing.winner == "ddp"


def test_the_options_of_the_winner_are_shown(night: RaceNight) -> None:
    night.ranks = Ranks(1, factors={"fsdp": 3.0})
    end = night.race("ddp", "fsdp")
    first = replace(end.cases[0], args=replace(end.cases[0].args, options=("bucket_mb=100.0",)))
    assert race_page(replace(end, cases=(first, *end.cases[1:])))[-2] == "ddp has --option bucket_mb=100.0"
    assert not any(str(block).startswith("ddp has") for block in race_page(end))


# Interruptions


def test_an_interrupted_race_goes_on_with_its_rounds_and_without_what_was_dropped(night: RaceNight) -> None:
    night.ranks = Ranks(1, factors={"fsdp": 3.0, "ddp": 1.1})
    night.breaks = [{("zero1", 5): KeyboardInterrupt()}]
    names = ("ddp", "fsdp", "zero1")
    begun = night.race(*names)
    assert begun.end.is_interrupted
    assert outcomes(begun) == {"ddp": "interrupted", "fsdp": "dropped", "zero1": "interrupted"}
    assert "with the same options continues" in sentence(begun)
    end = night.race(*names, resumed=begun.result.id)
    assert end.referee.standing.winner == "zero1"
    assert outcomes(end) == {"ddp": "dropped", "fsdp": "dropped", "zero1": "done"}
    assert {strategy for strategy, _ in night.engines[1].orders} == {"ddp", "zero1"}
    assert min(trial for _, trial in night.engines[1].orders) == 5


def test_a_resumed_race_does_not_compare_rounds_of_another_day(night: RaceNight) -> None:
    """zero1 was left out for the budget; the machine is 3 % slower now, and all cases are equal."""
    night.ranks, night.trial_s = Ranks(1, noise=0.003), 1.0
    names = ("ddp", "fsdp", "zero1")
    begun = night.race(*names, budget_s=9.0)
    assert outcomes(begun) == {"ddp": "left_out", "fsdp": "left_out", "zero1": "left_out"}
    measured = len(night.orders)
    night.ranks = Ranks(2, compute_s=0.103, noise=0.003)
    end = night.race(*names, budget_s=1000.0, resumed=begun.result.id)
    assert outcomes(end)["zero1"] == "left_out"
    assert "rounds of different days are not compared" in (end.end.state.case("zero1").reason or "")
    assert "zero1" not in {strategy for strategy, _ in night.orders[measured:]}


def test_a_case_that_was_left_out_is_not_done_once_another_has_won(night: RaceNight) -> None:
    night.ranks, night.trial_s = Ranks(1, factors={"fsdp": 3.0}), 1.0
    names = ("ddp", "fsdp", "zero1")
    begun = night.race(*names, budget_s=13.0, estimates_s=dict.fromkeys(names, 1.5 * MOST_ROUNDS))
    assert begun.referee.standing.winner == "ddp"
    end = night.race(*names, resumed=begun.result.id)
    assert outcomes(end) == {"ddp": "done", "fsdp": "dropped", "zero1": "left_out"}
    assert all(run.case.trials for run in night.stored())


# Budgets


def test_a_budget_measures_the_rounds_that_fit_and_a_resumed_race_has_more(night: RaceNight) -> None:
    night.ranks, night.trial_s = Ranks(4, noise=0.1), 1.0
    begun = night.race("ddp", "zero1", budget_s=13.0)
    assert len(night.orders) == 12
    assert outcomes(begun) == {"ddp": "left_out", "zero1": "left_out"}
    assert begun.end.outcome == "done"
    end = night.race("ddp", "zero1", budget_s=9.0, resumed=begun.result.id)
    assert len(night.orders) == 20
    assert {run.trials_done for run in night.stored()} == {10}
    assert outcomes(end) == {"ddp": "left_out", "zero1": "left_out"}


def test_without_a_winner_the_time_that_would_tell_is_given(night: RaceNight) -> None:
    night.ranks, night.trial_s = Ranks(1, noise=0.02, factors={"ddp": 1.03}), 30.0
    end = night.race("ddp", "zero1", budget_s=6 * 60.0)
    assert sentence(end).startswith("no winner yet between zero1 and ddp; about ")
    assert " min more would decide" in sentence(end)


def test_the_last_cases_are_left_out_where_not_all_fit_the_budget(night: RaceNight) -> None:
    night.ranks, night.trial_s = Ranks(1, factors={"fsdp": 1.5}), 1.0
    end = night.race("ddp", "fsdp", "zero1", "single", budget_s=13.0)
    assert outcomes(end)["zero1"] == "left_out"
    assert ("zero1", 1) not in night.orders
    assert ("single", LOOKS[0] - 1) in night.orders


def test_a_budget_in_which_not_two_cases_fit_is_refused_with_what_it_would_take(night: RaceNight) -> None:
    estimates_s = dict.fromkeys(("ddp", "zero1"), 10.0 * MOST_ROUNDS)
    with pytest.raises(Misuse, match=r"--budget 1 min is too small: .* takes about 1 min 20 s; use a larger --budget"):
        night.race("ddp", "zero1", budget_s=60.0, estimates_s=estimates_s)
    assert not night.runs.exists()


def test_a_known_time_leaves_cases_out_before_they_begin(night: RaceNight) -> None:
    estimates_s = dict.fromkeys(("ddp", "zero1", "fsdp"), 10.0 * MOST_ROUNDS)
    end = night.race("ddp", "zero1", "fsdp", budget_s=90.0, estimates_s=estimates_s)
    assert outcomes(end)["fsdp"] == "left_out"
    assert {strategy for strategy, _ in night.orders} == {"ddp", "zero1"}


def test_a_case_of_unknown_time_is_not_left_out_in_place_of_one_that_is_too_slow(night: RaceNight) -> None:
    night.ranks, night.trial_s = Ranks(1), 1.0
    end = night.race("ddp", "zero1", "fsdp", budget_s=30.0, estimates_s={"zero1": 25.0 * MOST_ROUNDS})
    assert outcomes(end)["zero1"] == "left_out"
    assert {strategy for strategy, _ in night.orders} == {"ddp", "fsdp"}


def test_a_refusal_names_its_strategy_once(night: RaceNight) -> None:
    with pytest.raises(Misuse, match="and 1 can: single: it needs 8 GPUs"):
        night.race("single", "ddp", refusals={"single": "single: it needs 8 GPUs"})


def test_a_race_of_one_case_is_refused(night: RaceNight) -> None:
    with pytest.raises(Misuse, match="needs two cases that can run here, and 1 can: single: it needs 8 GPUs"):
        night.race("single", "ddp", refusals={"single": "it needs 8 GPUs"})


# The page


def test_the_page_has_ten_lines_at_most_the_fastest_first(night: RaceNight) -> None:
    night.ranks = Ranks(1, factors={"fsdp": 1.5})
    end = night.race("fsdp", "ddp", "single", "zero1", refusals={"single": "it needs 8 GPUs"})
    table, line, last = race_page(end)
    assert isinstance(table, Table)
    assert len(list(table.rows)) + 3 <= MOST_LINES
    bars = [len(str(row[1])) for row in table.rows]
    assert bars == sorted(bars, reverse=True)
    assert [row[0] for row in table.rows][-1] == "fsdp"
    assert line == "single skipped: it needs 8 GPUs"
    assert str(last) == sentence(end)


def test_a_case_that_never_began_is_named_without_a_reason(night: RaceNight) -> None:
    night.breaks = [{("ddp", 0): KeyboardInterrupt()}]
    end = night.race("ddp", "fsdp")
    cases = tuple(replace(case, outcome=None, reason=None, summary=None) for case in end.result.cases)
    lines = [str(line) for line in race_page(replace(end, result=replace(end.result, cases=cases)))]
    assert "ddp missing; fsdp missing" in lines


def test_a_program_reads_the_winner_and_each_case(night: RaceNight) -> None:
    night.ranks = Ranks(1, factors={"fsdp": 1.5})
    end = night.race("fsdp", "ddp", "single", refusals={"single": "it needs 8 GPUs"})
    document = race_document(end)
    assert (document["winner"], document["undecided"], document["conclusion"]) == ("ddp", [], sentence(end))
    first, dropped, skipped = document["cases"]
    assert (first["case"], first["outcome"], first["cost_ratio"]) == ("ddp", "done", None)
    assert first["tokens_per_second_low"] <= first["tokens_per_second"] <= first["tokens_per_second_high"]
    assert (dropped["case"], dropped["outcome"], dropped["dropped_by"]) == ("fsdp", "dropped", "ddp")
    assert dropped["cost_ratio_low"] <= dropped["cost_ratio"] <= dropped["cost_ratio_high"]
    assert (skipped["case"], skipped["reason"], skipped["rounds"]) == ("single", "it needs 8 GPUs", 0)
    assert set(first) == set(COLUMNS)


def test_a_program_reads_which_cases_are_equal(night: RaceNight) -> None:
    night.ranks = Ranks(1, noise=0.001)
    document = race_document(night.race("ddp", "zero1"))
    assert (document["winner"], document["are_equal"], document["seconds_to_tell"]) == (None, True, None)
    assert sorted(document["undecided"]) == ["ddp", "zero1"]


def test_a_race_for_memory_names_the_smallest(night: RaceNight) -> None:
    """Simulated ranks hold 1 and 2 MB, so two ranks hold more than one."""
    end = night.race("ddp", "single", objective="memory")
    assert end.referee.standing.winner == "single"
    assert sentence(end) == "single pays: ddp needs 2.00x [2.00, 2.00] of its memory"
