"""Who is late in a watched job: named right or not at all, and nobody without a fault."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
import pytest

from bench.results.watched.details import Late
from bench.results.watched.job import Job, read_job
from bench.results.watched.late import find_late
from bench.results.watched.rank_files import Attempt
from tests.bench.results.watched.made_ranks import Fault, MadeSteps, Waits, made_steps, write_run

WAITS = get_args(Waits)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A read job, whose columns others take the place of."""
    return read_job(write_run(tmp_path_factory.mktemp("runs") / "two", made_steps("ddp")))


def _job(like: Job, made: MadeSteps, *, calls: float = 1.0) -> Job:
    """The job with these steps in place of its own, without those of warm-up."""
    ranks, steps = made.step.shape
    columns = {"step": made.step, **made.phases}
    measured = slice(10, steps)
    unknown = np.full((ranks, steps - 10), np.nan)
    attempt = like.attempts[0]
    return replace(
        like,
        ranks=tuple(range(ranks)),
        attempts=tuple(_of_rank(attempt, rank, ranks) for rank in range(ranks)),
        step_s=made.step[:, measured].max(axis=0) / 1e3,
        rank_s=dict.fromkeys(like.rank_s, unknown)
        | {name: column[:, measured] / 1e3 for name, column in columns.items()},
        end_ns=np.round(1e6 * made.end[:, measured]).astype(np.int64),
        calls=np.full((ranks, steps - 10), calls),
    )


def _of_rank(attempt: Attempt, rank: int, world_size: int, host: str = "node1") -> Attempt:
    begin = msgspec.structs.replace(attempt.begin, rank=rank, world_size=world_size, host=host)
    return Attempt(begin=begin, steps=attempt.steps, first=attempt.first, last=attempt.last)


def _found(like: Job, waits: Waits, *, ranks: int, seed: int, fault: Fault | None, microbatches: int = 1) -> Late:
    made = made_steps(waits, ranks=ranks, seed=seed, fault=fault, microbatches=microbatches)
    return find_late(_job(like, made, calls=float(microbatches)))


@pytest.mark.parametrize("waits", WAITS)
@pytest.mark.parametrize(("ranks", "seeds"), [(2, 200), (4, 50)])
def test_nobody_is_named_without_a_fault(two_ranks: Job, waits: Waits, ranks: int, seeds: int) -> None:
    named = [
        late
        for seed in range(seeds)
        if (late := _found(two_ranks, waits, ranks=ranks, seed=seed, fault=None)).verdict == "late"
    ]
    assert not named


@pytest.mark.parametrize("waits", WAITS)
@pytest.mark.parametrize(("microbatches", "ranks"), [(1, 2), (1, 4), (2, 2)])
@pytest.mark.parametrize("phase", ["data", "forward", "backward", "optimizer"])
def test_who_is_named_is_late_in_that_phase(
    two_ranks: Job, waits: Waits, microbatches: int, ranks: int, phase: str
) -> None:
    for seed in range(3):
        for layer in range(4) if phase in ("forward", "backward") else (0,):
            fault = Fault(rank=seed % ranks, phase=phase, layer=layer)
            late = _found(two_ranks, waits, ranks=ranks, seed=seed, fault=fault, microbatches=microbatches)
            assert late.verdict == "unsure" or (late.rank, late.phase) == (fault.rank, phase), (fault, late)


@pytest.mark.parametrize(
    ("waits", "phase"),
    [("ddp", "data"), ("ddp", "forward"), ("ddp", "optimizer"), ("fsdp", "data"), ("fsdp", "optimizer")],
)
def test_a_rank_that_is_late_before_the_others_wait_is_named(two_ranks: Job, waits: Waits, phase: str) -> None:
    found = [_found(two_ranks, waits, ranks=2, seed=seed, fault=Fault(rank=1, phase=phase)) for seed in range(10)]
    assert {(late.rank, late.phase) for late in found} == {(1, phase)}
    assert all(late.late_s is not None and 0.008 < late.late_s < 0.012 for late in found)


@pytest.mark.parametrize("waits", WAITS)
def test_a_rank_that_is_late_inside_backward_leaves_it_unsure(two_ranks: Job, waits: Waits) -> None:
    late = _found(two_ranks, waits, ranks=2, seed=1, fault=Fault(rank=1, phase="backward"))
    assert late.verdict == "unsure"
    assert "stands out by its host's clock" in late.reason
    assert "inside backward" in late.reason


def test_a_rank_that_logs_between_steps_makes_no_other_late_in_backward(two_ranks: Job) -> None:
    fault = Fault(rank=0, phase="rest", late_ms=8.0)
    for waits in WAITS:
        assert _found(two_ranks, waits, ranks=2, seed=2, fault=fault).verdict == "unsure"


def test_an_accumulated_gradient_leaves_forward_open(two_ranks: Job) -> None:
    late = _found(two_ranks, "ddp", ranks=2, seed=3, fault=Fault(rank=1, phase="forward"), microbatches=2)
    assert late.verdict == "unsure"
    assert "calls of backward in a step are 2" in late.reason


def test_less_than_five_percent_of_a_step_is_not_named(two_ranks: Job) -> None:
    late = _found(two_ranks, "ddp", ranks=2, seed=4, fault=Fault(rank=1, phase="data", late_ms=1.0))
    assert late.verdict == "unsure"


def test_a_rank_alone_on_its_host_cannot_be_compared(two_ranks: Job) -> None:
    job = _job(two_ranks, made_steps("ddp", fault=Fault(rank=1, phase="data")))
    apart = tuple(_of_rank(each, rank, 2, f"node{rank}") for rank, each in enumerate(job.attempts))
    assert "host of its own" in find_late(replace(job, attempts=apart)).reason


def test_unknown_phases_name_nobody(tmp_path: Path) -> None:
    made = made_steps("ddp", fault=Fault(rank=1, phase="data"))
    folder = write_run(tmp_path / "run", made, steps={"forward_ns": None, "backward_ns": None})
    late = find_late(read_job(folder))
    assert late.verdict == "unsure"
    assert "forward, backward" in late.reason


@pytest.mark.parametrize(("data", "phase"), [({}, "forward"), ({"data_ns": [0] * 40}, "before backward")])
def test_forward_is_told_from_logging_only_by_the_batch_before_it(
    data: dict[str, list[int]], phase: str, tmp_path: Path
) -> None:
    made = made_steps("ddp", fault=Fault(rank=1, phase="forward"))
    late = find_late(read_job(write_run(tmp_path / "run", made, steps=data)))
    assert (late.rank, late.phase) == (1, phase)


def test_files_of_ranks_give_the_same_answer(tmp_path: Path) -> None:
    late = find_late(read_job(write_run(tmp_path / "run", made_steps("ddp", fault=Fault(rank=1, phase="data")))))
    assert (late.verdict, late.rank, late.phase) == ("late", 1, "data")
    assert late.step_ratio is not None
    assert 0.15 < late.step_ratio < 0.35  # 10 of some 46 ms.


def test_few_steps_and_one_rank_are_refused_in_words(tmp_path: Path) -> None:
    few = find_late(read_job(write_run(tmp_path / "few", made_steps("ddp", steps=12))))
    alone = find_late(read_job(write_run(tmp_path / "alone", made_steps("ddp", ranks=1))))
    assert "too few" in few.reason
    assert alone.reason == "one rank waits for no other"
