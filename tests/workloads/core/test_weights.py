"""First weights: each element by a definition in whole numbers, and the same however a strategy divides the model."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from importlib import import_module
from math import isqrt
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.ranks import OnRanks
from tests.workloads.training.setups import SMALL, SmallSetup, ranks_of, small_setup
from tests.workloads.training.training_runs import make_ready
from workloads.core import weights
from workloads.core.trainer import full_tensor_of, make_model, plain_name
from workloads.core.weights import elements_at, fill_flat, fill_weights, key_of
from workloads.cost_models.shape import Shape
from workloads.registry import SPECS
from workloads.spec import OptionValue, StrategySpec

MASK = 2**64 - 1
UNEVEN = Shape(layers=4, width=36, heads=6, kv_heads=3, mlp_width=45, vocabulary=29, sequence=12, batch=12)
"""No first dimension is divisible by 4, nor by 2 where a strategy allows it."""


def splitmix64(state: int) -> int:
    """Vigna's published C, in Python's whole numbers."""
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB & MASK
    return state ^ (state >> 31)


def test_the_truth_has_the_published_outputs() -> None:
    outputs = [splitmix64(1234567 + step * 0x9E3779B97F4A7C15 & MASK) for step in (1, 2, 3, 4, 5)]
    assert outputs == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@pytest.mark.parametrize("index", [0, 1, 2**18 - 1, 2**18, 70_000_000_000])
@pytest.mark.parametrize("key", [0, 1, -1, 2**63 - 1, -(2**63), 1234567])
def test_an_element_is_the_scaled_sum_of_the_pieces_of_its_hash(index: int, key: int) -> None:
    bits = splitmix64(key + index * 0x9E3779B97F4A7C15 & MASK)
    pieces = [bits >> shift & 0xFFFF for shift in (0, 16, 32, 48)]
    signed = [piece - 2**16 if piece >= 2**15 else piece for piece in pieces]
    # The deviation of the sum of four numbers that are uniform over 16 bits is the root of (2^32 - 1) / 3.
    wide = 10**20
    exact = Fraction(sum(signed) + 2) * Fraction(0.02) * wide / isqrt((2**32 - 1) * wide**2 // 3)
    (element,) = elements_at(torch.tensor([index]), key, 0.02).tolist()
    assert element == pytest.approx(float(exact), rel=2**-22)


def test_elements_are_near_to_normal_and_of_their_deviation() -> None:
    drawn = elements_at(torch.arange(1_000_000), key_of("a", 7), 1.0).double()
    # Standard errors of mean, variance and fourth moment over a million draws: .001, .0013 and .006.
    assert abs(drawn.mean()) < 0.005
    assert abs(drawn.var() - 1) < 0.006
    assert drawn.pow(4).mean() == pytest.approx(3 - 1.2 / 4, abs=0.03)
    assert drawn.abs().max() < 3.47
    # Neighbours, and the same place of another weight or seed, are unrelated.
    assert abs((drawn[1:] * drawn[:-1]).mean()) < 0.005
    for other in (key_of("b", 7), key_of("a", 8)):
        assert abs((drawn * elements_at(torch.arange(1_000_000), other, 1.0)).mean()) < 0.005


@pytest.mark.parametrize("chunk", [1, 7, 50, 64, 10_000])
def test_the_size_of_a_chunk_changes_nothing(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    name, whole = "blocks.0.mlp.down.weight", torch.empty(13, 50)
    fill_weights([(name, whole)], seed=7, layers=2)
    assert len(set(whole.flatten().tolist())) > 600
    monkeypatch.setattr(weights, "CHUNK_ELEMENTS", chunk)
    again, flat = torch.empty(13, 50), torch.empty(200)
    fill_weights([(name, again)], seed=7, layers=2)
    fill_flat(flat, name, 333, seed=7, dims=2, layers=2)
    assert torch.equal(again, whole)
    assert torch.equal(flat, whole.flatten()[333:533])


def test_weights_in_bf16_are_those_in_fp32_rounded_once() -> None:
    whole, half = torch.empty(30, 40), torch.empty(30, 40, dtype=torch.bfloat16)
    for tensor in (whole, half):
        fill_weights([("head.weight", tensor)], seed=3, layers=1)
    assert torch.equal(whole.bfloat16(), half)


def test_a_part_of_nothing_is_left_alone() -> None:
    fill_weights([("head.weight", torch.empty(0, 40))], seed=3, layers=1)
    fill_flat(torch.empty(0), "head.weight", 50, seed=3, dims=2, layers=1)


# Each strategy begins with the model of `single`, bit by bit.


def weights_of_rank(setup: SmallSetup) -> dict[str, Tensor]:
    """What this rank knows of the whole weights, before the first step."""
    model: Any = make_ready(setup).workload.model
    if setup.strategy == "deepspeed":
        deepspeed: Any = import_module("deepspeed")
        named = dict(model.module.named_parameters())
        with deepspeed.zero.GatheredParameters(list(named.values())):
            return {name: weight.detach().clone() for name, weight in named.items()}
    if isinstance(model, nn.ParameterList):
        return {}  # A server, whose weights have no names; it sends them to the workers in the first step.
    return {plain_name(name): full_tensor_of(weight.detach()) for name, weight in model.named_parameters()}


def variants(spec: StrategySpec) -> list[dict[str, OptionValue]]:
    """Ways to divide a model that differ in what a rank holds."""
    ways: dict[str, list[dict[str, OptionValue]]] = {
        "deepspeed": [{"stage": 1}, {"stage": 3}, {"stage": 3, "param_persistence_threshold": 0}],
        "fsdp": [{}, {"wrap": "layer"}, {"offload": True}],
        "tensor_parallel": [{}, {"sequence_parallel": True}],
        "three_d": [{}, {"data_axis": "fsdp"}, {"data_axis": "fsdp", "tensor_ranks": 1}],
    }
    return ways.get(spec.name, [{}])


@pytest.fixture(scope="module")
def on_ranks(on_fresh_ranks: OnRanks) -> OnRanks:
    """DeepSpeed starts once in a process."""
    return on_fresh_ranks


@pytest.mark.parametrize(
    ("spec", "options"),
    [(spec, options) for spec in SPECS if spec.kind == "training" for options in variants(spec)],
    ids=lambda value: value.name if isinstance(value, StrategySpec) else str(value),
)
def test_a_strategy_begins_with_the_weights_of_single(
    spec: StrategySpec, options: dict[str, OptionValue], on_ranks: OnRanks
) -> None:
    setup = next(
        setup
        for ranks in (ranks_of(spec), 8)
        for shape in (UNEVEN, replace(UNEVEN, mlp_width=46, vocabulary=30, kv_heads=2), SMALL)
        if not spec.all_refusals(setup := small_setup(spec.name, ranks=ranks, shape=shape, options=options))
    )
    truth = dict(make_model(small_setup(shape=setup.shape)).named_parameters())
    known: dict[str, Tensor] = {}
    for of_rank in on_ranks(setup.ranks, weights_of_rank, setup):
        for name, weight in of_rank.items():
            assert torch.equal(known.setdefault(name, weight), weight), name
    assert known.keys() == truth.keys()
    for name, weight in truth.items():
        assert torch.equal(known[name], weight), name


@pytest.mark.parametrize("ranks", [3, 5])
def test_parts_of_unequal_size_are_those_of_the_whole(ranks: int, on_ranks: OnRanks) -> None:
    setup = small_setup("fsdp", ranks=ranks, shape=replace(UNEVEN, batch=ranks))
    truth = dict(make_model(small_setup(shape=UNEVEN)).named_parameters())
    for of_rank in on_ranks(ranks, weights_of_rank, setup):
        assert all(torch.equal(of_rank[name], weight) for name, weight in truth.items())
