"""Setups of a choice, their search and their ranking, on machines that are not here."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from bench.analysis.choosing.candidates import Ranking, candidates
from bench.analysis.choosing.explain import explain
from bench.analysis.choosing.ground import OWN_ERROR, Ground, ground_on
from bench.analysis.choosing.pricing import Candidate, Pricing, speed_ratio
from bench.analysis.choosing.question import Question
from bench.analysis.choosing.report import closing
from bench.analysis.choosing.setups import divisors, grid_of, setups_of
from bench.analysis.prediction.fit import fit
from bench.case import Case, settle
from bench.errors import Misuse
from bench.machine.machines.machine_file import read_machine
from workloads.cost_models.shape import PRESETS, Shape
from workloads.cost_models.step_time import StepTime
from workloads.registry import SPECS

LARGE = replace(PRESETS["8b"], batch=32)
FEW = ("ddp", "fsdp", "zero2", "hsdp", "one_f_one_b")


def question_of(shape: Shape, on: str, strategies: Sequence[str] = (), **changes: Any) -> tuple[list[Case], Ground]:
    """The bases and the ground of a question."""
    machine = read_machine(on)
    ranks = changes.pop("ranks", machine.gpus)
    ground = ground_on(machine, ranks, "bf16")
    question = Question(
        shape=shape,
        ranks=ranks,
        nodes=ground.nodes,
        device="cuda",
        backend="nccl",
        precision="bf16",
        strategies=strategies,
        **changes,
    )
    return question.bases()[0], ground


def ranked(shape: Shape, on: str, *strategies: str, **changes: Any) -> Ranking:
    objective = changes.pop("objective", "throughput")
    bases, ground = question_of(shape, on, strategies, **changes)
    return candidates(bases, ground, objective=objective, fixed={})


@pytest.fixture(scope="module")
def of_8b() -> Ranking:
    """A few strategies, for 8B on a node of H100."""
    return ranked(LARGE, "h100x8", *FEW)


def of_strategy(ranking: Ranking, name: str) -> Candidate:
    return next(each for each in ranking.candidates if each.case.strategy == name)


# Setups.


def test_divisors_ascend() -> None:
    assert divisors(12) == (1, 2, 3, 4, 6, 12)
    assert divisors(16) == (1, 2, 4, 8, 16)


def every_setup(base: Case) -> Iterator[Case]:
    """The whole product of the grid, settled."""
    grid = grid_of(base.spec(), base, {})
    for values in itertools.product(*grid.values()):
        yield settle(replace(base, options={**base.options, **dict(zip(grid, values, strict=True))}))


@pytest.mark.parametrize("name", [spec.name for spec in SPECS if spec.kind == "training"])
def test_branches_that_end_early_lose_no_setup(name: str) -> None:
    shape = replace(PRESETS["tiny"], batch=8, layers=6)
    (base,), _ = question_of(shape, "h100x8", (name,), ranks=4)
    setups = setups_of(base, {})
    spec = base.spec()
    everything = list(every_setup(base))
    is_possible = spec.needs.maximum_ranks is None and not spec.missing_packages()
    runs = [case for case in everything if is_possible and not spec.all_refusals(case)]
    assert [case.options for case in setups.cases] == [case.options for case in runs]
    assert sum(setups.counts.values()) == len(everything) - len(runs)


def test_an_option_that_the_user_set_is_not_searched() -> None:
    bases, ground = question_of(LARGE, "h100x8", ("fsdp", "zero2"), options=("checkpoint=full",))
    ranking = candidates(bases, ground, fixed={"checkpoint": "full"})
    assert {each.case.options["checkpoint"] for each in ranking.candidates} == {"full"}


def test_a_strategy_without_the_option_is_left_out() -> None:
    bases, _ = question_of(LARGE, "h100x8", options=("tensor_ranks=2",))
    assert [base.strategy for base in bases] == ["three_d"]


def test_all_strategies_keep_weights_alike() -> None:
    bases, _ = question_of(LARGE, "h100x8", FEW)
    assert {base.options["weights"] for base in bases} == {"bf16_compute"}


# The search.


@pytest.mark.parametrize("name", ["fsdp", "hsdp", "tensor_parallel", "one_f_one_b", "three_d"])
def test_the_search_finds_what_working_out_every_setup_finds(name: str) -> None:
    shape = replace(PRESETS["1b"], batch=4 if name == "three_d" else 8, layers=4)
    bases, ground = question_of(shape, "a100-40x8", (name,), ranks=4)
    ranking = candidates(bases, ground, fixed={})
    pricing = Pricing(ground=ground)
    priced = [
        candidate
        for case in setups_of(bases[0], {}).cases
        if pricing.memory(case).fits and isinstance(candidate := pricing.candidate(case), Candidate)
    ]
    fastest = min(each.step_s for each in priced)
    assert ranking.best is not None
    assert ranking.best.step_s <= fastest * (1 + 1e-9)  # Buckets of other sizes may be faster yet.
    assert ranking.unfit_count + ranking.slower_count + ranking.predicted_count >= len(priced)


def test_a_candidate_is_what_a_dry_run_and_predict_say(of_8b: Ranking) -> None:
    machine = read_machine("h100x8")
    for each in of_8b.candidates:
        predicted = fit(each.case, machine)
        assert isinstance(predicted.step, StepTime)
        assert each.step_s == pytest.approx(predicted.step.step_s)
        assert each.memory.total_bytes == predicted.memory.total_bytes
        assert sum(each.parts_s.values()) == pytest.approx(each.step_s)


def test_the_best_of_each_strategy_is_there_fastest_first(of_8b: Ranking) -> None:
    assert len(of_8b.candidates) <= 10
    steps = [each.step_s for each in of_8b.candidates]
    assert steps == sorted(steps)
    assert {each.case.strategy for each in of_8b.candidates} == {"fsdp", "zero2", "hsdp", "one_f_one_b"}
    assert all(each.memory.fits for each in of_8b.candidates)


def test_what_fits_in_no_setup_is_named_with_what_it_needs(of_8b: Ranking) -> None:
    assert of_8b.unfit["ddp"].memory.basis == "states"
    assert of_8b.unfit["ddp"].memory.total_bytes == 16 * LARGE.parameters() + 4 * LARGE.parameter_tensors()
    assert "ddp does not fit: states need 120 GiB of 79.1 GiB" in closing(of_8b)


def test_the_objective_memory_ranks_by_bytes() -> None:
    ranking = ranked(LARGE, "h100x8", "fsdp", "hsdp", objective="memory")
    sizes = [each.memory.total_bytes for each in ranking.candidates]
    assert sizes == sorted(sizes)
    assert closing(ranking).startswith("fsdp needs the least memory: ")


# Comparing.


def test_equal_setups_are_not_told_apart(of_8b: Ranking) -> None:
    fsdp, zero2 = of_strategy(of_8b, "fsdp"), of_strategy(of_8b, "zero2")
    same, ratio = speed_ratio(fsdp, fsdp), speed_ratio(fsdp, zero2)
    assert (same.low, same.high) == (1.0, 1.0)
    assert not ratio.is_clear
    assert ratio.high == pytest.approx(ratio.value * (1 + OWN_ERROR) / (1 - OWN_ERROR), rel=0.02)


def test_errors_that_two_setups_share_cancel(of_8b: Ranking) -> None:
    fsdp, pipeline = of_strategy(of_8b, "fsdp"), of_strategy(of_8b, "one_f_one_b")
    # Alone each may be off by far more than the two differ.
    assert fsdp.interval_s[1] > pipeline.interval_s[0]
    assert speed_ratio(fsdp, pipeline).is_clear


def test_a_tie_is_said_and_a_winner_is_named(of_8b: Ranking) -> None:
    assert closing(of_8b).startswith("no winner between ")
    # Another candidate, which is slower, may need less.
    assert "; of these, " in closing(of_8b)
    two = ranked(LARGE, "h100x8", "fsdp", "one_f_one_b")
    assert closing(two).startswith("fsdp pays: 1.2")
    assert "over one_f_one_b" in closing(two)


# The explanation.


def test_the_first_is_explained_by_predictions_of_its_neighbours() -> None:
    ranking = ranked(replace(PRESETS["1b"], batch=8, layers=4), "a100-40x8", "three_d", ranks=4)
    lines = {each.option: each for each in explain(ranking)}
    assert {"pipeline_ranks", "tensor_ranks", "microbatches", "checkpoint"} <= set(lines)
    for explanation in lines.values():
        for each in explanation.neighbours:
            if each.step_ratio is not None:
                assert each.step_ratio >= 1 - 1e-9, explanation.line
                assert ("longer" in each.words) == (each.step_ratio > 1.0005)


def test_a_tensor_axis_that_crosses_nodes_pays_for_it() -> None:
    shape = replace(PRESETS["8b"], batch=16, layers=4, kv_heads=16)
    by_size = {}
    for size in (8, 16):
        fixed = {"tensor_ranks": size, "pipeline_ranks": 2, "checkpoint": "full", "sequence_parallel": True}
        texts = [f"{name}={str(value).lower()}" for name, value in fixed.items()]
        bases, ground = question_of(shape, "h100x8x4", ("three_d",), options=texts)
        best = candidates(bases, ground, fixed=fixed).best
        assert best is not None
        by_size[size] = best
    assert (by_size[8].levels["tensor"], by_size[16].levels["tensor"]) == ("NVLink", "InfiniBand")
    assert by_size[16].step_s > 1.2 * by_size[8].step_s
    assert by_size[16].limit[0] == "InfiniBand"


# What cannot be chosen.


def test_what_fits_nowhere_has_the_nearest_that_does() -> None:
    ranking = ranked(replace(PRESETS["70b"], batch=8), "h100x8", "fsdp")
    assert ranking.candidates == ()
    line = closing(ranking)
    assert line.startswith("nothing fits: the nearest is fsdp with ")
    assert " would fit, with " in line


def test_a_batch_that_nothing_divides_is_refused_with_batches_that_would_do() -> None:
    with pytest.raises(Misuse, match=r"batch 7 cannot be shared equally by 8 data ranks.*--batch 8 would fit"):
        ranked(replace(LARGE, batch=7), "h100x8", "ddp", "fsdp", "hsdp")
    # Most setups also divide the batch into microbatches; the least batch that would do is that of one microbatch.
    with pytest.raises(Misuse, match=r"batch 4 cannot be shared equally by 8 data ranks; --batch 8 would fit"):
        ranked(replace(LARGE, batch=4), "h100x8", "ddp", "fsdp")
