"""What the specs of pipelines refuse, with the numbers that would work, and what they tell the laws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.workloads.training.setups import SMALL, SmallSetup, small_setup
from workloads.cost_models.absent import Absent
from workloads.cost_models.memory import paper_activation_bytes
from workloads.cost_models.schedules import ScheduleName
from workloads.cost_models.shape import Shape
from workloads.registry import spec_of
from workloads.spec import OptionValue

NAMES = ("pipeline_naive", "gpipe", "one_f_one_b", "interleaved", "zero_bubble")
EIGHT = replace(SMALL, layers=8)


def setup_of(
    name: str, options: Mapping[str, OptionValue] | None = None, *, ranks: int = 2, shape: Shape = EIGHT
) -> SmallSetup:
    return small_setup(name, ranks=ranks, shape=shape, options=options)


def refusals(setup: SmallSetup) -> list[str]:
    return spec_of(setup.strategy).refusals(setup)


@pytest.mark.parametrize("name", NAMES)
def test_what_fits_is_not_refused(name: str) -> None:
    assert refusals(setup_of(name)) == []


@pytest.mark.parametrize("name", NAMES)
def test_stages_are_balanced_where_a_rank_has_one(name: str) -> None:
    reasons = refusals(setup_of(name, {"balance": "flops"}))
    if name in ("interleaved", "zero_bubble"):
        (reason,) = reasons
        assert reason.startswith("option balance is flops with 2 stages per rank; it balances stages")
    else:
        assert reasons == []


@pytest.mark.parametrize(
    ("name", "ranks", "options", "words"),
    [
        ("gpipe", 3, {}, "layers is 8, which 3 stages do not divide; --layers 6 or 9 would fit, or balance=flops"),
        ("interleaved", 2, {"stages": 3}, "layers is 8, which 6 stages do not divide; --layers 6 or 12 would fit"),
        ("gpipe", 9, {"microbatches": 8}, "9 ranks x 1 stages make 9 stages of one block or more; use --layers 9"),
        ("gpipe", 2, {"microbatches": 3}, "microbatches 3; --batch 6 or 9 would fit"),
        ("pipeline_naive", 2, {"microbatches": 4}, "microbatches is 4; naive takes 1"),
        ("one_f_one_b", 8, {}, "microbatches is 4; one_f_one_b on 8 ranks takes 8 or more"),
        ("interleaved", 2, {"stages": 1}, "stages per rank is 1; interleaved takes 2 or more"),
        ("zero_bubble", 2, {"variant": "zbv", "stages": 4}, "stages per rank is 4; zbv takes 2"),
        ("zero_bubble", 2, {"compile": "default"}, "use compile=none, or an interleaved schedule"),
        ("zero_bubble", 2, {"checkpoint": "full"}, "use checkpoint=none, or an interleaved schedule"),
        ("zero_bubble", 2, {"checkpoint": "selective"}, "use checkpoint=none, or an interleaved schedule"),
    ],
)
def test_what_cannot_run_is_refused_with_what_would(
    name: str, ranks: int, options: Mapping[str, OptionValue], words: str
) -> None:
    (reason,) = refusals(setup_of(name, options, ranks=ranks))
    assert words in reason


def test_rounds_of_unequal_size_are_refused_with_microbatches_that_fit() -> None:
    (reason,) = refusals(setup_of("interleaved", {"microbatches": 7}, shape=replace(EIGHT, batch=7)))
    assert "use 6 or 8, or any multiple of 2" in reason


def test_a_pipeline_takes_two_ranks_or_more() -> None:
    assert {spec_of(name).needs.minimum_ranks for name in NAMES} == {2}


@pytest.mark.parametrize(
    ("name", "options", "schedule", "stages_per_rank"),
    [
        ("pipeline_naive", {}, "naive", 1),
        ("gpipe", {}, "gpipe", 1),
        ("one_f_one_b", {}, "one_f_one_b", 1),
        ("interleaved", {}, "interleaved", 2),
        ("zero_bubble", {"stages": 4}, "interleaved_zero_bubble", 4),
        ("zero_bubble", {"variant": "zbv"}, "zbv", 2),
    ],
)
def test_a_spec_tells_its_pipeline(
    name: str, options: Mapping[str, OptionValue], schedule: ScheduleName, stages_per_rank: int
) -> None:
    pipeline = spec_of(name).pipeline(setup_of(name, options))
    assert pipeline is not None
    assert (pipeline.schedule, pipeline.ranks, pipeline.stages_per_rank) == (schedule, 2, stages_per_rank)
    sequences = SMALL.batch // pipeline.microbatches
    assert pipeline.boundary_bytes == 4 * sequences * SMALL.sequence * SMALL.width


def test_all_ranks_read_the_same_sequences() -> None:
    setup = setup_of("gpipe", ranks=4)
    spec = spec_of("gpipe")
    assert spec.data_ranks(setup) == 1
    assert spec.training_ranks(setup) == 4


@pytest.mark.parametrize("name", NAMES)
def test_states_of_a_measured_cut_are_not_compared(name: str) -> None:
    spec = spec_of(name)
    assert spec.states_not_covered(setup_of(name, {"balance": "flops"})) is None
    reason = spec.states_not_covered(setup_of(name, {"balance": "measured"}))
    assert isinstance(reason, Absent)
    assert "only the run measures" in reason.reason


@pytest.mark.parametrize(
    ("name", "microbatches", "layers_of_microbatches"),
    [
        ("gpipe", 8, 8 * 4),  # Of each microbatch half of the layers.
        ("one_f_one_b", 8, 2 * 4),
        ("interleaved", 8, 5 * 2),  # (v - 1) p + 2 (p - 1) + 1 of a quarter.
        ("pipeline_naive", 1, 1 * 4),
    ],
)
def test_the_paper_counts_the_layers_of_live_microbatches(
    name: str, microbatches: int, layers_of_microbatches: int
) -> None:
    spec = spec_of(name)
    one_layer = paper_activation_bytes(replace(SMALL, layers=1), SMALL.batch // microbatches, "none")
    assert spec.paper_activations(setup_of(name, {"microbatches": microbatches})) == layers_of_microbatches * one_layer
