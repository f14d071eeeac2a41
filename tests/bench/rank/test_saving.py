"""Checkpoints are saved between measured steps, timed, kept if asked for, and change no other figure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.case import NO_INSTRUMENTATION, Case, InstrumentationOptions
from bench.engines.local import LocalEngine
from bench.machine.disk import checkpoint_bytes
from bench.rank.messages import TrialEnded, TrialOrder
from bench.rank.saving import checkpoint_folder
from bench.results.trials import read_trials
from collectors.metrics.rank import CHECKPOINT_BYTES, SAVING_STEP_SECONDS, TOKENS
from collectors.sample_log import Reading, read
from tests.bench.made.examples import small_case
from workloads.core.checkpointing import check
from workloads.spec import SaveMode

SAVED = replace(small_case(steps=5, warm_up=1, trace_steps=0), save_every=2)
KEPT = InstrumentationOptions(keep_checkpoint=True)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    """Each test's folder is that of a run."""
    with LocalEngine(tmp_path_factory.getbasetemp()) as started:
        started.machine()
        yield started


def run(
    engine: LocalEngine, folder: Path, case: Case, options: InstrumentationOptions = NO_INSTRUMENTATION
) -> TrialEnded:
    order = TrialOrder(run=folder.name, trial=0, case=case, limit_s=60, instrumentation=options)
    return engine.run(order, lambda _: None)


def marks(folder: Path, rank: int = 0) -> list[str]:
    return [record.mark for record in read(folder / f"rank{rank}.jsonl").records if isinstance(record, Reading)]


def values(folder: Path, metric: str) -> list[float]:
    records = [record for record in read(folder / "rank0.jsonl").records if isinstance(record, Reading)]
    return [sample.value for record in records for sample in record.samples if sample.metric == metric]


def test_a_save_lies_between_measured_steps_and_leaves_nothing(engine: LocalEngine, tmp_path: Path) -> None:
    assert run(engine, tmp_path, SAVED).outcome == "done"
    expected = ["warm_up", *("measured", "measured", "checkpoint") * 2, "measured", "memory"]
    assert [marks(tmp_path, rank) for rank in range(2)] == [expected] * 2
    assert not checkpoint_folder(tmp_path, 0).exists()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_kept_checkpoint_is_whole(mode: SaveMode, engine: LocalEngine, tmp_path: Path) -> None:
    case = replace(SAVED, save_mode=mode)
    ended = run(engine, tmp_path, case, KEPT)
    assert ended.outcome == "done", ended.cause
    check(checkpoint_folder(tmp_path, 0), case, same_ranks=True)


def test_steps_while_a_checkpoint_is_written_count_as_nothing_else(engine: LocalEngine, tmp_path: Path) -> None:
    case = replace(SAVED, save_mode="async")
    assert run(engine, tmp_path, case).outcome == "done"
    step_marks = marks(tmp_path)
    assert step_marks.count("checkpoint") == 2
    assert step_marks.count("saving") >= 2  # The first step after each copy always begins while it is written.
    assert step_marks.count("measured") == case.steps
    assert len(values(tmp_path, SAVING_STEP_SECONDS.name)) == step_marks.count("saving")
    step_tokens = case.shape.tokens / case.ranks
    assert max(values(tmp_path, TOKENS.name)) == step_tokens * (case.warm_up + case.steps)
    (trial,) = read_trials(tmp_path, case.ranks).trials
    assert trial.saves is not None
    assert trial.saves.step_s is not None
    assert trial.saves.stall_s <= trial.saves.write_s


def test_the_written_bytes_are_those_predicted_and_torchs_own(engine: LocalEngine, tmp_path: Path) -> None:
    """Less than 2 KB for each tensor; ddp's ranks share what each holds whole."""
    assert run(engine, tmp_path, SAVED).outcome == "done"
    (trial,) = read_trials(tmp_path, SAVED.ranks).trials
    assert trial.saves is not None
    tensors = 4 * (3 + 9 * SAVED.shape.layers) + 8
    assert 0 < trial.saves.total_bytes - checkpoint_bytes(SAVED) < 2000 * tensors
    assert trial.saves.rank_bytes < trial.saves.total_bytes
    assert max(values(tmp_path, CHECKPOINT_BYTES.name)) <= trial.saves.rank_bytes


@pytest.mark.slow
def test_saves_and_windows_meet_in_one_place(engine: LocalEngine, tmp_path: Path) -> None:
    case = replace(SAVED, trace_steps=1)
    assert run(engine, tmp_path, case, InstrumentationOptions(trace_every=2)).outcome == "done"
    group = ["measured", "measured", "checkpoint", "traced"]
    assert marks(tmp_path) == ["warm_up", *group * 2, "measured", "traced", "memory"]
