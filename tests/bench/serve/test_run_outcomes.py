"""Runs are counted by strategy and outcome, by the store and not by what this process has seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.rank.messages import TrialOutcome
from bench.serve.history_source import AGAIN_S, HistorySource, RunOutcomes
from bench.store.history import History
from collectors.metrics.run_counts import RUNS
from tests.bench.made.examples import make_case, make_machine, make_summary


class Clock:
    """Stands until the test moves it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/history.sqlite"


@pytest.fixture
def keep(store: str) -> Callable[[str, str, TrialOutcome], None]:
    def keep(run: str, strategy: str, outcome: TrialOutcome) -> None:
        with History(store) as history:
            history.add(make_summary(run=run, case=make_case(strategy=strategy), outcome=outcome), make_machine())

    return keep


def _counts(outcomes: HistorySource) -> dict[tuple[str, str], float]:
    outcomes.ask()
    assert all(sample.metric == RUNS.name and owner == {} for sample, owner in outcomes.samples())
    return {(sample.labels["strategy"], sample.labels["outcome"]): sample.value for sample, _ in outcomes.samples()}


def _some(counts: dict[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    return {key: number for key, number in counts.items() if number}


def test_runs_of_each_strategy_are_counted_by_outcome_with_zeros(
    store: str, keep: Callable[[str, str, TrialOutcome], None]
) -> None:
    for number, outcome in enumerate(("done", "done", "failed", "timed_out", "interrupted")):
        keep(f"r{number}", "ddp", outcome)  # type: ignore[arg-type]
    keep("r9", "fsdp", "done")
    counts = _counts(HistorySource(store, [RunOutcomes()], on_notice=pytest.fail))
    assert counts == {
        ("ddp", "done"): 2,
        ("ddp", "failed"): 1,
        ("ddp", "timed_out"): 1,
        ("ddp", "interrupted"): 1,
        ("fsdp", "done"): 1,
        ("fsdp", "failed"): 0,
        ("fsdp", "timed_out"): 0,
        ("fsdp", "interrupted"): 0,
    }


def test_a_new_run_is_counted_at_once_and_a_changed_outcome_after_a_while(
    store: str, keep: Callable[[str, str, TrialOutcome], None]
) -> None:
    clock = Clock()
    keep("r0", "ddp", "interrupted")
    outcomes = HistorySource(store, [RunOutcomes(clock_s=clock)], on_notice=pytest.fail)
    assert _some(_counts(outcomes)) == {("ddp", "interrupted"): 1}
    keep("r1", "ddp", "done")
    assert _some(_counts(outcomes)) == {("ddp", "interrupted"): 1, ("ddp", "done"): 1}
    keep("r0", "ddp", "done")  # It was resumed.
    clock.now_s = AGAIN_S
    assert _some(_counts(outcomes)) == {("ddp", "done"): 2}


def test_an_exporter_that_starts_anew_counts_the_same(
    store: str, keep: Callable[[str, str, TrialOutcome], None]
) -> None:
    keep("r0", "ddp", "failed")
    assert _counts(HistorySource(store, [RunOutcomes()], on_notice=pytest.fail)) == _counts(
        HistorySource(store, [RunOutcomes()], on_notice=pytest.fail)
    )


def test_a_run_that_is_forgotten_counts_no_more(store: str, keep: Callable[[str, str, TrialOutcome], None]) -> None:
    keep("r0", "ddp", "done")
    keep("r1", "ddp", "done")
    outcomes = HistorySource(store, [RunOutcomes()], on_notice=pytest.fail)
    assert _counts(outcomes)["ddp", "done"] == 2
    with History(store) as history:
        history.forget("r0")
    assert _counts(outcomes)["ddp", "done"] == 1


def test_without_a_store_nothing_is_shown_and_what_was_counted_stays_when_it_goes(
    store: str, tmp_path: Path, keep: Callable[[str, str, TrialOutcome], None]
) -> None:
    notices: list[str] = []
    outcomes = HistorySource(store, [RunOutcomes()], on_notice=notices.append)
    assert _counts(outcomes) == {}
    keep("r0", "ddp", "done")
    assert _some(_counts(outcomes)) == {("ddp", "done"): 1}
    (tmp_path / "history.sqlite").write_bytes(b"no database")
    assert _some(_counts(outcomes)) == {("ddp", "done"): 1}
