"""The scored cases of a box: what they are, how long they sleep, and the arithmetic of their score."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bench.analysis.prediction.calibration import FULLY_HIDDEN, Calibration, Range
from bench.analysis.prediction.forecast import compute_at, work_of
from bench.case import Case
from tests.benchmarks.strategies.scored_cases import (
    OPTIONS,
    PRODUCTS,
    Replay,
    Scored,
    block_sleeps_s,
    calibrating,
    grouped,
    predicted_cases,
    together,
    words_of,
)
from tests.benchmarks.strategies.scored_in_box import case_cells, together_cells
from tests.benchmarks.strategies.sleeping_runs import sleepy_product
from workloads.cost_models.absent import Absent
from workloads.options import microbatch_count

NODES = (2, 4)
CASES = [case for nodes in NODES for case in (*calibrating(nodes), *predicted_cases(nodes))]


def only_products() -> Calibration:
    """A machine of that rate, whose memory takes no time."""
    rate = Range(value=PRODUCTS, low=PRODUCTS, high=PRODUCTS, origin="made up")
    return Calibration(
        name="made up",
        products=((1.0, rate),),
        attention=None,
        memory=Range(value=1e30, low=1e30, high=1e30, origin="made up"),
        elementwise=1.0,
        links=Absent(reason="made up"),
        links_origin="",
        hiding=FULLY_HIDDEN,
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.title}, {words_of(case)}, {case.shape.batch}")
def test_a_ranks_blocks_sleep_as_long_as_its_products_but_the_heads_are_predicted_to_take(case: Case) -> None:
    work, pipeline = work_of(case), case.spec().pipeline(case)
    predicted = compute_at(case, work, only_products(), "value")
    head_s = 3 * work.head.flops / PRODUCTS / case.ranks
    blocks = case.shape.layers / (pipeline.ranks if pipeline is not None else 1)
    slept_s = sum(block_sleeps_s(case)) * blocks * microbatch_count(case)
    assert slept_s == pytest.approx(predicted.forward_s + predicted.backward_s - head_s)
    assert head_s < 0.03 * slept_s


@pytest.mark.parametrize("nodes", NODES)
def test_each_strategy_is_tested_on_two_cases_that_it_was_not_calibrated_on(nodes: int) -> None:
    first, others = calibrating(nodes), predicted_cases(nodes)
    assert [case.strategy for case in first] == list(OPTIONS)
    assert [case.strategy for case in others] == [strategy for strategy in OPTIONS for _ in range(2)]
    assert len({case.key() for case in (*first, *others)}) == 3 * len(OPTIONS)


@pytest.mark.parametrize("nodes", NODES)
def test_at_least_eight_cases_of_a_box_have_one_shape(nodes: int) -> None:
    shapes = [case.shape for case in predicted_cases(nodes)]
    assert max(shapes.count(shape) for shape in shapes) >= 8


def test_a_sleepy_product_is_right_and_sleeps_for_the_rest_of_its_time() -> None:
    slept_s: list[float] = []
    times_s = iter((10.0, 10.25))  # The product itself takes a quarter of a second.
    multiply = sleepy_product(torch.mm, 96.0, clock=lambda: next(times_s), sleep=slept_s.append)
    a_mk, b_kn, out_mn = torch.ones(2, 3), torch.ones(3, 8), torch.zeros(2, 8)
    multiply(a_mk, b_kn, out=out_mn)
    assert torch.equal(out_mn, torch.full((2, 8), 3.0))
    assert slept_s == [0.75]  # 2 x 2 x 3 x 8 operations at 96 a second take one.


def test_a_sleepy_product_that_takes_longer_than_its_time_sleeps_no_more() -> None:
    slept_s: list[float] = []
    times_s = iter((10.0, 12.0))
    multiply = sleepy_product(torch.mm, 96.0, clock=lambda: next(times_s), sleep=slept_s.append)
    multiply(torch.ones(2, 3), torch.ones(3, 8), out=torch.zeros(2, 8))
    assert slept_s == [0.0]


def scored(predicted_s: float, measured_s: float, *, ratio: float = 1.0, case: Case | None = None) -> Scored:
    """A case with one replay across nodes, and one inside that took three times its prediction."""
    return Scored(
        box="2 nodes, 100 Mbit/s",
        case=predicted_cases(2)[0] if case is None else case,
        predicted_bytes=1_000,
        counted_bytes=1_000,
        are_bytes_equal=True,
        replays=(
            Replay(axis="data", level="cluster", predicted_s=2.0, measured_s=(2.0 * ratio, 9.0, 0.0)),
            Replay(axis="shard", level="node", predicted_s=1.0, measured_s=(3.0,)),
        ),
        predicted_s=predicted_s,
        measured_s=measured_s,
    )


def test_replays_across_nodes_count_by_their_medians() -> None:
    cases = [scored(1.0, 1.0, ratio=ratio) for ratio in (0.84, 0.86, 1.0, 1.14, 1.16)]
    counted = together(cases, limit=0.15)
    assert (counted.within, counted.replays) == (3, 5)


def test_cases_together_have_errors_of_the_step_and_an_order() -> None:
    """Of six pairs one is reversed: (5 - 1) / 6."""
    cases = [scored(1.0, 2.0), scored(2.0, 1.6), scored(3.0, 3.0), scored(4.0, 5.0)]
    counted = together([*cases[:3], replace(cases[3], are_bytes_equal=False)], limit=0.15)
    assert counted.tau == pytest.approx(4 / 6)
    assert counted.error.median == pytest.approx(-0.1)  # Of -50, +25, 0 and -20 %.
    assert (counted.cases, counted.equal_bytes) == (4, 3)
    assert list(together_cells(counted)) == ["4", "3 of 4", "4 of 4", "-10 % [-41, +18]", "0.67"]


def test_cases_are_grouped_by_strategy_and_by_box() -> None:
    ddp, hsdp = (scored(1.0, 1.0, case=case) for case in (predicted_cases(2)[0], predicted_cases(2)[2]))
    elsewhere = replace(ddp, box="4 nodes, 100 Mbit/s")
    assert grouped([ddp, hsdp, elsewhere], "strategy") == {"ddp": [ddp, elsewhere], "hsdp": [hsdp]}
    assert grouped([ddp, hsdp, elsewhere], "box") == {ddp.box: [ddp, hsdp], elsewhere.box: [elsewhere]}


def test_a_row_shows_bytes_that_differ() -> None:
    right = scored(1.5, 2.0, ratio=0.5)
    wrong = replace(right, counted_bytes=1_001, are_bytes_equal=False)
    times = ["data 0.50, shard 3.00 (node)", "1.50 s", "2.00 s", "-25 %"]
    assert list(case_cells(right)) == ["`ddp`", "bucket_mb=25.0", "1,000", *times]
    assert list(case_cells(wrong))[2:] == ["1,000, counted 1,001", *times]
